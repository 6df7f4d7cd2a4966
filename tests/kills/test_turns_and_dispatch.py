"""Two instances of turns and of dispatch, killed, stopped and cut off for minutes, under a steady load.

The length is `TURNLOG_KILLS_S` seconds (default 60; 360 by `make kills`).
"""

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from system.product import Client, Product, eventually

DURATION_S = float(os.environ.get("TURNLOG_KILLS_S", "60"))
SENDS_PER_S = 10

pytestmark = [pytest.mark.system, pytest.mark.kills, pytest.mark.timeout(DURATION_S + 400)]


@dataclass
class Sent:
    """What was accepted, by conversation, in the order of acceptance."""

    replies: dict[str, list[str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


def converse(client: Client, sent: Sent, stop: threading.Event, pace_s: float) -> None:
    """A user: sends one message after the other into one conversation, without waiting for replies."""
    conversation_id: str | None = None
    while not stop.is_set():
        body = {"conversation_id": conversation_id} if conversation_id else {}
        answer = client.send({"chunks": 3, "every_ms": 5}, **body)
        conversation_id = answer["conversation_id"]
        with sent.lock:
            sent.replies.setdefault(answer["conversation_id"], []).append(answer["reply"]["id"])
        stop.wait(pace_s)


def wreck(product: Product, stop: threading.Event) -> list[str]:
    """Kill one of the four every ten seconds; stop one for 20 s; kill the broker once in the middle."""
    chance = random.Random(7)
    names = ["streams-turns-0", "streams-turns-1", "streams-dispatch-0", "streams-dispatch-1"]
    done: list[str] = []
    started = time.monotonic()
    broker_killed = paused = False
    while not stop.wait(10.0):
        name = chance.choice(names)
        elapsed = time.monotonic() - started
        if elapsed > DURATION_S / 2 and not broker_killed:
            broker_killed = True
            product.kill("kafka")
            done.append("kafka")
        elif elapsed > DURATION_S / 4 and not paused:
            paused = True
            pid = product.signal(name, signal.SIGSTOP)
            stop.wait(20.0)
            os.kill(pid, signal.SIGCONT)
            done.append(f"paused {name}")
        else:
            product.kill(name)
            done.append(name)
    return done


def test_nothing_accepted_is_lost_or_doubled(tmp_path_factory: pytest.TempPathFactory) -> None:
    product = Product(tmp_path_factory.mktemp("kills"), "--engine", "scripted", "--streams", "2", "--workers", "2")
    try:
        sent, stop = Sent(), threading.Event()
        users = 20
        with ThreadPoolExecutor(users + 1) as pool:
            wrecking = pool.submit(wreck, product, stop)
            talking = [pool.submit(converse, product.client(), sent, stop, users / SENDS_PER_S) for _ in range(users)]
            threading.Event().wait(DURATION_S)
            stop.set()
            for talk in talking:
                talk.result()
            assert wrecking.result()
        product.wait_ready()
        check(product, sent)
    finally:
        product.close()


def check(product: Product, sent: Sent) -> None:
    client = product.client()
    total = sum(len(replies) for replies in sent.replies.values())
    assert total > DURATION_S, f"only {total} sends were accepted"
    for conversation_id, replies in sent.replies.items():
        check_conversation(client, conversation_id, replies)
    everything = {reply for replies in sent.replies.values() for reply in replies}

    def billed() -> bool:
        listed = client.pages("/v1/usage/records")
        records = [record["message_id"] for record in listed if record["record_kind"] == "reply"]
        assert len(records) == len(set(records)), "a reply is billed twice"
        return set(records) == everything

    eventually("each reply is billed once", billed, within_s=60)


def check_conversation(client: Client, conversation_id: str, replies: list[str]) -> None:
    def ended() -> list[dict[str, Any]] | None:
        messages = client.pages(f"/v1/conversations/{conversation_id}/messages")
        return None if any(m["status"] in ("queued", "running") for m in messages) else messages

    messages = eventually(f"all replies of {conversation_id} have ended", ended, within_s=180)
    assert [m["position"] for m in messages] == list(range(1, 2 * len(replies) + 1))
    assert [m["id"] for m in messages if m["role"] == "assistant"] == replies, "in the order of acceptance"
    for message in messages:
        if message["role"] == "assistant":
            assert message["status"] == "completed", message
            assert message["usage"]["output_tokens"] == 3, message
