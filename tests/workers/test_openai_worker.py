"""A whole worker on the log in memory whose engine calls a server that misbehaves."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from workers import fake_openai as fakes
from workers.fake_openai import WHOLE, FakeOpenAi, engine_on, provider, status, stream
from workers.test_worker import Bench

from schemas.events import WorkerLeased
from streams.log.memory import MemoryLog

TEXT = "héllo wörld 🦊"


@pytest.fixture
async def fake() -> AsyncIterator[FakeOpenAi]:
    async with FakeOpenAi() as server:
        yield server


@pytest.fixture
async def bench(fake: FakeOpenAi) -> AsyncIterator[Bench]:
    made = Bench(MemoryLog(), engine_on(provider(fake.base_url, cache_salt=True, priority="low_first")))
    await made.start()
    yield made
    made.task.cancel()
    with contextlib.suppress(asyncio.CancelledError, BaseExceptionGroup):
        await made.task
    await made.engine.shutdown(0.0)


async def test_a_stream_that_breaks_is_handed_back_and_the_next_attempt_s_text_is_the_reply(
    fake: FakeOpenAi, bench: Bench
) -> None:
    fake.next(stream(fakes.delta("half an "), then="cut"), stream(WHOLE))
    bench.request("r", "hello")
    await bench.until(lambda: bench.finished("r") is not None)
    finished = bench.finished("r")
    assert finished is not None
    assert finished.returned
    assert bench.end("r") is None
    assert bench.text("r") == "half an "
    bench.request("r", "hello", attempt=2)
    await bench.until(lambda: bench.end("r") is not None)
    reply = bench.folded("r")
    assert (reply.phase, reply.text) == ("ended", TEXT)
    end = bench.end("r")
    assert end is not None
    assert end.usage is not None
    assert (end.usage.input_tokens, end.usage.output_tokens, end.usage.counted) == (7, 5, True)


BAD_KEY = {"error": {"message": f"Incorrect API key provided: {fakes.KEY}.", "code": "invalid_api_key"}}


@pytest.mark.parametrize(
    ("behaviour", "reason", "detail"),
    [
        (
            status(401, BAD_KEY),
            "interrupted",
            "fake: HTTP 401 invalid_api_key: Incorrect API key provided: [key].",
        ),
        (status(502), "interrupted", "fake: HTTP 502: it is 502"),
        (status(429, retry_after="900"), "engine_overloaded", "fake: HTTP 429: it is 429"),
        (stream(fakes.delta("half an "), then="cut"), "interrupted", "fake: the connection broke (RemoteProtocolError"),
    ],
    ids=["a wrong key", "a broken gateway", "no room", "a cut stream"],
)
async def test_what_is_handed_back_says_what_the_provider_said(
    fake: FakeOpenAi, bench: Bench, behaviour: fakes.Behaviour, reason: str, detail: str
) -> None:
    fake.usual = behaviour
    bench.request("r", "hello")
    await bench.until(lambda: bench.finished("r") is not None)
    finished = bench.finished("r")
    assert finished is not None
    assert (finished.returned, finished.reason) == (True, reason)
    assert finished.detail.startswith(detail)
    assert fakes.KEY not in finished.detail


async def test_a_refusal_reaches_the_reader_with_its_cause(fake: FakeOpenAi, bench: Bench) -> None:
    fake.next(status(400, {"error": {"message": "no such role", "code": "bad_role"}}))
    bench.request("r", "hello")
    end = await bench.ended("r")
    assert (end.status, end.error and end.error.code) == ("refused", "invalid_request")
    assert end.error is not None
    assert end.error.detail == "fake: HTTP 400 bad_role: no such role"


async def test_a_cancel_frees_the_upstream_and_keeps_the_partial_text(fake: FakeOpenAi, bench: Bench) -> None:
    fake.next(stream(fakes.delta("some"), then="hang"))
    bench.request("r", "hello")
    await bench.until(lambda: bool(bench.pieces("r")))
    bench.cancel("r")
    end = await bench.ended("r")
    assert end.status == "cancelled"
    assert bench.text("r") == "some"
    assert end.usage is not None
    assert not end.usage.counted
    await fake.until(lambda: fake.active == 0)


async def test_nothing_of_a_real_request_but_its_prompt_reaches_the_upstream(fake: FakeOpenAi, bench: Bench) -> None:
    fake.next(stream(WHOLE))
    request = bench.request("reply_private", "hello")
    await bench.ended("reply_private")
    (sent,) = fake.requests
    told = json.dumps(sent.body) + json.dumps(sent.headers)
    assert set(sent.body) == {
        *("model", "messages", "max_tokens", "stream", "stream_options", "temperature", "top_p", "cache_salt"),
        "priority",
    }
    for private in (request.reply_id, request.generation_id, f'"{request.account_id}"', f'"{request.conversation_id}"'):
        assert private not in told


async def test_a_worker_whose_provider_is_out_counts_as_full(fake: FakeOpenAi, bench: Bench) -> None:
    fake.usual = status(429, retry_after="900")
    bench.request("r", "hello")
    await bench.until(lambda: bench.finished("r") is not None)
    finished = bench.finished("r")
    assert finished is not None
    assert finished.returned
    await bench.until(lambda: bench.of(WorkerLeased)[-1].free_slots == 0)
    assert len(fake.requests) == 1
