"""Whatever an upstream sends, only an `EngineError` comes out, and what it may cost is bounded."""

import asyncio
import contextlib
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from workers import fake_openai as fakes
from workers.fake_openai import DONE, FakeOpenAi, engine_on, event, provider

from inference_workers.engine import Chunk, EngineError, EngineUnavailable, GenerationRequest, Interrupted
from inference_workers.engines.chat_completions import ErrorInside, part_of
from inference_workers.engines.failures import MESSAGE_CHARS_MAX, Source, of_object, of_response, retry_after_s
from inference_workers.engines.openai_compatible import OpenAiCompatibleEngine
from inference_workers.engines.providers import Limits
from inference_workers.engines.upstream_json import Malformed, anything, decoded, in_words
from schemas.values import PromptMessage, Usage

SOURCE = Source(name="north", key="my-secret-key")
WITHIN_S = 20.0
ASKED = GenerationRequest(id="g", messages=(PromptMessage(role="user", content="say something"),), max_tokens=8)
ONCE = Limits(attempts_max=1, backoff_base_s=0.001, backoff_max_s=0.002, wait_max_s=0.1, breaker_failures=10**6)

NAMES = ("error", "choices", "delta", "content", "text", "usage", "message", "code", "type", "detail", "object", "x")
NUMBERS = ("9" * 30, "9" * 5000, "-" + "9" * 5000, "1e999", "NaN", "Infinity", "1" + "0" * 400 + ".5")
DEEP = (
    *(opening * 3000 for opening in ("[", '{"a":', '[{"text":', '{"error":')),
    "[" * 900 + "]" * 900,
    '[{"text":' * 450 + '"x"' + "}]" * 450,
    '{"message":' * 900 + "1" + "}" * 900,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=8,
)
documents = values.map(json.dumps) | st.sampled_from((*NUMBERS, *DEEP, r'"\ud83e"', "", "{", '"'))
SHAPES = (
    "%s",
    '{"error":%s}',
    '{"error":"x","zzz":%s}',
    '{"error":{"message":%s,"code":%s,"type":%s}}',
    '{"object":"error","message":%s}',
    '{"choices":[{"delta":{"content":%s}}]}',
    '{"choices":[{"delta":{"content":"a","reasoning":%s},"finish_reason":%s}]}',
    '{"choices":[],"usage":%s}',
    '{"choices":[],"usage":{"prompt_tokens":%s,"completion_tokens":%s,"prompt_tokens_details":{"cached_tokens":%s}}}',
)
shaped = st.builds(lambda shape, inner: shape.replace("%s", inner).encode(), st.sampled_from(SHAPES), documents)
bodies = st.binary(max_size=200) | shaped
DATES = ("Fri, 31 Dec 99999999999 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 -2359", "Mon, 1 Jan 0001 00:00:00 +2359")
header_values = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60) | st.sampled_from(
    (*DATES, "1e999", "-1e999", "nan", "9" * 400)
)
header_names = st.sampled_from(("x-request-id", "x-should-retry"))


@given(st.sampled_from((b"", b"error")), bodies)
@example(b"", b'{"error":"x","zzz":"\xff"}')
@example(b"", b'{"zzz":' + b"9" * 5000 + b',"error":"x"}')
def test_a_chunk_of_any_bytes_is_a_part_or_refused(kind: bytes, data: bytes) -> None:
    inside: object = None
    try:
        part_of(kind, data)
    except Malformed:
        pass
    except ErrorInside as error:
        inside = error.told
    assert len(of_object(SOURCE, inside).text) < 3 * MESSAGE_CHARS_MAX


@given(st.integers(300, 599), st.dictionaries(header_names, header_values), bodies)
def test_an_error_of_any_bytes_is_a_failure_with_few_words(status: int, headers: dict[str, str], body: bytes) -> None:
    assert len(of_response(SOURCE, status, headers, body, 0.0).text) < 3 * MESSAGE_CHARS_MAX


@given(st.sampled_from(("retry-after", "retry-after-ms")), header_values, st.floats(0, 4e9))
@example("retry-after", "Fri, 31 Dec 99999999999 00:00:00 GMT", 0.0)
def test_a_wait_of_any_length_is_one_that_can_be_waited(name: str, value: str, now_s: float) -> None:
    assert 0 <= (retry_after_s({name: value}, now_s) or 0.0) <= 3600


@given(bodies)
def test_bytes_become_a_value_that_can_be_told_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(Malformed):
        assert isinstance(in_words(decoded(data, anything)), str)


async def ended(engine: OpenAiCompatibleEngine) -> tuple[list[Chunk], EngineError | None, Usage]:
    """One generation: its chunks, what it failed with, and its usage. Anything else is raised."""
    chunks: list[Chunk] = []
    failure: EngineError | None = None
    generation = engine.generate(ASKED)
    async with asyncio.timeout(WITHIN_S):
        try:
            async for chunk in generation:
                chunks.append(chunk)  # noqa: PERF401 - what came before the error is kept
        except EngineError as error:
            failure = error
    return chunks, failure, generation.usage


async def on(*behaviours: fakes.Behaviour) -> tuple[list[Chunk], EngineError | None, Usage]:
    async with FakeOpenAi() as server:
        server.next(*behaviours)
        engine = engine_on(provider(server.base_url), limits=ONCE)
        await engine.start()
        try:
            return await ended(engine)
        finally:
            await engine.shutdown(0.0)


def told(status: int, kind: str, name: str, value: str, pieces: list[bytes]) -> fakes.Behaviour:
    async def behave(exchange: fakes.Exchange) -> None:
        await exchange.head(status, kind, **{name: value})
        for piece in filter(None, pieces):
            await exchange.piece(piece)
        await exchange.end()

    return behave


answers = st.builds(
    told,
    st.sampled_from((200, 200, 200, 204, 302, 400, 429, 500, 999)),
    st.sampled_from(("text/event-stream", "text/event-stream", "application/json", "")),
    st.sampled_from(("retry-after", "x-request-id", "content-encoding", "location", "set-cookie", "x-should-retry")),
    header_values,
    st.lists(bodies.map(lambda data: b"data: " + data + b"\n\n") | bodies, max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(answers, min_size=1, max_size=4))
def test_whatever_an_upstream_answers_only_an_engine_error_comes_out(given_answers: list[fakes.Behaviour]) -> None:
    async def all_of_them() -> None:
        async with FakeOpenAi() as server:
            server.next(*given_answers)
            engine = engine_on(provider(server.base_url), limits=ONCE)
            await engine.start()
            for _ in given_answers:
                chunks, failure, _usage = await ended(engine)
                assert (failure is None) == bool(chunks and chunks[-1].finish)
                assert "the engine failed" not in str(failure)
            await engine.shutdown(0.0)

    asyncio.run(all_of_them())


@pytest.mark.parametrize(("prompt", "output"), [(10**11, 5), (7, 10**11), (7, 100), (10**11, 10**11)])
async def test_a_usage_that_cannot_be_is_counted_by_ourselves(prompt: int, output: int) -> None:
    answer = fakes.stream(fakes.delta("a "), fakes.delta("b"), fakes.ended("stop"), fakes.usage(prompt, output), DONE)
    chunks, failure, usage = await on(answer)
    assert failure is None
    assert "".join(chunk.text for chunk in chunks) == "a b"
    assert usage.output_tokens == sum(chunk.tokens for chunk in chunks) == 2
    assert 0 < usage.input_tokens < 50
    assert not usage.counted


async def test_a_usage_of_one_token_for_many_chunks_is_not_believed() -> None:
    pieces = [fakes.delta("a ") for _ in range(60)]
    _, _, usage = await on(fakes.stream(*pieces, fakes.ended("stop"), fakes.usage(7, 1), DONE))
    assert (usage.output_tokens, usage.counted) == (60, False)


async def test_a_chunk_larger_than_any_ends_the_generation_and_its_connection() -> None:
    async def endless(exchange: fakes.Exchange) -> None:
        await exchange.head()
        await exchange.piece(fakes.delta("hello"))
        while await exchange.pause(0):
            await exchange.piece(b"x" * 65536)

    async with FakeOpenAi() as server:
        server.next(endless)
        engine = engine_on(provider(server.base_url), limits=ONCE)
        await engine.start()
        chunks, failure, _ = await ended(engine)
        await server.until(lambda: server.active == 0)
        await engine.shutdown(0.0)
    assert [chunk.text for chunk in chunks] == ["hello"]
    assert isinstance(failure, Interrupted)
    assert "larger than" in str(failure)


async def test_more_text_than_the_token_limit_allows_ends_the_generation() -> None:
    large = event({"choices": [{"delta": {"content": "x" * 2000}}]})
    chunks, failure, _ = await on(fakes.stream(*([large] * 10), then="hang"))
    assert isinstance(failure, Interrupted)
    assert "longer than the token limit" in str(failure)
    assert sum(len(chunk.text) for chunk in chunks) <= 64 * (8 + 64)


async def test_of_a_good_look_nothing_more_than_its_status_is_read() -> None:
    async def endless(exchange: fakes.Exchange) -> None:
        await exchange.head(200, "application/json")
        while await exchange.pause(0):
            await exchange.piece(b" " * 65536)

    async with FakeOpenAi() as server:
        server.health = endless
        engine = engine_on(provider(server.base_url))
        async with asyncio.timeout(WITHIN_S):
            await engine.start()
        await engine.shutdown(0.0)


async def test_a_look_ends_however_slowly_the_answer_comes() -> None:
    async def slow(exchange: fakes.Exchange) -> None:
        await exchange.head(500, "application/json")
        while await exchange.pause(0.01):
            await exchange.piece(b" ")

    async with FakeOpenAi() as server:
        server.health = slow
        engine = engine_on(provider(server.base_url), connect_s=0.1)
        async with asyncio.timeout(WITHIN_S):
            with pytest.raises(EngineUnavailable, match="no answer in time"):
                await engine.start()


async def test_an_answer_that_would_have_to_be_unpacked_is_refused() -> None:
    _, failure, _ = await on(told(200, "text/event-stream", "content-encoding", "gzip", [b"\x1f\x8b"]))
    assert "encoding" in str(failure)


async def test_no_cookie_of_an_upstream_is_kept() -> None:
    async with FakeOpenAi() as server:
        server.next(told(200, "text/event-stream", "set-cookie", "who=me; Path=/", [fakes.WHOLE]))
        engine = engine_on(provider(server.base_url), limits=ONCE)
        await engine.start()
        await ended(engine)
        await ended(engine)
        await engine.shutdown(0.0)
    assert len(server.requests) == 2
    assert "cookie" not in server.requests[1].headers
