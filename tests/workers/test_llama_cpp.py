"""llama.cpp: accounts apart, conversations that go on, cancels, guesses ahead, and how it breaks."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from inference_workers.engine import (
    Chunk,
    EngineDead,
    EngineError,
    EngineUnavailable,
    Generation,
    GenerationRequest,
    InvalidRequest,
)
from inference_workers.engines.llama_cpp import LlamaCppEngine
from inference_workers.engines.llama_cpp_settings import LlamaCppSettings
from inference_workers.engines.llama_server import LlamaSettings, find_model
from schemas.values import PromptMessage

pytestmark = pytest.mark.model

WITHIN_S = 60
STORY = "the quick brown fox jumps over the lazy dog and runs on through the old wood " * 2
numbers = iter(range(1, 1_000_000))


def ask(*contents: str, salt: str | None = None, max_tokens: int = 4, **members: Any) -> GenerationRequest:
    """A conversation: user, assistant, user, …"""
    roles = ("user", "assistant")
    messages = tuple(PromptMessage(role=roles[n % 2], content=content) for n, content in enumerate(contents))  # type: ignore[arg-type]
    members.setdefault("temperature", 0.0)
    return GenerationRequest(
        id=f"g{next(numbers)}", messages=messages, max_tokens=max_tokens, seed=7, cache_salt=salt, **members
    )


def settings(**changes: Any) -> LlamaSettings:
    values: dict[str, Any] = {"model": "smollm2", "model_path": find_model(), "slots": 2, "context_tokens": 512}
    return LlamaSettings(**values | changes)


@contextlib.asynccontextmanager
async def running(**changes: Any) -> AsyncIterator[LlamaCppEngine]:
    engine = LlamaCppEngine(settings(**changes))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.shutdown(0.0)


async def answered(engine: LlamaCppEngine, request: GenerationRequest) -> tuple[str, int]:
    """Text, and tokens that came out of the cache."""
    generation = engine.generate(request)
    async with asyncio.timeout(WITHIN_S):
        text = "".join([chunk.text async for chunk in generation])
    return text, generation.usage.cached_input_tokens


async def read(generation: Generation, into: list[Chunk]) -> None:
    async with asyncio.timeout(WITHIN_S):
        async for chunk in generation:
            into.append(chunk)  # noqa: PERF401 - what came before an error counts


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - what it waits for is a count, not an event
            await asyncio.sleep(0)


async def test_a_second_turn_is_read_from_the_cache_of_its_own_account_only() -> None:
    async with running() as engine:
        reply, cached = await answered(engine, ask(STORY, salt="a"))
        assert cached == 0
        assert await answered(engine, ask(STORY, salt="b")) == (reply, 0)
        read_before = engine.stats().prompt_tokens / 2
        _, cached = await answered(engine, ask(STORY, reply, "go on", salt="a"))
        assert cached > 0.9 * read_before
        _, cached = await answered(engine, ask(STORY, reply, "go on", salt="c"))
        assert cached == 0
        assert engine.stats().cached_tokens > 0


async def test_accounts_stay_apart_in_a_single_slot() -> None:
    async with running(slots=1) as engine:
        for salt in ("a", "b", None, "a", "b"):
            assert (await answered(engine, ask(STORY, salt=salt)))[1] == 0
        assert (await answered(engine, ask(STORY, salt="b")))[1] > 0


async def test_accounts_stay_apart_when_many_ask_at_the_same_time() -> None:
    async with running() as engine:
        first = [ask(STORY, salt=salt) for salt in ("a", "b", "c", "d", "e")]
        replies = await asyncio.gather(*(answered(engine, request) for request in first))
        assert [cached for _, cached in replies] == [0] * 5
        assert len({text for text, _ in replies}) == 1
        strangers = [ask(STORY, salt=salt) for salt in ("f", "g", "h")]
        assert [cached for _, cached in await asyncio.gather(*(answered(engine, one) for one in strangers))] == [0] * 3


async def test_a_cancel_before_the_prompt_was_read_gives_its_account_nothing_of_another() -> None:
    async with running(slots=1) as engine:
        await answered(engine, ask(STORY, salt="a"))
        generation = engine.generate(ask(STORY, salt="b"))
        await generation.aclose()
        assert (await answered(engine, ask(STORY, salt="b")))[1] <= generation.usage.input_tokens


async def test_two_conversations_of_an_account_each_go_on_where_they_were() -> None:
    async with running() as engine:
        one, other = ("tell me about the sea " * 8, "what is a mountain made of " * 8)
        replies = [(await answered(engine, ask(content, salt="a")))[0] for content in (one, other)]
        for content, reply in ((one, replies[0]), (other, replies[1])):
            assert (await answered(engine, ask(content, reply, "and then?", salt="a")))[1] > 40


async def test_a_spare_slot_keeps_a_conversation_while_others_are_answered() -> None:
    async with running(slots=1, spare_slots=1) as engine:
        reply, _ = await answered(engine, ask(STORY, salt="a"))
        assert (await answered(engine, ask(STORY, salt="b")))[1] == 0
        assert (await answered(engine, ask(STORY, reply, "go on", salt="a")))[1] > 0
        assert engine.info().slots == 1


async def test_a_cancel_while_the_prompt_is_read_frees_the_slot_soon_and_harms_no_other() -> None:
    async with running() as engine:
        undisturbed, _ = await answered(engine, ask("hello", salt="x"))
        for _ in range(2):
            generation = engine.generate(ask("word " * 400, salt="a"))
            await until(lambda generation=generation: generation.usage.input_tokens > 0)  # type: ignore[misc]
            began_s = time.monotonic()
            await generation.aclose()
            assert time.monotonic() - began_s < 2.0
            assert generation.usage.input_tokens < 400
            assert generation.usage.output_tokens == 0
        assert engine.stats().active == 0
        assert (await answered(engine, ask("hello", salt="y")))[0] == undisturbed


async def test_a_prompt_that_waits_for_another_to_be_read_is_cancelled_at_once() -> None:
    async with running() as engine:
        reading = engine.generate(ask("word " * 400))
        waiting = engine.generate(ask("word " * 300))
        await until(lambda: reading.usage.input_tokens > 0)
        assert (engine.stats().active, engine.stats().queued) == (2, 0)
        await waiting.aclose()
        assert waiting.usage.input_tokens == 0
        assert engine.stats().active == 1
        assert reading.usage.input_tokens < 200
        await reading.aclose()


REPEATS = "Repeat: one fine day, one fine day, one fine day, one fine day, one fine day, one fine day"


async def test_generations_are_batched() -> None:
    async with running(slots=4) as engine:
        generations = [engine.generate(ask(REPEATS, max_tokens=300, salt=f"{n}")) for n in range(4)]
        async with asyncio.timeout(WITHIN_S):
            for generation in generations:
                await generation.__anext__()
        stats = engine.stats()
        assert stats.active == 4
        used = sum(generation.usage.input_tokens + generation.usage.output_tokens for generation in generations)
        assert stats.kv_tokens_used == used
        assert stats.step_ms is not None
        assert 0 < stats.step_ms < 10_000
        assert 0 <= stats.age_s < WITHIN_S
        for generation in generations:
            await generation.aclose()
        assert (engine.stats().kv_tokens_used, engine.stats().age_s) == (0, 0.0)


@pytest.mark.parametrize("kind", ["ngram_simple", "draft"])
async def test_guesses_ahead_change_neither_text_nor_counts(kind: str) -> None:
    requests = [(REPEATS, 48), ("hello", 24)]
    async with running() as plain:
        expected = [await answered(plain, ask(text, max_tokens=limit)) for text, limit in requests]
        tokens = plain.stats().output_tokens
    draft = find_model() if kind == "draft" else None
    async with running(speculative=kind, draft_model_path=draft) as engine:
        found = await asyncio.gather(*(answered(engine, ask(text, max_tokens=limit)) for text, limit in requests))
        assert [text for text, _ in found] == [text for text, _ in expected]
        assert engine.stats().output_tokens == tokens
        generation = engine.generate(ask(REPEATS, max_tokens=48, salt="other"))
        async with asyncio.timeout(WITHIN_S):
            chunks = [chunk async for chunk in generation]
        assert sum(chunk.tokens for chunk in chunks) == generation.usage.output_tokens
        assert generation.usage.cached_input_tokens == 0


async def test_text_that_is_none_is_the_requests_fault() -> None:
    async with running() as engine:
        with pytest.raises(InvalidRequest):
            await answered(engine, ask("a\ud800b"))
        assert (await answered(engine, ask("hello")))[0]


async def test_what_is_no_model_is_unavailable(tmp_path: Any) -> None:
    (tmp_path / "no.gguf").write_bytes(b"no model")
    for path in (tmp_path / "no.gguf", tmp_path / "missing.gguf"):
        with pytest.raises(EngineUnavailable):
            await LlamaCppEngine(settings(model_path=path)).start()


LOADS_AND_ENDS = """
from inference_workers.engines.llama_server import LlamaSettings, find_model, load

settings = LlamaSettings(model="smollm2", model_path=find_model(), slots=1, context_tokens=256)
for _ in range(4):
    load(settings)
"""


def test_a_server_that_is_ended_as_soon_as_it_is_loaded_ends() -> None:
    """More of them than cores, so that some end before their main loop had its turn."""
    processes = [subprocess.Popen([sys.executable, "-c", LOADS_AND_ENDS]) for _ in range(4)]
    try:
        assert [process.wait(WITHIN_S) for process in processes] == [0] * 4
    finally:
        for process in processes:
            process.kill()


class Breaking:
    """A server of the same shape that sends chunks and then breaks."""

    def __init__(self, error: BaseException | None, *chunks: object) -> None:
        self.error = error
        self.chunks = chunks

    def handle_chat_completions(self, prompt: bytes, callback: Callable[[bytes], bool]) -> None:
        assert msgspec.json.decode(prompt)["id_slot"] in (0, 1)
        for chunk in self.chunks:
            if callback(chunk if isinstance(chunk, bytes) else msgspec.json.encode(chunk)):
                return
        if self.error is not None:
            raise self.error


TOKEN = {"choices": [{"delta": {"content": "a"}}], "timings": {"predicted_n": 1, "predicted_ms": 0.1}}
FAILED = {"error": {"code": 500, "type": "server_error", "message": "Compute error."}}


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (Breaking(ValueError("'messages' is wrong")), InvalidRequest),
        (Breaking(RuntimeError("the template wants roles to alternate")), InvalidRequest),
        (Breaking(RuntimeError("queue stopped"), TOKEN), EngineDead),
        (Breaking(MemoryError()), EngineDead),
        (Breaking(None, TOKEN, FAILED), EngineError),
        (Breaking(None, TOKEN, b"not JSON", TOKEN), EngineError),
        (Breaking(None, TOKEN, b'{"error":' + b"[" * 5000), EngineError),
        (Breaking(None, TOKEN, b'{"error":' + b"[" * 900 + b"]" * 900 + b"}"), EngineError),
        (Breaking(None, TOKEN, b'{"choices":[{"delta":{"content":"\xff"}}]}'), EngineError),
        (Breaking(None, TOKEN), EngineError),
    ],
    ids=[
        "value",
        "template",
        "queue",
        "memory",
        "error chunk",
        "garbage",
        "nested",
        "nested whole",
        "no text",
        "no end",
    ],
)
async def test_each_way_to_break_has_its_error_and_frees_the_slot(server: Breaking, expected: type) -> None:
    engine = LlamaCppEngine(settings(), lambda _: server)
    await engine.start()
    for _ in range(3):
        generation = engine.generate(ask("hello"))
        chunks: list[Chunk] = []
        with pytest.raises(EngineError) as raised:
            await read(generation, chunks)
        assert type(raised.value) is expected
        assert "".join(chunk.text for chunk in chunks) == "a" * (TOKEN in server.chunks)
        await generation.aclose()
        assert engine.stats().active == 0
    await engine.shutdown(0.0)


def test_a_draft_needs_a_model_and_a_model_a_draft(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    draft = tmp_path / "small.gguf"
    draft.touch()
    monkeypatch.setenv("TURNLOG_LLAMA_SPECULATIVE", "draft")
    with pytest.raises(ValidationError, match="belong together"):
        LlamaCppSettings()
    monkeypatch.setenv("TURNLOG_LLAMA_DRAFT_MODEL_PATH", str(draft))
    assert LlamaCppSettings().llama_speculative == "draft"
    monkeypatch.delenv("TURNLOG_LLAMA_SPECULATIVE")
    with pytest.raises(ValidationError, match="belong together"):
        LlamaCppSettings()
