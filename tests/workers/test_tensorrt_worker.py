"""A worker on the engine `tensorrt_llm`: from the request in its inbox to the end in the log."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from workers.tensorrt import faulty, settings
from workers.test_worker import WITHIN_S, Bench

from inference_workers.engines.tensorrt_llm import TensorRtLlmEngine
from streams.log.memory import MemoryLog

SENTENCE = "naïve 数据 流 über 🎉🎉"
LONG = "go on"


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(MemoryLog(), TensorRtLlmEngine("fake", settings(), 4, 2048))
    await made.start()
    yield made
    made.stop.set()
    await asyncio.wait_for(made.task, WITHIN_S)
    await made.engine.shutdown(0.0)


async def test_a_reply_is_in_the_log_whole_and_counted(bench: Bench) -> None:
    bench.request("r1", f"echo:{SENTENCE}")
    end = await bench.ended("r1")
    assert (bench.text("r1"), end.status) == (SENTENCE, "completed")
    shown = sum(piece.tokens for piece in bench.pieces("r1"))
    assert end.usage.output_tokens == shown + 1  # the token that ends a turn has no text
    assert bench.folded("r1").text == SENTENCE


async def test_a_cancel_ends_the_reply_and_frees_the_slot(bench: Bench) -> None:
    bench.request("r1", LONG, max_tokens=1500)
    await bench.until(lambda: len(bench.pieces("r1")) > 0)
    bench.cancel("r1")
    assert (await bench.ended("r1")).status == "cancelled"
    await bench.until(lambda: bench.engine.stats().active == 0)


async def test_an_abort_that_never_arrives_ends_the_worker_as_stuck(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.request("r1", LONG, max_tokens=1500)
    await bench.until(lambda: len(bench.pieces("r1")) > 0)
    faulty(monkeypatch, hanging_abort=True)
    bench.cancel("r1")
    assert await asyncio.wait_for(asyncio.shield(bench.task), WITHIN_S) == "engine_stuck"


async def test_an_executor_that_dies_ends_the_worker_and_hands_its_replies_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty(monkeypatch, background_error_at=5)
    bench.request("r1", LONG, max_tokens=1500)
    assert await asyncio.wait_for(asyncio.shield(bench.task), WITHIN_S) == "engine_dead"
    finished = bench.finished("r1")
    assert finished is not None
    assert finished.returned
