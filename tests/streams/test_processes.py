"""The four processes on a real broker, with a worker that the test plays by hand."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from deployment import Deployment, new_deployment

from infra.ports import free_port
from infra.provisioning import provision_topics
from schemas.codec import decode
from schemas.events import (
    DemandForecast,
    Event,
    GenerationEnded,
    GenerationFinished,
    GenerationRequested,
    GenerationStarted,
    ReplicasDesired,
    ReplyStored,
    TokensGenerated,
    UsageRecorded,
)
from schemas.ids import text_digest
from schemas.values import Usage
from streams.log.kafka import KafkaLog
from streams.log.log import BEGINNING, END
from streams.log.steps import Output, Partition
from tests.streams.events import MODEL, admitted, finished, leased, registered, submitted

pytestmark = pytest.mark.servers

ROLES = ("turns", "dispatch", "settlement", "demand")
E = TypeVar("E", bound=Event)


class Streams:
    """The processes of a namespace."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self._environment = environment
        self._folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, role: str, metrics_port: int = 0) -> None:
        own = {
            "TURNLOG_STATUS_FILE": str(self._status(role)),
            "TURNLOG_METRICS_PORT": str(metrics_port),
            "TURNLOG_DEMAND_WINDOW_S": "1",
            "TURNLOG_DEMAND_FOLDER": str(self._folder / "demand"),
        }
        self._status(role).unlink(missing_ok=True)
        with (self._folder / f"{role}.log").open("ab") as log:
            self.running[role] = subprocess.Popen(
                [sys.executable, "-m", "streams", role],
                env={**os.environ, **self._environment, **own},
                stderr=log,
                stdout=log,
            )

    def ready(self, role: str) -> bool:
        try:
            return bool(json.loads(self._status(role).read_text())["state"] == "ready")
        except FileNotFoundError:
            return False

    def kill(self, role: str) -> None:
        self.running[role].kill()
        self.running[role].wait(10)

    def stop(self) -> dict[str, int]:
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        return {role: process.wait(30) for role, process in self.running.items()}

    def _status(self, role: str) -> Path:
        return self._folder / f"{role}.json"


class Eyes:
    """Reads topics from a moment on."""

    def __init__(self, log: KafkaLog, *topics: str, start: Any = BEGINNING) -> None:
        self._reader = log.reader([Partition(t, n) for t in topics for n in range(log.partitions(t))], start)
        self.seen: list[Event] = []

    def await_event(self, kind: type[E], fits: Callable[[E], bool] = lambda _: True, timeout_s: float = 30.0) -> E:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for event in self.seen:
                if isinstance(event, kind) and fits(event):
                    return event
            self.seen.extend(decode(record.value, record.headers).event for record in self._reader.poll(0.1))
        raise AssertionError(f"no {kind.__name__} within {timeout_s} s, only {self.seen}")


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 40.0) -> None:
    deadline = time.monotonic() + timeout_s
    pause = 0.05
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(pause)


@pytest.fixture
def deployed(servers: Any) -> Iterator[Deployment]:
    mine = new_deployment(servers)
    provision_topics(mine.settings())
    yield mine
    mine.remove()


@pytest.fixture
def streams(deployed: Deployment, tmp_path: Path) -> Iterator[Streams]:
    made = Streams(deployed.environment(), tmp_path)
    yield made
    for process in made.running.values():
        if process.poll() is None:
            process.kill()
            process.wait(10)


@pytest.mark.timeout(180)
def test_a_message_goes_the_whole_way_also_when_turns_and_dispatch_are_killed_on_it(
    deployed: Deployment, streams: Streams
) -> None:
    for role in ROLES:
        streams.start(role)
    wait_until(lambda: all(streams.ready(role) for role in ROLES), "all processes ready")
    log = KafkaLog(deployed.kafka_bootstrap, deployed.namespace, "test")
    writer = log.writer("test")
    inbox = Eyes(log, "inference.default.free", start=END)
    epoch = writer.append(Output(event=registered(0))).result(10).offset
    eyes = Eyes(log, "messages", "usage", "tokens", "demand")
    now_ms = time.time_ns() // 1_000_000

    writer.append(Output(event=submitted(1, submitted_at_ms=now_ms))).result(10)
    request = inbox.await_event(GenerationRequested)
    assert (request.epoch, request.attempt) == (epoch, 1)

    # A restart of both, on a running reply, changes nothing for it.
    for role in ("turns", "dispatch"):
        streams.kill(role)
        streams.start(role)
    _generate(writer, request, "hello")
    assert eyes.await_event(ReplyStored).text == "hello"
    assert eyes.await_event(UsageRecorded).output_tokens == 1
    writer.append(Output(event=leased(0, epoch, renewal=1))).result(10)
    writer.append(Output(event=submitted(2, submitted_at_ms=now_ms))).result(10)
    following = inbox.await_event(GenerationRequested, lambda event: event.reply_id == "rep_a2")
    assert [message.content for message in following.prompt] == ["message 1", "hello", "message 2"]
    assert following.attempt == 1

    # Nobody renews the lease: the reply is taken back, and goes to the next worker.
    writer.append(Output(event=registered(0, instance="next"))).result(10)
    again = inbox.await_event(GenerationRequested, lambda event: event.attempt == 2)
    _generate(writer, again, "again")
    assert eyes.await_event(ReplyStored, lambda event: event.reply_id == "rep_a2").text == "again"

    # A decline goes the way of all ends.
    writer.append(Output(event=submitted(3, model="none", submitted_at_ms=now_ms))).result(10)
    refused = eyes.await_event(ReplyStored, lambda event: event.reply_id == "rep_a3")
    assert refused.error is not None
    assert refused.error.code == "model_unknown"

    arrivals = eyes.await_event(DemandForecast, lambda event: event.arrivals > 0)
    assert (arrivals.pool, arrivals.model, arrivals.tier) == ("default", MODEL, "free")
    desired = eyes.await_event(ReplicasDesired, lambda event: event.slots_per_worker > 0)
    assert (desired.pool, desired.model, desired.replicas, desired.slots_per_worker) == ("default", MODEL, 1, 2)
    eyes.await_event(GenerationEnded, lambda event: event.reply_id == "rep_a3")
    ends = [event for event in eyes.seen if isinstance(event, GenerationEnded)]
    assert len({event.reply_id for event in ends}) == len(ends) == 3
    assert set(streams.stop().values()) == {0}
    log.close()


@pytest.mark.timeout(180)
def test_demand_is_served_by_model_until_nothing_is_heard_and_what_it_learnt_outlives_a_kill(
    deployed: Deployment, streams: Streams
) -> None:
    port = free_port()
    streams.start("demand", port)
    wait_until(lambda: streams.ready("demand"), "demand ready")
    log = KafkaLog(deployed.kafka_bootstrap, deployed.namespace, "test")
    writer = log.writer("test")
    eyes = Eyes(log, "demand")
    sent = count()
    # Two models in one pool, whose leases and finishes do not name them.
    epochs = [
        writer.append(Output(event=registered(inbox, model=model, slots=4))).result(10).offset
        for inbox, model in enumerate(("large", "small"))
    ]

    def lease() -> None:
        for inbox, epoch in enumerate(epochs):
            writer.append(Output(event=leased(inbox, epoch, renewal=next(sent)))).result(10)

    def ask() -> bool:
        lease()
        for one in range(20 * (number := next(sent)), 20 * number + 20):
            writer.append(Output(event=admitted(one, model="large"))).result(10)
            writer.append(Output(event=finished(one, epoch=epochs[0], ran_ms=4_000))).result(10)
        return number_of(served(port), "turnlog_desired_replicas", "large") > 1

    # Of arrivals and service time, more workers are desired than the one that is wanted in any case; of that model.
    wait_until(ask, "more replicas are served")
    assert 'turnlog_demand_arrivals_per_s{model="large",pool="default",tier="free"}' in served(port)
    assert number_of(served(port), "turnlog_desired_replicas", "small") == 1
    assert number_of(served(port), "turnlog_workers", "small") == 1
    eyes.await_event(ReplicasDesired, lambda event: event.model == "large" and event.replicas > 1)
    wait_until(lambda: 'pool="default"' not in served(port), "no news, no series")
    assert "# HELP turnlog_desired_replicas" in served(port)

    streams.kill("demand")
    killed_ms = time.time_ns() // 1_000_000
    streams.start("demand", port)
    wait_until(lambda: streams.ready("demand"), "demand ready again")

    def both() -> bool:
        lease()
        return all(number_of(served(port), "turnlog_workers", model) == 1 for model in ("large", "small"))

    # By leases alone: whose they are was kept.
    wait_until(both, "both served again")

    def again(model: str) -> int:
        since = eyes.await_event(
            ReplicasDesired, lambda event: event.model == model and event.window_start_ms > killed_ms
        )
        return since.replicas

    # Nothing was asked for since: what is desired is from before the kill.
    assert again("large") > 1
    assert again("small") == 1
    identities = [event.identity() for event in eyes.seen]
    assert len(set(identities)) == len(identities)
    assert set(streams.stop().values()) == {0}
    log.close()


def served(port: int) -> str:
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
            return str(response.read().decode())
    except URLError:
        return ""


def number_of(text: str, name: str, model: str) -> float:
    found = re.search(rf'^{name}{{model="{model}",pool="default"}} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def _generate(writer: Any, request: GenerationRequested, text: str) -> None:
    mine = {
        "reply_id": request.reply_id,
        "conversation_id": request.conversation_id,
        "generation_id": request.generation_id,
        "attempt": request.attempt,
    }
    usage = Usage(input_tokens=3, output_tokens=1)
    writer.append(
        Output(event=GenerationStarted(**mine, model=request.model, worker="w", started_at_ms=request.submitted_at_ms))
    )
    writer.append(Output(event=TokensGenerated(**mine, seq=1, text=text, tokens=1)))
    end = GenerationEnded(
        **mine,
        seq=2,
        status="completed",
        ended_at_ms=time.time_ns() // 1_000_000,
        usage=usage,
        text_bytes=len(text.encode()),
        text_digest=text_digest(text),
    )
    writer.append(Output(event=end)).result(10)
    done = GenerationFinished(
        pool=request.pool,
        inbox=0,
        epoch=request.epoch,
        reply_id=request.reply_id,
        generation_id=request.generation_id,
        attempt=request.attempt,
        status="completed",
        usage=usage,
        queued_ms=5,
    )
    writer.append(Output(event=done)).result(10)
