"""Providers that fail: their reader, the API, the log and the views have the sentence that says of what."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from system.product import Product, eventually
from workers import fake_openai as fakes
from workers.fake_openai import WHOLE, Exchange, FakeOpenAi, status, stream

from inference_workers.assignments import DEADLINE
from projections.clickhouse.client import Database
from schemas.codec import decode
from schemas.events import GenerationFinished
from schemas.topics import WORKERS
from streams.log.kafka import KafkaLog
from streams.log.log import since
from streams.log.steps import Partition

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

BAD_KEY = {"error": {"message": f"Incorrect API key provided: {fakes.KEY}.", "code": "invalid_api_key"}}
FAILURES: dict[str, tuple[fakes.Behaviour, str]] = {
    "key": (status(401, BAD_KEY), "HTTP 401 invalid_api_key: Incorrect API key provided: [key]."),
    "gateway": (status(502), "HTTP 502: it is 502"),
    "cut": (stream(fakes.delta("half an "), then="cut"), "the connection broke (RemoteProtocolError"),
}
"""What is asked for -> what the provider does once, or always, and what is told of it."""

WHOLE_TEXT = "héllo wörld 🦊"
SETTINGS = {
    "TURNLOG_OPENAI_KEY": fakes.KEY,
    "TURNLOG_OPENAI_ATTEMPTS_MAX": "1",
    "TURNLOG_OPENAI_BREAKER_FAILURES": "1000",
    "TURNLOG_DEADLINE_S": "12",
}


class Upstream:
    """The provider, in a thread with an event loop of its own."""

    def __init__(self) -> None:
        self.fake = FakeOpenAi()
        self.fake.usual = self._answer
        self._asked: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.fake.start(), self._loop).result(10)

    async def _answer(self, exchange: Exchange) -> None:
        asked = exchange.body["messages"][-1]["content"]
        self._asked[asked] += 1
        how, _, often = asked.partition(" ")
        if often == "once" and self._asked[asked] > 1:
            await stream(WHOLE)(exchange)
        else:
            await FAILURES[how][0](exchange)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.fake.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    data: Path = tmp_path_factory.mktemp("providers")
    upstream = Upstream()
    env = SETTINGS | {"TURNLOG_OPENAI_BASE_URL": upstream.fake.base_url}
    running = Product(data, "--engine", "openai_compatible", "--workers", "1", env=env)
    yield running
    running.close()
    upstream.close()


def handed_back(product: Product, reply_id: str) -> list[GenerationFinished]:
    """What the worker told of a reply's attempts that it handed back."""
    log = KafkaLog(product.parts()["kafka"]["address"], "turnlog", "test")
    numbers = range(log.partitions(WORKERS.name))
    reader = log.reader([Partition(WORKERS.name, number) for number in numbers], since(0))
    found: list[GenerationFinished] = []

    def read() -> list[GenerationFinished]:
        told = [decode(record.value, record.headers).event for record in reader.poll(1.0)]
        found.extend(
            event
            for event in told
            if isinstance(event, GenerationFinished) and event.reply_id == reply_id and event.returned
        )
        return found

    try:
        return list(eventually("it is in the log", read))
    finally:
        reader.close()
        log.close()


@pytest.mark.parametrize("how", FAILURES)
def test_a_reply_that_was_tried_again_says_what_the_provider_said(product: Product, how: str) -> None:
    _, sentence = FAILURES[how]
    client = product.client()
    reply_id = client.send(f"{how} once")["reply"]["id"]
    seen = client.read(reply_id)
    assert (seen.text, seen.attempt) == (WHOLE_TEXT, 2)
    [told] = [data for _, kind, data in seen.events if kind == "reset"]

    def stored() -> dict[str, Any] | None:
        message = client.message(reply_id)
        return message if message["status"] == "completed" else None

    [reset] = eventually("it is stored", stored)["resets"]
    [event] = handed_back(product, reply_id)
    assert reset == told == {"attempt": 2, "reason": "interrupted", "detail": event.detail}
    assert sentence in event.detail
    assert fakes.KEY not in event.detail
    views = Database(product.parts()["clickhouse"]["address"], "turnlog")
    rows = eventually(
        "it is in the views",
        lambda: views.query(
            "SELECT void_reasons, void_details FROM messages WHERE message_id = %(id)s AND status = 'completed'",
            {"id": reply_id},
        ),
    )
    assert rows == [(["interrupted"], [event.detail])]


def test_a_reply_that_is_given_up_says_what_the_provider_said(product: Product) -> None:
    client = product.client()
    replies = {how: client.send(f"{how} always")["reply"]["id"] for how in FAILURES}
    with ThreadPoolExecutor(len(replies)) as pool:
        ends = {how: seen.end for how, seen in zip(replies, pool.map(client.read, replies.values()), strict=True)}
    for how, (_, sentence) in FAILURES.items():
        end = ends[how]
        assert end is not None
        assert (end["status"], end["error"]["code"]) == ("failed", "deadline_exceeded")
        message = client.message(replies[how])
        assert message["error"]["detail"] == end["error"]["detail"]
        assert any(sentence in reset["detail"] for reset in message["resets"])
        # At its deadline it waits for another try, which is what dispatch tells of, or a worker has it.
        assert sentence in end["error"]["detail"] or end["error"]["detail"] == DEADLINE.detail
        assert fakes.KEY not in str(message)
