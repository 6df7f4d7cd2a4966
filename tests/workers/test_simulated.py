"""The modelled server: rates, cache, room and faults, in virtual time."""

import asyncio
from collections.abc import Callable

import pytest

from inference_workers.engine import Chunk, EngineDead, GenerationRequest
from inference_workers.engines.clock import VirtualClock
from inference_workers.engines.simulated import SimulatedEngine
from inference_workers.engines.simulation import Batch, Faults, Sequence, SimulatedSettings
from schemas.values import PromptMessage


def ask(name: str, content: str = "hello", *, max_tokens: int = 5, salt: str | None = None) -> GenerationRequest:
    messages = (PromptMessage(role="user", content=content),)
    return GenerationRequest(id=name, messages=messages, max_tokens=max_tokens, seed=3, cache_salt=salt)


SETTINGS = SimulatedSettings(
    slots=4, kv_tokens=4096, jitter=0.0, output_tokens_mean=1000, prefill_tokens_per_s=1000, token_s=0.01
)


async def started(clock: VirtualClock, **changes: object) -> SimulatedEngine:
    settings = SimulatedSettings(**{name: getattr(SETTINGS, name) for name in SETTINGS.__struct_fields__} | changes)
    engine = SimulatedEngine(settings, clock)
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


async def test_load_slows_decoding_down() -> None:
    async def duration(streams: int) -> float:
        clock = VirtualClock()
        engine = await started(clock, slow_down=1.0)
        tasks = [asyncio.ensure_future(read(engine, ask(f"s{n}", max_tokens=20), [])) for n in range(streams)]
        took = await elapsed(clock, lambda: all(task.done() for task in tasks))
        await engine.shutdown(0)
        return took

    assert 1.4 < await duration(4) / await duration(1) < 1.8


def sequence(name: str, prompt: int, output: int) -> Sequence:
    return Sequence(id=name, prompt=tuple(range(prompt)), output=(b"x",) * output, cut=False, salt=name)


def test_a_sequence_waits_until_the_cache_has_room_for_all_of_it() -> None:
    batch = Batch(SETTINGS)
    batch.add(sequence("a", 2000, 1000))
    batch.add(sequence("b", 1000, 100))
    assert list(batch.running) == ["a"]
    assert batch.kv_tokens_used >= 3000
    batch.remove("a")
    assert list(batch.running) == ["b"]
    batch.remove("b")
    assert batch.kv_tokens_used == 0


def test_the_same_seed_gives_the_same_steps() -> None:
    def history() -> list[object]:
        batch = Batch(SimulatedSettings(seed=5, jitter=0.2))
        for n in range(5):
            batch.add(sequence(f"s{n}", 50 * n + 1, 10))
        return [batch.step() for _ in range(15)]

    assert history() == history()


@pytest.mark.parametrize("faults", [Faults(duplicate_diff=True), Faults(split_utf8=True)])
async def test_repeated_diffs_and_split_characters_change_nothing_that_is_seen(faults: Faults) -> None:
    texts: list[str] = []
    for chosen in (Faults(), faults):
        clock = VirtualClock()
        engine = await started(clock, faults=chosen, output_tokens_mean=30)
        got: list[Chunk] = []
        task = asyncio.ensure_future(read(engine, ask("a", max_tokens=4000), got))
        await elapsed(clock, task.done)
        texts.append("".join(chunk.text for chunk in got))
        assert got[-1].finish == "stop"
        await engine.shutdown(0)
    assert texts[0] == texts[1]
    assert "\ufffd" not in texts[0]


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
