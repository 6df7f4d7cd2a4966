"""One suite for all engines: what a worker may rely on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from inference_workers.engine import (
    Chunk,
    ContextTooLong,
    Engine,
    EngineDead,
    EngineError,
    Finish,
    Generation,
    GenerationRequest,
    InvalidRequest,
)
from inference_workers.engines.clock import RealClock
from inference_workers.engines.scripted import ScriptedEngine
from inference_workers.engines.simulated import SimulatedEngine
from inference_workers.engines.simulation import SimulatedSettings
from schemas.values import PromptMessage

CONTEXT = 512
SLOTS = 2

WITHIN_S = 30


def llama() -> Engine:
    from inference_workers.engines.llama_cpp import LlamaCppEngine
    from inference_workers.engines.llama_server import LlamaSettings, find_model

    return LlamaCppEngine(LlamaSettings(model="smollm2", model_path=find_model(), slots=SLOTS, context_tokens=CONTEXT))


def simulated() -> Engine:
    settings = SimulatedSettings(slots=SLOTS, context_tokens=CONTEXT, kv_tokens=4 * CONTEXT, output_tokens_mean=200)
    return SimulatedEngine(settings, RealClock(speed=2.0))


def scripted() -> Engine:
    return ScriptedEngine(model="scripted", slots=SLOTS, context_tokens=CONTEXT)


def tensorrt() -> Engine:
    from workers.tensorrt import settings

    from inference_workers.engines.tensorrt_llm import TensorRtLlmEngine

    return TensorRtLlmEngine("fake", settings(), SLOTS, CONTEXT)


def openai_compatible() -> Engine:
    from workers.fake_openai import EngineOnFake

    return EngineOnFake(SLOTS, CONTEXT)


ENGINES: dict[str, Callable[[], Engine]] = {
    "llama_cpp": llama,
    "openai_compatible": openai_compatible,
    "scripted": scripted,
    "simulated": simulated,
    "tensorrt_llm": tensorrt,
}


EACH = [pytest.param(name, id=name, marks=pytest.mark.model if name == "llama_cpp" else ()) for name in ENGINES]


@pytest.fixture(params=EACH)
def unstarted(request: pytest.FixtureRequest) -> Callable[[], Engine]:
    return ENGINES[request.param]


@pytest.fixture(params=EACH)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    made = ENGINES[request.param]()
    await made.start()
    yield made
    await made.shutdown(0.0)


LONG = '{"chunks": 5000, "every_ms": 20}'
"""A script for the scripted engine; for a model a text that it will say something long about."""

numbers = iter(range(1, 1_000_000))


def ask(content: str = LONG, *, max_tokens: int = 8, **members: object) -> GenerationRequest:
    messages = (PromptMessage(role="user", content=content),)
    return GenerationRequest(id=f"g{next(numbers)}", messages=messages, max_tokens=max_tokens, seed=7, **members)  # type: ignore[arg-type]


async def read(generation: Generation) -> list[Chunk]:
    async with asyncio.timeout(WITHIN_S):
        return [chunk async for chunk in generation]


def text(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


async def first(generation: Generation) -> Chunk:
    async with asyncio.timeout(WITHIN_S):
        return await generation.__anext__()


async def closed(generation: Generation) -> None:
    async with asyncio.timeout(WITHIN_S):
        await generation.aclose()


async def test_a_generation_gives_text_and_ends_at_its_token_limit(engine: Engine) -> None:
    generation = engine.generate(ask(max_tokens=6))
    chunks = await read(generation)
    assert chunks[-1].finish == "length"
    assert [chunk.finish for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert sum(chunk.tokens for chunk in chunks) == generation.usage.output_tokens == 6
    assert generation.usage.input_tokens > 0
    assert text(chunks)
    assert engine.stats().active == 0
    assert engine.stats().output_tokens == 6


async def test_a_fixed_seed_repeats(engine: Engine) -> None:
    same = ask(max_tokens=6, temperature=0.8)
    one, other = await read(engine.generate(same)), await read(engine.generate(same))
    assert text(one) == text(other)


async def test_a_stop_sequence_ends_the_text_before_it(engine: Engine) -> None:
    whole = text(await read(engine.generate(ask(max_tokens=8))))
    stop = whole[3:5]
    chunks = await read(engine.generate(ask(max_tokens=8, stop=(stop,))))
    assert text(chunks) == whole[: whole.index(stop)]
    assert chunks[-1].finish == "stop"


async def test_closing_while_decoding_frees_the_slot_and_keeps_the_count(engine: Engine) -> None:
    generation = engine.generate(ask(max_tokens=400))
    seen = (await first(generation)).tokens
    await closed(generation)
    assert engine.stats().active == 0
    assert generation.usage.output_tokens >= seen > 0
    assert await read(generation) == []
    await closed(generation)


async def test_closing_from_another_task_ends_the_iteration(engine: Engine) -> None:
    generation = engine.generate(ask(max_tokens=400))
    await first(generation)
    reading = asyncio.ensure_future(read(generation))
    await closed(generation)
    assert all(chunk.finish is None for chunk in await reading)


async def test_closing_before_the_first_token_leaves_the_next_request_unharmed(engine: Engine) -> None:
    undisturbed = text(await read(engine.generate(ask(max_tokens=5))))
    generation = engine.generate(ask("hello " * 300, max_tokens=400))
    await asyncio.sleep(0)
    await closed(generation)
    assert engine.stats().active == 0
    assert text(await read(engine.generate(ask(max_tokens=5)))) == undisturbed


async def test_no_more_than_its_slots_run_and_the_others_follow(engine: Engine) -> None:
    generations = [engine.generate(ask(max_tokens=3)) for _ in range(5)]
    assert engine.stats().active <= SLOTS
    assert engine.stats().queued >= 5 - SLOTS
    ended: list[int] = []

    async def wait(index: int) -> Finish | None:
        chunks = await read(generations[index])
        ended.append(index)
        return chunks[-1].finish

    assert set(await asyncio.gather(*(wait(index) for index in range(5)))) == {"length"}
    assert set(ended[:SLOTS]) == set(range(SLOTS))
    assert engine.stats().active == engine.stats().queued == 0


async def test_those_that_wait_begin_in_the_order_in_which_they_came(engine: Engine) -> None:
    running = [engine.generate(ask(max_tokens=400)) for _ in range(SLOTS)]
    waiting = [engine.generate(ask(max_tokens=3)) for _ in range(4)]
    began: list[int] = []
    ended: list[int] = []

    async def follow(index: int) -> None:
        await first(waiting[index])
        began.append(index)
        await read(waiting[index])
        ended.append(index)

    following = asyncio.gather(*(follow(index) for index in reversed(range(4))))
    await first(running[0])
    await closed(running[0])  # one slot for all of them: the other one is still taken
    await following
    assert began == ended == [0, 1, 2, 3]
    await closed(running[1])


async def test_a_queued_generation_that_is_closed_never_runs(engine: Engine) -> None:
    running = [engine.generate(ask(max_tokens=400)) for _ in range(SLOTS)]
    queued = engine.generate(ask(max_tokens=400))
    await closed(queued)
    assert engine.stats().queued == 0
    assert queued.usage.output_tokens == 0
    for generation in running:
        await closed(generation)
    assert engine.stats().active == 0


async def test_a_prompt_beyond_the_context_is_refused_as_such(engine: Engine) -> None:
    with pytest.raises(ContextTooLong):
        await read(engine.generate(ask("word " * (CONTEXT + 10))))
    assert engine.stats().active == 0


@pytest.mark.parametrize(
    "bad",
    [{"max_tokens": 0}, {"stop": ("",)}, {"temperature": -1.0}, {"top_p": 0.0}],
    ids=["max_tokens", "stop", "temperature", "top_p"],
)
async def test_a_bad_request_is_refused_and_names_the_member(engine: Engine, bad: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(bad))):
        await read(engine.generate(ask(**bad)))  # type: ignore[arg-type]


async def test_a_shut_down_engine_ends_what_runs_and_takes_nothing(engine: Engine) -> None:
    generation = engine.generate(ask(max_tokens=400))
    await first(generation)
    await engine.shutdown(0.0)
    with contextlib.suppress(EngineError):
        await read(generation)
    with pytest.raises(EngineDead):
        await read(engine.generate(ask()))


async def test_drain_lets_a_short_generation_finish(engine: Engine) -> None:
    generation = engine.generate(ask(max_tokens=3))
    reading = asyncio.ensure_future(read(generation))
    await asyncio.sleep(0)
    await engine.shutdown(WITHIN_S)
    assert (await reading)[-1].finish == "length"


async def test_before_the_start_nothing_is_taken_and_a_shutdown_does_no_harm(unstarted: Callable[[], Engine]) -> None:
    made = unstarted()
    generation = made.generate(ask())
    with pytest.raises(EngineDead):
        await read(generation)
    await closed(generation)
    await made.shutdown(0.0)


async def test_a_close_may_come_twice_and_at_once(engine: Engine) -> None:
    generation = engine.generate(ask(max_tokens=400))
    await first(generation)
    await asyncio.gather(closed(generation), closed(generation))
    await closed(generation)
    assert engine.stats().active == 0


async def test_a_close_before_the_first_read_ends_the_iteration(engine: Engine) -> None:
    generation = engine.generate(ask(max_tokens=400))
    await closed(generation)
    assert all(chunk.finish is None for chunk in await read(generation))
    assert engine.stats().active == 0


async def test_a_refused_generation_can_be_closed(engine: Engine) -> None:
    generation = engine.generate(ask(max_tokens=0))
    await closed(generation)
    await closed(generation)
    assert engine.stats().active == engine.stats().queued == 0


async def test_one_token_is_enough(engine: Engine) -> None:
    generation = engine.generate(ask(max_tokens=1))
    chunks = await read(generation)
    assert chunks[-1].finish == "length"
    assert generation.usage.output_tokens == sum(chunk.tokens for chunk in chunks) == 1


@pytest.mark.parametrize("half", ["\ud83e", "a\udd8a"], ids=["high", "low"])
async def test_half_a_surrogate_pair_is_refused_and_names_the_member(engine: Engine, half: str) -> None:
    with pytest.raises(InvalidRequest, match="messages"):
        await read(engine.generate(ask(half)))
    with pytest.raises(InvalidRequest, match="stop"):
        await read(engine.generate(ask(stop=(half,))))
    assert engine.stats().active == 0


@pytest.mark.parametrize(
    "content",
    ['{"a":' + "[" * 5000 + "]" * 5000 + "}", '{"a":' + "9" * 5000 + "}", "{" * 3000],
    ids=["nested", "number", "open"],
)
async def test_an_odd_object_for_a_prompt_is_a_text(engine: Engine, content: str) -> None:
    with contextlib.suppress(ContextTooLong):
        assert (await read(engine.generate(ask(content, max_tokens=3))))[-1].finish is not None
    assert engine.stats().active == 0


async def test_a_stop_sequence_of_one_character_of_many_bytes_ends_the_text_before_it(engine: Engine) -> None:
    whole = ""
    prompts = (f'{{"text": "Erzähle auf Deutsch von Käse und Äpfeln {n}: für wörd 数据 🎉"}}' for n in range(9))
    stop = None
    for prompt in prompts:
        whole = text(await read(engine.generate(ask(prompt, max_tokens=40))))
        stop = next((character for character in whole if not character.isascii()), None)
        if stop is not None:
            break
    else:
        pytest.skip("this model says nothing beyond ASCII")
    chunks = await read(engine.generate(ask(prompt, max_tokens=40, stop=(stop,))))
    assert text(chunks) == whole[: whole.index(stop)]
    assert chunks[-1].finish == "stop"
