"""The engine under test, and what may be asked of it."""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol, runtime_checkable

import msgspec

from inference_workers.engine import Chunk, Engine, EngineInfo, Generation, GenerationRequest
from schemas.values import PromptMessage

COUNT = "Count from one to one thousand in words. Do not stop before, and write nothing else."
CLOSE_S = 10.0
"""How long a close is waited for."""
SCRIPT = {"chunks": 100_000, "every_ms": 5.0}
"""What says something long to the scripted engine."""


@runtime_checkable
class Open(Protocol):
    """An engine that lets its library and its tokenizer be looked at."""

    def describe(self) -> tuple[str, ...]:
        """One line each about what is installed."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""

    def decode(self, ids: list[int]) -> str:
        """The full decode."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A generation from beginning to end."""

    text: str
    chunks: tuple[Chunk, ...]
    first_ms: float
    total_ms: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    ids: tuple[int, ...] | None
    """Where the engine tells them."""


class Subject:
    """An engine that has started."""

    def __init__(self, engine: Engine, cancel_ms: float) -> None:
        """`cancel_ms`: how long it may take to give up a slot."""
        self.engine = engine
        self.cancel_ms = cancel_ms
        self.info: EngineInfo = engine.info()
        self._numbers = itertools.count(1)
        self._run = secrets.token_hex(4)

    @property
    def scripted(self) -> bool:
        """It obeys scripts, and understands nothing else."""
        return self.info.engine == "scripted"

    def long(self) -> str:
        """A prompt that leads to a long answer."""
        return msgspec.json.encode(SCRIPT).decode() if self.scripted else COUNT

    def say(self, text: str) -> str:
        """A prompt that leads to this text, as far as the engine does what it is told."""
        if self.scripted:
            return msgspec.json.encode({"text": text, "split_utf8": True}).decode()
        return f"Repeat this line exactly, and nothing else: {text}"

    def unique(self) -> str:
        """A text that no request before had."""
        return f"Run {self._run}, part {next(self._numbers)}."

    def request(self, content: str, *, system: str = "", max_tokens: int = 32, **members: Any) -> GenerationRequest:
        """Greedy, with a fixed seed, unless it says otherwise."""
        messages: tuple[PromptMessage, ...] = (PromptMessage(role="user", content=content),)
        if system:
            messages = (PromptMessage(role="system", content=system), *messages)
        given: dict[str, Any] = {"temperature": 0.0, "seed": 7, "cache_salt": "self-test", **members}
        number = f"self-test-{self._run}-{next(self._numbers)}"
        return GenerationRequest(id=number, messages=messages, max_tokens=max_tokens, **given)

    async def ask(self, content: str, **members: Any) -> Answer:
        """The whole answer. Raises `EngineError`."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        first: float | None = None
        chunks: list[Chunk] = []
        async with self.opened(self.request(content, **members)) as generation:
            async for chunk in generation:
                first = first or loop.time()
                chunks.append(chunk)
            ids = getattr(generation, "token_ids", None)
        ended = loop.time()
        usage = generation.usage
        return Answer(
            text="".join(chunk.text for chunk in chunks),
            chunks=tuple(chunks),
            first_ms=((first or ended) - began) * 1000,
            total_ms=(ended - began) * 1000,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_input_tokens,
            output_tokens=usage.output_tokens,
            ids=None if ids is None else tuple(ids),
        )

    @asynccontextmanager
    async def opened(self, request: GenerationRequest) -> AsyncIterator[Generation]:
        """A generation that is closed in any case."""
        generation = self.engine.generate(request)
        try:
            yield generation
        finally:
            await self.close_ms(generation)

    async def close_ms(self, generation: Generation) -> float:
        """How long the engine took to give up the slot. An engine that never does is not waited for."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.wait({asyncio.ensure_future(generation.aclose())}, timeout=CLOSE_S)
        return (loop.time() - began) * 1000
