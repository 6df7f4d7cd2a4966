"""The engine on a real server that misbehaves: what is asked again, what is told, what is never taken for success."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest
import structlog
from pydantic import ValidationError
from workers import fake_openai as fakes
from workers.fake_openai import DONE, KEY, WHOLE, Behaviour, FakeOpenAi, engine_on, provider, status, stream

from inference_workers.engine import (
    Chunk,
    ContextTooLong,
    Engine,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    GenerationRequest,
    Interrupted,
    InvalidRequest,
)
from inference_workers.engines.openai_compatible_settings import OpenAiCompatibleSettings
from inference_workers.engines.providers import Limits
from inference_workers.registry import make
from inference_workers.settings import WorkerSettings
from schemas.values import PromptMessage, Usage

WITHIN_S = 10.0
TEXT = "héllo wörld 🦊"


@pytest.fixture
async def fake() -> AsyncIterator[FakeOpenAi]:
    async with FakeOpenAi() as server:
        yield server


@pytest.fixture
async def other() -> AsyncIterator[FakeOpenAi]:
    async with FakeOpenAi() as server:
        yield server


def ask(**members: object) -> GenerationRequest:
    messages = (PromptMessage(role="user", content="say something"),)
    return GenerationRequest(**({"id": "gen_1", "messages": messages, "max_tokens": 8, "seed": 7} | members))  # type: ignore[arg-type]


class Read:
    """Everything that a generation gave."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.error: EngineError | None = None
        self.usage = Usage(input_tokens=0, output_tokens=0)

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def finish(self) -> str | None:
        return self.chunks[-1].finish if self.chunks else None


async def read(engine: Engine, request: GenerationRequest | None = None) -> Read:
    got = Read()
    generation = engine.generate(request or ask())
    async with asyncio.timeout(WITHIN_S):
        try:
            async for chunk in generation:
                got.chunks.append(chunk)
        except EngineError as error:
            got.error = error
    got.usage = generation.usage
    return got


async def on(server: FakeOpenAi, *behaviours: Behaviour, **patience: float) -> Read:
    """One generation on an engine of its own, answered like this."""
    server.next(*behaviours)
    engine = engine_on(provider(server.base_url), **patience)
    await engine.start()
    try:
        got = await read(engine)
        assert engine.stats().active == 0
        return got
    finally:
        await engine.shutdown(0.0)


async def test_a_stream_gives_its_text_finish_and_the_upstream_s_usage(fake: FakeOpenAi) -> None:
    got = await on(fake, stream(WHOLE))
    assert (got.text, got.finish, got.error) == (TEXT, "stop", None)
    assert got.usage == Usage(input_tokens=7, output_tokens=5, cached_input_tokens=3, counted=True)
    assert sum(chunk.tokens for chunk in got.chunks) == 5


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(tuple(fakes.by_the_byte(WHOLE)), id="each byte alone"),
        pytest.param((WHOLE.replace(b"\n", b"\r\n"),), id="CRLF"),
        pytest.param(tuple(fakes.by_the_byte(WHOLE.replace(b"\n", b"\r\n"))), id="CRLF, each byte alone"),
        pytest.param((b": hello\n\n", WHOLE.replace(b"data: ", b": hb\ndata:")), id="comments"),
    ],
)
async def test_however_a_stream_is_written_it_is_read_the_same(fake: FakeOpenAi, pieces: tuple[bytes, ...]) -> None:
    got = await on(fake, stream(*pieces))
    assert (got.text, got.finish, got.usage.output_tokens) == (TEXT, "stop", 5)


@pytest.mark.parametrize("then", ["end", "cut", "hang"])
async def test_after_a_finish_the_answer_is_whole_whatever_becomes_of_the_rest(
    fake: FakeOpenAi, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference_workers.engines.openai_upstream.USAGE_S", 0.02)
    got = await on(fake, stream(fakes.delta("hello"), fakes.ended("length"), then=then))
    assert (got.text, got.finish, got.error) == ("hello", "length", None)
    assert got.usage.output_tokens == 1
    assert got.usage.input_tokens > 0
    assert not got.usage.counted


HELLO = fakes.delta("hello")
IN_BAND = fakes.event({"error": {"message": "CUDA out of memory", "type": "InternalServerError", "code": 500}})


@pytest.mark.parametrize(
    ("behaviour", "cause"),
    [
        pytest.param(stream(HELLO), "without a finish_reason", id="cut without DONE"),
        pytest.param(stream(HELLO, DONE), "without a finish_reason", id="DONE without finish"),
        pytest.param(stream(HELLO, HELLO[:20], then="cut"), "the connection broke", id="cut inside an event"),
        pytest.param(stream(HELLO, HELLO[:-1]), "without a finish_reason", id="ended inside an event"),
        pytest.param(stream(HELLO, then="hang"), "no further token within 0.3 s", id="silence"),
        pytest.param(stream(HELLO, b": hb\n\n" * 9, then="hang"), "no further token", id="only comments"),
        pytest.param(stream(HELLO, IN_BAND, DONE), "internalservererror: CUDA out of memory", id="error object"),
        pytest.param(stream(HELLO, b"data: {nonsense\n\n"), "a chunk that is no chunk", id="malformed"),
        pytest.param(stream(HELLO, fakes.ended("abort"), DONE), "finish_reason abort", id="aborted"),
    ],
)
async def test_a_stream_that_breaks_after_its_first_token_is_interrupted_and_not_asked_again(
    fake: FakeOpenAi, behaviour: Behaviour, cause: str
) -> None:
    got = await on(fake, behaviour, token_s=0.3)
    assert got.text == "hello"
    assert isinstance(got.error, Interrupted)
    assert str(got.error).startswith("fake: ")
    assert cause in str(got.error)
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(status(500), id="500"),
        pytest.param(status(502), id="502"),
        pytest.param(status(503), id="503"),
        pytest.param(status(408), id="408"),
        pytest.param(status(409), id="409"),
        pytest.param(status(429), id="429"),
        pytest.param(fakes.hang_up, id="hangs up"),
        pytest.param(stream(fakes.chunk({"role": "assistant"})), id="ends without a token"),
        pytest.param(stream(IN_BAND, DONE), id="error object at once"),
        pytest.param(stream(b"<html>", kind="text/html"), id="wrong type"),
        pytest.param(stream(b'{"choices": []}', kind="application/json"), id="no stream"),
        pytest.param(stream(b"data: nonsense\n\n"), id="malformed"),
        pytest.param(stream(fakes.ended("abort")), id="aborted"),
    ],
)
async def test_what_fails_before_the_first_token_is_asked_again(fake: FakeOpenAi, behaviour: Behaviour) -> None:
    it_was_asked_again(fake, await on(fake, behaviour, stream(WHOLE)))


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(fakes.silent, id="no headers"),
        pytest.param(stream(then="hang"), id="headers and silence"),
        pytest.param(stream(b": hb\n\n", fakes.chunk({"role": "assistant"}), then="hang"), id="no first token"),
    ],
)
async def test_who_says_nothing_in_time_is_asked_again(fake: FakeOpenAi, behaviour: Behaviour) -> None:
    it_was_asked_again(fake, await on(fake, behaviour, stream(WHOLE), headers_s=0.5, first_token_s=0.5))


def it_was_asked_again(fake: FakeOpenAi, got: Read) -> None:
    assert (got.text, got.finish, got.error) == (TEXT, "stop", None)
    assert got.usage == Usage(input_tokens=7, output_tokens=5, cached_input_tokens=3)
    assert len(fake.requests) == 2


ONCE = Limits(attempts_max=1)


async def test_a_kept_connection_that_is_closed_under_a_request_is_no_failure(fake: FakeOpenAi) -> None:
    engine = engine_on(provider(fake.base_url), limits=ONCE)
    await engine.start()
    assert (await read(engine)).finish == "length"
    fake.next(fakes.hang_up)
    assert (await read(engine)).finish == "length"
    assert len(fake.requests) == 3
    await engine.shutdown(0.0)


async def test_a_new_connection_that_is_closed_under_a_request_is_one(fake: FakeOpenAi) -> None:
    engine = engine_on(provider(fake.base_url, health_path=""), limits=ONCE)
    await engine.start()
    fake.next(fakes.hang_up)
    got = await read(engine)
    assert isinstance(got.error, Interrupted)
    assert "the connection broke" in str(got.error)
    await engine.shutdown(0.0)


async def test_a_retry_waits_for_as_long_as_the_provider_asks(fake: FakeOpenAi) -> None:
    began = time.monotonic()
    got = await on(fake, status(429, retry_after_ms="120"), stream(WHOLE))
    assert got.finish == "stop"
    assert time.monotonic() - began >= 0.12


@pytest.mark.parametrize(
    ("behaviour", "error", "cause"),
    [
        (
            status(400, {"error": {"message": "bad top_p", "code": "bad"}}),
            InvalidRequest,
            "fake: HTTP 400 bad: bad top_p",
        ),
        (status(422, {"detail": "no"}), InvalidRequest, "fake: HTTP 422: no"),
        (status(404, {"error": {"message": "no such model"}}), InvalidRequest, "fake: HTTP 404: no such model"),
        (status(401), Interrupted, "fake: HTTP 401: it is 401"),
        (status(429, retry_after="600"), EngineOverloaded, "fake: HTTP 429: it is 429"),
        (fakes.too_long(512), ContextTooLong, "maximum context length is 512"),
        (stream(fakes.event({"error": {"message": "bad", "code": 400}})), InvalidRequest, "bad"),
        (stream(fakes.ended("content_filter"), DONE), InvalidRequest, "content filter"),
        (stream(fakes.ended("tool_calls"), DONE), EngineError, "called a tool"),
        (stream(fakes.ended("because"), DONE), EngineError, "because"),
    ],
)
async def test_what_will_not_work_again_is_told_at_once(
    fake: FakeOpenAi, behaviour: Behaviour, error: type[EngineError], cause: str
) -> None:
    got = await on(fake, behaviour)
    assert type(got.error) is error
    assert cause in str(got.error)
    assert len(fake.requests) == 1
    assert got.chunks == []


async def test_when_every_attempt_fails_the_causes_are_told(fake: FakeOpenAi) -> None:
    fake.usual = status(500, {"error": {"message": f"no, {KEY}"}})
    got = await on(fake)
    assert isinstance(got.error, Interrupted)
    assert str(got.error) == "fake: HTTP 500: no, [key]; fake: HTTP 500: no, [key]"
    assert len(fake.requests) == 2
    assert got.usage.output_tokens == 0


async def test_when_all_are_busy_the_engine_is_overloaded(fake: FakeOpenAi, other: FakeOpenAi) -> None:
    fake.usual, other.usual = status(429), status(503)
    engine = engine_on(provider(fake.base_url, "north"), provider(other.base_url, "south"))
    await engine.start()
    got = await read(engine)
    assert isinstance(got.error, EngineOverloaded)
    assert "north: HTTP 429" in str(got.error)
    assert "south: HTTP 503" in str(got.error)
    await engine.shutdown(0.0)


@pytest.mark.parametrize("code", [500, 429, 401, 404])
async def test_the_next_provider_answers_with_its_own_model_and_words(
    fake: FakeOpenAi, other: FakeOpenAi, code: int
) -> None:
    fake.usual = status(code, retry_after="60")
    south = provider(other.base_url, "south", model="bigger", max_tokens_as="max_completion_tokens")
    engine = engine_on(provider(fake.base_url, "north"), south)
    await engine.start()
    got = await read(engine)
    assert got.finish == "length"
    assert other.requests[0].body["model"] == "bigger"
    assert other.requests[0].body["max_completion_tokens"] == 8
    await engine.shutdown(0.0)


async def test_where_nothing_listens_the_next_provider_is_asked(fake: FakeOpenAi) -> None:
    engine = engine_on(provider(fakes.refusing_url(), "north"), provider(fake.base_url, "south"))
    with structlog.testing.capture_logs() as logs:
        await engine.start()
        assert (await read(engine)).finish == "length"
    assert any("no connection" in entry.get("reason", "") for entry in logs)
    assert KEY not in str(logs)
    await engine.shutdown(0.0)


async def test_an_open_breaker_leaves_a_broken_provider_alone_and_says_so(fake: FakeOpenAi) -> None:
    fake.usual = status(500)
    limits = Limits(attempts_each=1, breaker_failures=3, breaker_open_s=0.2, wait_max_s=0.0, fallback_after_s=0.0)
    engine = engine_on(provider(fake.base_url), limits=limits)
    await engine.start()
    assert [type((await read(engine)).error) for _ in range(3)] == [Interrupted] * 3
    got = await read(engine)
    assert isinstance(got.error, EngineOverloaded)
    assert str(got.error) == "not asked, because busy or broken shortly before: fake"
    assert len(fake.requests) == 3
    assert engine.stats().age_s > 60
    fake.usual = fake.answer
    async with asyncio.timeout(WITHIN_S):
        while (got := await read(engine)).finish is None:
            assert isinstance(got.error, EngineOverloaded)
    assert engine.stats().age_s == 0.0
    await engine.shutdown(0.0)


async def test_generations_wait_for_the_one_that_tries_a_provider_again(fake: FakeOpenAi) -> None:
    fake.usual = status(500)
    limits = Limits(attempts_each=1, breaker_failures=1, breaker_open_s=0.05, breaker_probe_s=0.05, backoff_base_s=0.01)
    engine = engine_on(provider(fake.base_url), limits=limits, slots=5)
    await engine.start()
    assert isinstance((await read(engine)).error, Interrupted)
    assert engine.stats().age_s == 0.0
    fake.usual = fake.answer
    assert [got.finish for got in await asyncio.gather(*(read(engine) for _ in range(5)))] == ["length"] * 5
    await engine.shutdown(0.0)


async def test_retries_stop_when_their_budget_is_spent(fake: FakeOpenAi) -> None:
    fake.usual = status(500)
    limits = Limits(backoff_base_s=0.0, backoff_max_s=0.0, retry_share=0.2, retry_burst=2.0, breaker_failures=1000)
    engine = engine_on(provider(fake.base_url), limits=limits)
    await engine.start()
    for _ in range(20):
        assert isinstance((await read(engine)).error, Interrupted)
    assert len(fake.requests) <= 20 + 2 + 20 * 0.2
    await engine.shutdown(0.0)


@pytest.mark.parametrize(
    "behaviour",
    [fakes.silent, stream(then="hang"), stream(HELLO, then="hang")],
    ids=["before the headers", "before the first token", "between tokens"],
)
async def test_a_close_frees_the_upstream_s_slot_within_250_ms(fake: FakeOpenAi, behaviour: Behaviour) -> None:
    fake.usual = behaviour
    engine = engine_on(provider(fake.base_url))
    await engine.start()
    generation = engine.generate(ask())
    reading = asyncio.ensure_future(anext(generation, None))
    await fake.until(lambda: fake.active == 1)
    began = time.monotonic()
    await generation.aclose()
    await fake.until(lambda: fake.active == 0)
    assert time.monotonic() - began < 0.25
    assert engine.stats().active == 0
    await reading
    await engine.shutdown(0.0)
    assert len(fake.requests) == 1


async def test_a_close_while_waiting_to_ask_again_asks_nobody(fake: FakeOpenAi) -> None:
    fake.usual = status(429, retry_after="5")
    engine = engine_on(provider(fake.base_url), limits=Limits(wait_max_s=60.0))
    await engine.start()
    generation = engine.generate(ask())
    await fake.until(lambda: len(fake.requests) == 1 and fake.active == 0)
    began = time.monotonic()
    await generation.aclose()
    assert time.monotonic() - began < 0.25
    assert engine.stats().active == 0
    await engine.shutdown(0.0)
    assert len(fake.requests) == 1


async def test_a_hanging_generation_delays_no_other(fake: FakeOpenAi) -> None:
    fake.next(fakes.silent)
    engine = engine_on(provider(fake.base_url), slots=2)
    await engine.start()
    hanging = engine.generate(ask())
    await fake.until(lambda: fake.active == 1)
    for _ in range(3):
        assert (await read(engine)).finish == "length"
    await hanging.aclose()
    await engine.shutdown(0.0)


async def test_a_stop_sequence_holds_although_the_upstream_ignores_it(fake: FakeOpenAi) -> None:
    fake.usual = stream(fakes.delta("one "), fakes.delta("tw"), fakes.delta("o three"), then="hang")
    engine = engine_on(provider(fake.base_url))
    await engine.start()
    got = await read(engine, ask(stop=("two",)))
    assert (got.text, got.finish) == ("one ", "stop")
    await fake.until(lambda: fake.active == 0)
    assert fake.requests[0].body["stop"] == ["two"]
    await engine.shutdown(0.0)


async def test_an_upstream_that_ignores_the_token_limit_is_stopped(fake: FakeOpenAi) -> None:
    async def endless(exchange: fakes.Exchange) -> None:
        await exchange.head()
        while await exchange.pause(0):
            await exchange.piece(HELLO)

    got = await on(fake, endless)
    assert got.finish == "length"
    assert got.usage.output_tokens == 4 * 8 + 64 + 1


async def test_characters_that_an_upstream_splits_come_out_whole(fake: FakeOpenAi) -> None:
    halves = [
        rb'data: {"choices": [{"delta": {"content": "%s"}}]}' % half + b"\n\n" for half in (rb"\ud83e", rb"\udd8a")
    ]
    got = await on(fake, stream(*halves, fakes.ended("stop"), DONE))
    assert got.text == "🦊"


async def test_thinking_is_counted_and_not_shown(fake: FakeOpenAi) -> None:
    thought = fakes.chunk({"reasoning_content": "hm"})
    got = await on(fake, stream(thought, thought, HELLO, fakes.ended("stop"), DONE))
    assert got.text == "hello"
    assert got.usage.output_tokens == 3


async def test_a_stream_that_breaks_while_it_thinks_is_interrupted(fake: FakeOpenAi) -> None:
    got = await on(fake, stream(fakes.chunk({"reasoning": "hm"}), then="cut"))
    assert isinstance(got.error, Interrupted)
    assert got.text == ""


async def test_usage_in_each_chunk_counts_a_cancelled_reply(fake: FakeOpenAi) -> None:
    counted = fakes.chunk(
        {"content": "three tokens"}, usage={"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    )
    fake.usual = stream(counted, then="hang")
    engine = engine_on(provider(fake.base_url, usage="each"))
    await engine.start()
    generation = engine.generate(ask())
    assert (await anext(generation)).tokens == 3
    await generation.aclose()
    assert generation.usage == Usage(input_tokens=11, output_tokens=3, counted=True)
    assert fake.requests[0].body["stream_options"]["continuous_usage_stats"] is True
    await engine.shutdown(0.0)


async def test_zeros_are_no_usage(fake: FakeOpenAi) -> None:
    nothing = {"prompt_tokens": 0, "completion_tokens": 0}
    got = await on(fake, stream(fakes.chunk({"content": "a"}, usage=nothing), fakes.ended("stop"), DONE))
    assert got.usage.output_tokens == 1
    assert not got.usage.counted


async def test_a_generation_ends_at_its_total_time(fake: FakeOpenAi) -> None:
    got = await on(fake, stream(HELLO, then="hang"), total_s=0.1)
    assert type(got.error) is EngineError
    assert str(got.error) == "no end within 0.1 s"


async def test_nothing_private_reaches_an_upstream(fake: FakeOpenAi) -> None:
    engine = engine_on(provider(fake.base_url, cache_salt=True, priority="high_first"))
    await engine.start()
    await read(engine, ask(id="gen_private", cache_salt="acct_private", priority=0.25))
    sent = fake.requests[0]
    assert sent.body["priority"] == 25
    assert len(sent.body["cache_salt"]) == 64
    assert "private" not in json.dumps(sent.body) + json.dumps(sent.headers)
    assert set(sent.headers) <= {
        "host",
        "accept",
        "accept-encoding",
        "connection",
        "user-agent",
        "authorization",
        "content-type",
        "content-length",
    }
    await engine.shutdown(0.0)


async def test_connections_are_used_again(fake: FakeOpenAi) -> None:
    engine = engine_on(provider(fake.base_url), slots=1)
    await engine.start()
    for _ in range(5):
        assert (await read(engine)).finish == "length"
    assert len(fake._connections) == 1
    await engine.shutdown(0.0)


async def test_an_engine_without_any_provider_that_answers_does_not_start(fake: FakeOpenAi) -> None:
    fake.health = status(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
    engine = engine_on(provider(fake.base_url, "north"), provider(fakes.refusing_url(), "south"))
    with pytest.raises(EngineUnavailable) as caught:
        await engine.start()
    assert "north: HTTP 401: Incorrect API key provided: [key]" in str(caught.value)
    assert "south: no connection" in str(caught.value)
    assert KEY not in str(caught.value)


async def test_an_engine_whose_health_nobody_looks_at_starts() -> None:
    engine = engine_on(provider(fakes.refusing_url(), health_path=""))
    await engine.start()
    assert isinstance((await read(engine)).error, Interrupted)
    await engine.shutdown(0.0)


async def test_a_drain_lets_those_that_wait_for_a_slot_finish_too(fake: FakeOpenAi) -> None:
    engine = engine_on(provider(fake.base_url), slots=1)
    await engine.start()
    reading = [asyncio.ensure_future(read(engine)) for _ in range(3)]
    await asyncio.sleep(0)
    await engine.shutdown(WITHIN_S)
    assert [(await one).finish for one in reading] == ["length"] * 3


def settings(monkeypatch: pytest.MonkeyPatch, **variables: str) -> OpenAiCompatibleSettings:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return OpenAiCompatibleSettings()


def test_one_server_needs_its_address_and_is_named_by_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    own = settings(monkeypatch, TURNLOG_OPENAI_BASE_URL="http://gpu-1:8000/v1/", TURNLOG_OPENAI_KEY=KEY)
    (only,) = own.providers("llama")
    assert (only.name, only.base_url, only.dialect.model) == ("gpu-1:8000", "http://gpu-1:8000/v1", "llama")
    assert only.key.get_secret_value() == KEY
    assert settings(monkeypatch, TURNLOG_OPENAI_KEY=f"{KEY}\n").providers("llama")[0].key == only.key
    assert KEY not in repr(only) + repr(own) + str(own)


def test_several_are_a_list_with_their_own_keys_and_words(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [
        {"name": "own", "base_url": "http://gpu-1:8000/v1", "cache_salt": True, "usage": "each"},
        {"name": "far", "base_url": "https://api.example.com/v1", "key_env": "FAR_KEY", "model": "big", "stop_max": 0},
    ]
    own = settings(
        monkeypatch, TURNLOG_OPENAI_PROVIDERS=json.dumps(listed), FAR_KEY=KEY, TURNLOG_OPENAI_KEY="not for these"
    )
    first, second = own.providers("llama")
    assert (first.key.get_secret_value(), second.key.get_secret_value()) == ("", KEY)
    assert (first.dialect.model, second.dialect.model) == ("llama", "big")
    assert (first.dialect.cache_salt, second.dialect.cache_salt) == (True, False)
    assert (first.dialect.usage, second.dialect.usage) == ("each", "end")
    assert (first.dialect.stop_max, second.dialect.stop_max) == (4, 0)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("BASE_URL", "localhost:8000", "not an address"),
        ("BASE_URL", "http://user:secret@host/v1", "no name, password"),
        ("KEY", "sk-secret-\u20ac", "printable"),
        ("PROVIDERS", "[", "not a JSON list"),
        ("PROVIDERS", "[]", "at least one"),
        ("PROVIDERS", '[{"name": "a", "base_url": "http://a/v1", "key": "x"}]', "Extra inputs"),
        ("PROVIDERS", '[{"name": "a", "base_url": "http://a/v1", "key_env": "NOT_THERE"}]', "NOT_THERE"),
        ("PROVIDERS", '[{"name": "a", "base_url": "http://a"}, {"name": "a", "base_url": "http://b"}]', "once"),
    ],
)
def test_wrong_settings_are_refused(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str) -> None:
    with pytest.raises(ValidationError, match=words) as caught:
        settings(monkeypatch, **{f"TURNLOG_OPENAI_{variable}": value})
    assert "secret" not in str(caught.value)


def test_the_registry_makes_the_engine_from_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_OPENAI_ATTEMPTS_MAX", "9")
    engine = make(WorkerSettings(engine="openai_compatible"))
    info = engine.info()
    assert (info.engine, info.slots) == ("openai_compatible", 64)
