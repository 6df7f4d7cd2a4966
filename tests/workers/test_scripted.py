"""The scripted engine does exactly what the script says, when it says."""

import asyncio
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_workers.engine import Chunk, EngineDead, EngineError, GenerationRequest, InvalidRequest
from inference_workers.engines.script import plan
from inference_workers.engines.scripted import ScriptedEngine
from schemas.values import PromptMessage


def ask(content: str, max_tokens: int = 1000) -> GenerationRequest:
    return GenerationRequest(id="g", messages=(PromptMessage(role="user", content=content),), max_tokens=max_tokens)


async def engine(slots: int = 300) -> ScriptedEngine:
    crashes: list[str] = []

    def crash() -> None:
        crashes.append("crash")
        raise SystemExit(9)

    made = ScriptedEngine(model="scripted", slots=slots, context_tokens=100_000, crash=crash)
    await made.start()
    return made


async def run(script: dict[str, object] | str, max_tokens: int = 1000) -> list[Chunk]:
    content = script if isinstance(script, str) else json.dumps(script)
    async with asyncio.timeout(10):
        made = await engine()
        return [chunk async for chunk in made.generate(ask(content, max_tokens))]


def text(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


async def test_without_text_the_chunks_are_numbered_words() -> None:
    chunks = await run({"chunks": 3})
    assert text(chunks) == "word1 word2 word3"
    assert sum(chunk.tokens for chunk in chunks) == 3
    assert chunks[-1].finish == "stop"


async def test_text_comes_back_in_as_many_chunks_as_asked() -> None:
    chunks = await run({"chunks": 4, "text": "Grüße, 世界!", "every_ms": 12})
    assert text(chunks) == "Grüße, 世界!"
    assert [chunk.tokens for chunk in chunks] == [1, 1, 1, 1]


@given(st.text(max_size=80), st.none() | st.integers(min_value=1, max_value=90), st.booleans())
def test_the_pieces_of_a_text_are_the_text(content: str, chunks: int | None, split: bool) -> None:
    script = {"text": content, "split_utf8": split} | ({} if chunks is None else {"chunks": chunks})
    planned = plan((PromptMessage(role="user", content=json.dumps(script)),))
    pieces = [planned.piece(number) for number in range(1, planned.chunks + 1)]
    joined = b"".join(piece if isinstance(piece, bytes) else piece.encode() for piece in pieces)
    assert joined == content.encode()
    assert chunks is None or planned.chunks == chunks


async def test_split_characters_never_leave() -> None:
    for chunks in (2, 5, 17, 40):
        got = await run({"text": "naïve 数据流 🎉 end", "split_utf8": True, "chunks": chunks})
        assert text(got) == "naïve 数据流 🎉 end"
        assert all("\ufffd" not in chunk.text for chunk in got)


@given(st.text(min_size=1, max_size=200).filter(lambda t: not t.lstrip().startswith("{")))
def test_anything_else_is_echoed_in_few_chunks(content: str) -> None:
    planned = plan((PromptMessage(role="user", content=content),))
    assert "".join(str(planned.piece(n)) for n in range(1, planned.chunks + 1)) == content
    assert planned.chunks <= 50


async def test_the_token_limit_cuts_a_script() -> None:
    chunks = await run({"chunks": 10}, max_tokens=4)
    assert text(chunks) == "word1 word2 word3 word4"
    assert chunks[-1].finish == "length"


async def test_fail_at_comes_after_that_many_chunks() -> None:
    generation = (await engine()).generate(ask('{"chunks": 10, "fail_at": 3, "every_ms": 1}'))
    seen: list[Chunk] = []

    async def read() -> None:
        async for chunk in generation:
            seen.append(chunk)  # noqa: PERF401 - what came before the error is kept

    with pytest.raises(EngineError, match="3 chunks"):
        await read()
    assert text(seen) == "word1 word2 word3"
    assert generation.usage.output_tokens == 3


async def test_hang_at_falls_silent_and_can_be_closed() -> None:
    made = await engine()
    generation = made.generate(ask('{"chunks": 10, "hang_at": 2}'))
    assert text([await generation.__anext__()]) == "word1 word2"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(generation.__anext__(), 0.05)
    assert made.stats().active == 1
    await generation.aclose()
    assert made.stats().active == 0


@pytest.mark.parametrize("script", ['{"chunks": "x"}', '{"every_ms": -1}', '{"fail_at": 1.5}'])
async def test_a_script_with_wrong_types_is_refused(script: str) -> None:
    with pytest.raises(InvalidRequest, match="script"):
        await run(script)


@pytest.mark.parametrize("more", [{"split_utf8": True}, {"text": "x"}])
async def test_more_pieces_than_can_be_cut_at_once_are_refused(more: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="no more than 100,000 chunks"):
        await run({"chunks": 10_000_000} | more)


async def test_an_object_that_is_nested_without_end_is_echoed() -> None:
    deep = '{"a":' + "[" * 5000 + "]" * 5000 + "}"
    assert text(await run(deep)) == deep


async def test_the_schedule_is_absolute_and_never_early() -> None:
    began = time.monotonic()
    generation = (await engine()).generate(ask('{"chunks": 20, "every_ms": 10, "first_after_ms": 30}'))
    late: list[float] = []
    number = 0
    async for chunk in generation:
        number += chunk.tokens
        late.append(time.monotonic() - began - 0.03 - (number - 1) * 0.01)
    assert min(late) >= -0.002  # the loop's own clock has a resolution
    assert sorted(late)[len(late) // 2] < 0.02


async def test_an_engine_that_falls_silent_gives_nothing_to_anybody_and_no_slot_back_until_it_is_shut_down() -> None:
    made = await engine(slots=2)
    running, ended = made.generate(ask('{"chunks": 9, "every_ms": 10}')), made.generate(ask('{"chunks": 1}'))
    assert text([chunk async for chunk in ended]) == "word1"
    assert (await anext(running)).text == "word1"
    made.fall_silent()
    late = made.generate(ask('{"chunks": 1}'))
    taking = [asyncio.ensure_future(anext(one)) for one in (running, late)]
    closing = asyncio.ensure_future(running.aclose())
    await ended.aclose()
    done, _ = await asyncio.wait([taking[1], closing], timeout=0.1)
    assert done == set()
    assert made.stats().active == 2
    await made.shutdown(0)
    async with asyncio.timeout(5):
        await closing
        results = await asyncio.gather(*taking, return_exceptions=True)
    assert [type(result) for result in results] == [StopAsyncIteration, EngineDead]


async def test_three_hundred_streams_share_bursts() -> None:
    made = await engine()
    wake_ups: set[float] = set()
    loop = asyncio.get_running_loop()

    async def read(after_ms: float) -> int:
        total = 0
        script = json.dumps({"chunks": 10, "every_ms": 50, "first_after_ms": after_ms})
        async for chunk in made.generate(ask(script)):
            wake_ups.add(round(loop.time(), 4))
            total += chunk.tokens
        return total

    totals = await asyncio.gather(*(read(n * 50 / 300) for n in range(300)))
    assert set(totals) == {10}
    assert len(wake_ups) < 3000 / 3
