"""The modelled server: rates, cache, room and faults, in virtual time."""

import asyncio
import json
from collections.abc import Callable

import msgspec
import pytest

from inference_workers.chunks import ChunkStream
from inference_workers.engine import Chunk, ContextTooLong, EngineDead, GenerationRequest
from inference_workers.engines.clock import VirtualClock
from inference_workers.engines.simulated import SimulatedEngine
from inference_workers.engines.simulated_request import Asked, answer
from inference_workers.engines.simulated_settings import SimulatedEngineSettings
from inference_workers.engines.simulation import Faults, SimulatedSettings
from schemas.values import PromptMessage, Usage


def ask(name: str, content: str = "hello", *, max_tokens: int = 5, salt: str | None = None) -> GenerationRequest:
    messages = (PromptMessage(role="user", content=content),)
    return GenerationRequest(id=name, messages=messages, max_tokens=max_tokens, seed=3, cache_salt=salt)


SETTINGS = SimulatedSettings(
    slots=4, kv_tokens=4096, jitter=0.0, output_tokens_mean=1000, prefill_tokens_per_s=1000, token_s=0.01
)


def never() -> None:
    raise AssertionError("the process was killed")


async def started(clock: VirtualClock, *, crash: Callable[[], None] = never, **changes: object) -> SimulatedEngine:
    settings = msgspec.structs.replace(SETTINGS, **changes)
    engine = SimulatedEngine(settings, clock, crash=crash)
    starting = asyncio.ensure_future(engine.start())
    await clock.advance(settings.start_s)
    await starting
    return engine


async def read(engine: SimulatedEngine, request: GenerationRequest, into: list[Chunk]) -> None:
    async for chunk in engine.generate(request):
        into.append(chunk)  # noqa: PERF401 - read while it goes on


async def elapsed(clock: VirtualClock, done: Callable[[], bool], *, limit_s: float = 60.0) -> float:
    begin = clock.now_s()
    while not done():
        assert clock.now_s() - begin < limit_s
        await clock.advance(0.001)
    return clock.now_s() - begin


async def ttft(engine: SimulatedEngine, clock: VirtualClock, request: GenerationRequest) -> float:
    got: list[Chunk] = []
    task = asyncio.ensure_future(read(engine, request, got))
    first_s = await elapsed(clock, lambda: bool(got))
    await elapsed(clock, task.done)
    return first_s


async def test_the_first_token_waits_for_the_prompt_and_a_cached_prefix_does_not() -> None:
    clock = VirtualClock()
    engine = await started(clock)
    prompt = "w " * 400
    cold = await ttft(engine, clock, ask("a", prompt, salt="x"))
    warm = await ttft(engine, clock, ask("b", prompt, salt="x"))
    other_account = await ttft(engine, clock, ask("c", prompt, salt="y"))
    assert 0.40 < cold < 0.45
    assert warm < 0.05
    assert other_account > 0.40
    assert engine.stats().cached_tokens == 400
    await engine.shutdown(0)


def test_no_more_of_an_answer_is_cut_into_pieces_than_the_context_holds() -> None:
    settings = msgspec.structs.replace(SETTINGS, faults=Faults(split_utf8=True))
    given = answer(ask("a"), Asked(output_tokens=10_000_000), settings)
    assert len(given) == len(given.pieces) == settings.context_tokens


async def test_load_slows_decoding_down() -> None:
    async def duration(streams: int) -> float:
        clock = VirtualClock()
        engine = await started(clock, sequence_s=0.0025)
        tasks = [asyncio.ensure_future(read(engine, ask(f"s{n}", max_tokens=20), [])) for n in range(streams)]
        took = await elapsed(clock, lambda: all(task.done() for task in tasks))
        await engine.shutdown(0)
        return took

    assert 1.4 < await duration(4) / await duration(1) < 1.8


async def said(faults: Faults) -> tuple[str, int]:
    """Text and tokens of one answer."""
    clock = VirtualClock()
    engine = await started(clock, faults=faults, output_tokens_mean=30)
    got: list[Chunk] = []
    task = asyncio.ensure_future(read(engine, ask("a", max_tokens=4000), got))
    await elapsed(clock, task.done)
    assert got[-1].finish == "stop"
    await engine.shutdown(0)
    return "".join(chunk.text for chunk in got), sum(chunk.tokens for chunk in got)


@pytest.mark.parametrize("faults", [Faults(duplicate_diff=True), Faults(split_utf8=True)])
async def test_repeated_diffs_and_split_characters_change_nothing_that_is_seen(faults: Faults) -> None:
    undisturbed, tokens = await said(Faults())
    assert await said(faults) == (undisturbed, tokens)
    assert "\ufffd" not in undisturbed


async def test_without_the_reading_ends_position_a_repeated_diff_is_said_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed, tokens = await said(Faults())
    monkeypatch.setattr(ChunkStream, "unheard", lambda _stream, _total: 1)
    text, counted = await said(Faults(duplicate_diff=True))
    assert counted > tokens
    assert text != undisturbed


async def test_a_hang_holds_its_slot_until_it_is_closed_and_others_go_on() -> None:
    clock = VirtualClock()
    engine = await started(clock, faults=Faults(hang_at=3))
    hung = engine.generate(ask("a", max_tokens=10))
    await clock.advance(5)
    assert hung.usage.output_tokens == 3
    assert engine.stats().active == 1
    got: list[Chunk] = []
    other = asyncio.ensure_future(read(engine, ask("b", max_tokens=2), got))
    await elapsed(clock, other.done)
    assert got[-1].finish == "length"
    await hung.aclose()
    assert engine.stats().active == 0
    await engine.shutdown(0)


async def test_a_crash_ends_every_generation_and_the_engine() -> None:
    clock = VirtualClock()
    engine = await started(clock, faults=Faults(crash_at=3))
    reading = [asyncio.ensure_future(read(engine, ask(name, max_tokens=10), [])) for name in ("a", "b")]
    await clock.advance(5)
    for task in reading:
        with pytest.raises(EngineDead):
            await task
    with pytest.raises(EngineDead):
        await read(engine, ask("c"), [])


async def test_an_ignored_abort_keeps_the_slot_to_the_end() -> None:
    clock = VirtualClock()
    engine = await started(clock, faults=Faults(ignore_abort=True))
    generation = engine.generate(ask("a", max_tokens=50))
    await clock.advance(0.1)
    closing = asyncio.ensure_future(generation.aclose())
    await clock.advance(0.1)
    assert not closing.done()
    assert engine.stats().active == 1
    await elapsed(clock, closing.done)
    assert engine.stats().active == 0
    await engine.shutdown(0)


async def finished(engine: SimulatedEngine, clock: VirtualClock, request: GenerationRequest) -> tuple[str, Usage]:
    """Text and usage of a generation, read to its end."""
    got: list[Chunk] = []
    generation = engine.generate(request)

    async def through() -> None:
        got.extend([chunk async for chunk in generation])

    task = asyncio.ensure_future(through())
    await elapsed(clock, task.done)
    await task
    return "".join(chunk.text for chunk in got), generation.usage


def asking(name: str, *, max_tokens: int = 5, salt: str | None = None, **members: object) -> GenerationRequest:
    return ask(name, json.dumps(members), max_tokens=max_tokens, salt=salt)


async def test_a_message_names_the_tokens_of_prompt_and_answer() -> None:
    clock = VirtualClock()
    engine = await started(clock)
    _, usage = await finished(engine, clock, asking("a", max_tokens=50, output_tokens=17, prompt_tokens=1155))
    assert (usage.input_tokens, usage.output_tokens) == (1155, 17)
    _, usage = await finished(engine, clock, asking("b", max_tokens=10, output_tokens=17, prompt_tokens=2))
    assert (usage.input_tokens, usage.output_tokens) == (2, 10)
    with pytest.raises(ContextTooLong):
        await read(engine, asking("c", prompt_tokens=5000), [])
    await engine.shutdown(0)


async def test_equal_prefix_blocks_are_equal_tokens_within_one_salt() -> None:
    clock = VirtualClock()
    engine = await started(clock, prefix_block_tokens=64)

    async def cached(name: str, salt: str, prefix: list[int]) -> int:
        _, usage = await finished(engine, clock, asking(name, salt=salt, prefix=prefix, prompt_tokens=300))
        assert usage.input_tokens == 300
        return usage.cached_input_tokens

    assert await cached("a", "x", [1, 2, 3]) == 0
    assert await cached("b", "x", [1, 2, 4]) == 128
    assert await cached("c", "x", [2, 1]) == 0
    assert await cached("d", "y", [1, 2, 3]) == 0
    await engine.shutdown(0)


@pytest.mark.parametrize("content", ['{"output_tokens": "many"}', '{"prefix": 3}', "{not json", '{"other": 1}', "[1]"])
async def test_any_other_message_is_text(content: str) -> None:
    clock = VirtualClock()
    engine = await started(clock)
    _, usage = await finished(engine, clock, ask("a", content, max_tokens=3))
    assert usage.input_tokens == 2 + len(content.split())
    assert usage.output_tokens == 3
    await engine.shutdown(0)


async def test_a_poison_message_kills_the_process_and_one_that_hangs_hangs_alone() -> None:
    clock = VirtualClock()
    killed: list[float] = []
    engine = await started(clock, crash=lambda: killed.append(clock.now_s()))
    hung = engine.generate(asking("a", max_tokens=20, hang_at=2))
    _, usage = await finished(engine, clock, ask("b", max_tokens=20))
    assert usage.output_tokens == 20
    assert hung.usage.output_tokens == 2
    assert not killed
    poison = engine.generate(asking("c", max_tokens=20, crash_at=4))
    await elapsed(clock, lambda: bool(killed))
    assert poison.usage.output_tokens == 4
    await engine.shutdown(0)


async def test_sequences_that_are_preempted_give_the_same_text() -> None:
    async def texts(kv_tokens: int) -> tuple[list[str], int]:
        clock = VirtualClock()
        engine = await started(clock, kv_tokens=kv_tokens, context_tokens=512)
        requests = [msgspec.structs.replace(ask(f"s{n}", "w " * 60, max_tokens=300), seed=n) for n in range(4)]
        got: list[list[Chunk]] = [[] for _ in requests]
        tasks = [
            asyncio.ensure_future(read(engine, request, into)) for request, into in zip(requests, got, strict=True)
        ]
        await elapsed(clock, lambda: all(task.done() for task in tasks), limit_s=200)
        preemptions = engine.stats().preemptions
        await engine.shutdown(0)
        return ["".join(chunk.text for chunk in chunks) for chunks in got], preemptions

    roomy, none = await texts(8192)
    narrow, some = await texts(640)
    assert none == 0 < some
    assert roomy == narrow


async def test_a_stalled_engine_gives_nothing_more_to_anybody_and_its_statistics_age() -> None:
    clock = VirtualClock()
    engine = await started(clock, faults=Faults(stall_at=6))
    going = [engine.generate(ask(name, max_tokens=50)) for name in ("a", "b")]
    await clock.advance(5)
    assert sum(generation.usage.output_tokens for generation in going) == 6
    stats = engine.stats()
    assert stats.active == 2
    assert stats.age_s > 4
    await clock.advance(5)
    assert engine.stats().age_s == pytest.approx(stats.age_s + 5)
    closing = asyncio.ensure_future(going[0].aclose())
    await clock.advance(5)
    assert not closing.done()
    await engine.shutdown(0)
    await closing


async def test_lost_statistics_age_while_the_engine_goes_on() -> None:
    clock = VirtualClock()
    engine = await started(clock, faults=Faults(lose_stats_at=3))
    assert engine.stats().age_s == 0
    _, usage = await finished(engine, clock, ask("a", max_tokens=30))
    assert usage.output_tokens == 30
    stats = engine.stats()
    assert stats.output_tokens == 3
    assert stats.active == 1
    assert stats.age_s > 0.2
    assert stats.step_ms == pytest.approx(11.2, abs=0.1)
    await engine.shutdown(0)


async def test_it_starts_as_slowly_as_it_is_told() -> None:
    clock = VirtualClock()
    starting = asyncio.ensure_future(SimulatedEngine(SimulatedSettings(start_s=180), clock).start())
    await clock.advance(179)
    assert not starting.done()
    await clock.advance(2)
    assert starting.done()


def test_single_settings_come_before_those_of_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_SIMULATED_PRESET", "llama-3-70b-4xh100")
    monkeypatch.setenv("TURNLOG_SIMULATED_TOKEN_MS", "7")
    monkeypatch.setenv("TURNLOG_SIMULATED_STALL_AT", "100")
    made = SimulatedEngineSettings().simulation("m", 256, 8192)
    assert made.kv_tokens == 1_200_000
    assert made.token_s == pytest.approx(0.007)
    assert made.faults.stall_at == 100
    assert (made.model, made.slots, made.context_tokens) == ("m", 256, 8192)


def test_without_settings_it_is_the_small_server() -> None:
    assert SimulatedEngineSettings().simulation("simulated", 64, 8192) == SimulatedSettings()
