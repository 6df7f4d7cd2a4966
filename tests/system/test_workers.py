"""Workers that die, pause, hang, stop, come and go under running replies: what readers have of it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from system.product import REPOSITORY, Client, Product, Seen, eventually

from schemas.codec import decode
from schemas.events import GenerationParked
from schemas.topics import PARKED
from streams.log.kafka import KafkaLog
from streams.log.log import since
from streams.log.steps import Partition
from tests.chaos.evidence import counted, rows
from tests.chaos.wreck import Stack

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

GRACE_S = 2.0
TOKEN_TIMEOUT_S = 3.0
SETTINGS = {
    "TURNLOG_SLOTS": "8",
    "TURNLOG_DRAIN_GRACE_S": str(GRACE_S),
    "TURNLOG_TOKEN_TIMEOUT_S": str(TOKEN_TIMEOUT_S),
}


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    env = SETTINGS | {"TURNLOG_METRICS": "true"}
    running = Product(tmp_path_factory.mktemp("workers"), "--engine", "scripted", "--workers", "2", env=env)
    yield running
    running.close()


def words(count: int) -> str:
    return " ".join(f"word{number}" for number in range(1, count + 1))


def worker_of(product: Product, client: Client, reply_id: str) -> str:
    """The part that runs a reply: the one that says that it runs one."""

    def busy() -> str | None:
        parts = product.parts()
        running = [
            name for name, part in parts.items() if part["kind"] == "worker" and "0 running" not in part["detail"]
        ]
        return running[0] if len(running) == 1 else None

    assert client.message(reply_id)["status"] in ("queued", "running")
    return str(eventually("one worker runs it", busy))


def test_a_worker_that_pauses_for_twenty_seconds_says_nothing_that_anybody_sees(product: Product) -> None:
    client = product.client()
    sent = client.send({"chunks": 500, "every_ms": 60})
    reply_id = sent["reply"]["id"]
    paused: list[tuple[int, float]] = []
    reset_after: list[float] = []

    def pause_at_twenty(seen: Seen) -> None:
        if seen.offset >= 20 and not paused:
            name = worker_of(product, client, reply_id)
            paused.append((product.signal(name, signal.SIGSTOP), time.monotonic()))
            threading.Timer(20.0, os.kill, (paused[0][0], signal.SIGCONT)).start()
        if seen.attempt == 2 and not reset_after:
            reset_after.append(time.monotonic() - paused[0][1])

    seen = client.read(reply_id, each=pause_at_twenty, within_s=120)
    assert reset_after[0] < 6.0
    assert seen.text == words(500), "the second attempt alone, though the first one has gone on meanwhile"
    assert [kind for _, kind, _ in seen.events].count("reset") == 1
    product.wait_ready()
    assert client.read(client.send({"chunks": 3})["reply"]["id"]).text == words(3)


def test_all_workers_are_restarted_one_after_the_other_under_load_and_nothing_is_lost(product: Product) -> None:
    stop = threading.Event()
    lost: list[Any] = []

    def converse() -> int:
        client, count = product.client(), 0
        while not stop.is_set():
            seen = client.read(client.send({"chunks": 40, "every_ms": 25})["reply"]["id"])
            if seen.text != words(40) or seen.end is None or seen.end["status"] != "completed":
                lost.append(seen)
            count += 1
        return count

    with ThreadPoolExecutor(8) as pool:
        users = [pool.submit(converse) for _ in range(8)]
        try:
            for name in ("worker-0", "worker-1", "worker-0"):
                before = product.signal(name, signal.SIGTERM)
                eventually(
                    f"{name} is another process",
                    lambda name=name, before=before: (
                        product.parts()[name]["pid"] not in (None, before)  # type: ignore[misc]
                        and product.parts()[name]["state"] == "ready"
                    ),
                )
        finally:
            stop.set()
        assert sum(user.result() for user in users) > 24
    assert lost == []


def test_what_does_not_end_within_the_grace_is_handed_over_at_once_with_a_reset(product: Product) -> None:
    client = product.client()
    reply_id = client.send({"chunks": 300, "every_ms": 30})["reply"]["id"]
    stopped: list[float] = []
    reset_after: list[float] = []

    def stop_at_ten(seen: Seen) -> None:
        if seen.offset >= 10 and not stopped:
            product.signal(worker_of(product, client, reply_id), signal.SIGTERM)
            stopped.append(time.monotonic())
        if seen.attempt == 2 and not reset_after:
            reset_after.append(time.monotonic() - stopped[0])

    seen = client.read(reply_id, each=stop_at_ten)
    assert seen.text == words(300)
    [reset] = [data for _, kind, data in seen.events if kind == "reset"]
    assert reset["reason"] == "handed_over"
    assert GRACE_S * 0.5 < reset_after[0] < GRACE_S + 2.0, "after the grace, without waiting for a lease"
    product.wait_ready()


def test_one_reply_that_hangs_delays_nobody_else(product: Product) -> None:
    client = product.client()
    with ThreadPoolExecutor(9) as pool:
        hung = pool.submit(client.read, client.send({"chunks": 50, "every_ms": 10, "hang_at": 5})["reply"]["id"])
        began = time.monotonic()
        others = [
            pool.submit(client.read, client.send({"chunks": 150, "every_ms": 20})["reply"]["id"]) for _ in range(8)
        ]
        for other in others:
            seen = other.result()
            assert (seen.text, seen.attempt) == (words(150), 1)
        assert time.monotonic() - began < 3.0 + 5.0
        seen = hung.result()
    assert seen.end is not None
    assert (seen.end["status"], seen.end["error"]["code"]) == ("failed", "engine_stalled")
    assert [data["reason"] for _, kind, data in seen.events if kind == "reset"] == ["engine_stalled"]


def test_replies_of_an_engine_that_falls_silent_go_on_elsewhere_and_are_told_alike_why(product: Product) -> None:
    client, stack = product.client(), Stack(product.data)
    before = counted(stack)
    sent = [client.send({"chunks": 200, "every_ms": 40})["reply"]["id"] for _ in range(6)]
    reset_s: list[float] = []

    def note(seen: Seen) -> None:
        if seen.attempt == 2:
            reset_s.append(time.monotonic())

    def all_run() -> dict[str, int]:
        details = {name: part["detail"] for name, part in stack.parts().items() if part["kind"] == "worker"}
        running = {name: int(detail.split()[0]) for name, detail in details.items() if detail[:1].isdigit()}
        return running if sum(running.values()) == len(sent) else {}

    with ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(client.read, reply_id, each=note) for reply_id in sent]
        running = eventually("all of them run", all_run, within_s=5)
        busiest = max(running, key=lambda name: running[name])
        silenced_s = time.monotonic()
        stack.signal(busiest, signal.SIGUSR1)
        seen = dict(zip(sent, [reader.result() for reader in readers], strict=True))
    assert all(one.text == words(200) for one in seen.values())
    resets = {reply_id: [data for _, kind, data in one.events if kind == "reset"] for reply_id, one in seen.items()}
    told = [reset["reason"] for one in resets.values() for reset in one]
    assert len(told) == running[busiest] > 1, "those at the silent engine, and nobody else's"
    assert set(told) == {"engine_stuck"}
    assert TOKEN_TIMEOUT_S * 0.9 < min(reset_s) - silenced_s < TOKEN_TIMEOUT_S + 3.0
    voids = rows(stack, set(sent))
    for reply_id, expected in resets.items():
        answered = client.message(reply_id)["resets"]
        assert [(one["attempt"], one["reason"]) for one in answered] == [
            (one["attempt"], one["reason"]) for one in expected
        ]
        reasons = tuple(reset["reason"] for reset in expected)
        assert (voids[reply_id].reasons, voids[reply_id].message_reasons) == (reasons, reasons)
    assert counted(stack) - before == Counter(told)
    product.wait_ready()


def test_a_reply_that_kills_its_workers_fails_and_is_parked_and_the_others_go_on(product: Product) -> None:
    client = product.client()
    with ThreadPoolExecutor(5) as pool:
        sent = [client.send({"chunks": 400, "every_ms": 20})["reply"]["id"] for _ in range(4)]
        others = [pool.submit(client.read, reply_id) for reply_id in sent]
        poison = client.send({"chunks": 30, "every_ms": 5, "crash_at": 10})["reply"]["id"]
        seen = client.read(poison)
        assert seen.end is not None
        assert (seen.end["status"], seen.end["error"]["code"]) == ("failed", "poison")
        for other in others:
            assert other.result().text == words(400)
    address = product.parts()["kafka"]["address"]
    log = KafkaLog(address, "turnlog", "test")
    reader = log.reader([Partition(PARKED.name, 0)], since(0))
    try:
        parked = eventually(
            "it is parked",
            lambda: [
                event
                for record in reader.poll(1.0)
                if isinstance(event := decode(record.value, record.headers).event, GenerationParked)
            ],
        )
    finally:
        reader.close()
        log.close()
    assert [event.reply_id for event in parked] == [poison]
    assert len(set(parked[0].workers)) >= 2
    product.wait_ready()


def test_a_worker_joins_and_leaves_while_traffic_runs(product: Product) -> None:
    client = product.client()
    held = [client.send({"chunks": 500, "every_ms": 40})["reply"]["id"] for _ in range(16)]
    late = client.send({"chunks": 5})["reply"]["id"]
    assert client.message(late)["status"] == "queued", "two workers are full"
    env = {
        **os.environ,
        **SETTINGS,
        "TURNLOG_KAFKA_BOOTSTRAP": product.parts()["kafka"]["address"],
        "TURNLOG_ENGINE": "scripted",
        "TURNLOG_REPLICA": "7",
    }
    joined = subprocess.Popen([sys.executable, "-m", "inference_workers"], cwd=REPOSITORY, env=env)
    try:
        assert client.read(late, within_s=15.0).text == words(5), "the new one takes it"
        joined.send_signal(signal.SIGTERM)
        assert joined.wait(GRACE_S + 8.0) == 0
    finally:
        joined.kill()
    for reply_id in held:
        assert client.read(reply_id).text == words(500)
