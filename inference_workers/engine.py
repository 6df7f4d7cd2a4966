"""What a worker asks of an inference engine; every engine in `inference_workers.engines` answers it.

Rules, held for all engines by one contract suite (`tests/workers/test_engine_contract.py`):

1. `generate` returns at once. What it returns is iterated once, by one task; closing it cancels the generation.
2. The texts of the chunks, joined, are the full decode of the generated tokens: no character is ever split, nothing
   of a stop sequence is in it, and no U+FFFD that the full decode does not hold.
3. The last chunk has a `finish` (`stop`: the model ended or met a stop sequence; `length`: the token limit). After
   it the iteration stops. Whatever prevents that is raised as an `EngineError`, after the chunks that came before it.
4. `usage` holds at any time, also after a close: the tokens that the engine has worked on for this generation.
5. A close while the prompt is still being read, while decoding, or before either, leaves other generations unharmed.
6. No more than `info().slots` generations run at a time; the engine queues the others in order of arrival.
"""

from collections.abc import AsyncIterator
from typing import Literal, Protocol

import msgspec

from schemas.values import PromptMessage, Usage

Finish = Literal["stop", "length"]


class EngineError(Exception):
    """Base of what an engine raises for one generation. The generation is over; others go on.

    EngineError           the generation failed inside the engine
    ├── InvalidRequest    the engine does not accept the request: the same one will never work
    │   └── ContextTooLong   prompt and output do not fit the model's context
    ├── EngineOverloaded  no room now: another worker, or later
    ├── Interrupted       it broke off through no fault of the request: what came is void, another attempt may work
    └── EngineDead        the engine runs no more: nothing on this worker will work
    """


class InvalidRequest(EngineError):
    """The engine does not accept the request."""


class ContextTooLong(InvalidRequest):
    """Prompt and output do not fit the model's context."""


class EngineOverloaded(EngineError):
    """The engine has no room for the request now."""


class Interrupted(EngineError):
    """The generation broke off through no fault of the request; what came so far is void, another attempt may work."""


class EngineDead(EngineError):
    """The engine runs no more; the process has to be replaced."""


class EngineUnavailable(Exception):
    """The engine cannot be used on this machine, and what to do about it (a missing library, model or setting)."""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the engine's values."""


class GenerationRequest(Value, frozen=True):
    """One prompt and how to answer it."""

    id: str
    messages: tuple[PromptMessage, ...]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    seed: int | None = None
    """The same seed, prompt and sampling give the same text on one engine, where its arithmetic allows."""
    stop: tuple[str, ...] = ()
    cache_salt: str | None = None
    """Only requests of equal salt share cached prefixes. A hash: it may leave the house."""
    priority: float = 0.5
    """From 0 to 1, the higher the sooner, for engines that order what waits inside of them."""


class Chunk(Value, frozen=True):
    """The next piece of text; `tokens` were generated since the chunk before (0 where text was only held back)."""

    text: str
    tokens: int
    finish: Finish | None = None


class EngineInfo(Value, frozen=True):
    """What an engine is; fixed once it has started."""

    engine: str
    model: str
    slots: int
    """Generations that run at a time."""
    context_tokens: int
    """Prompt and output together, per generation."""
    kv_tokens: int
    """Tokens that the KV cache holds, over all generations; 0 where the engine does not say."""


class EngineStats(Value, frozen=True):
    """How busy an engine is, and its totals since it started."""

    active: int
    """Slots taken: also by generations that were cancelled and have not stopped yet."""
    queued: int
    kv_tokens_used: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    """Times that a running generation lost its KV blocks to others and had to be read again."""
    step_ms: float | None = None
    """Duration of the engine's last iteration, where it says."""
    age_s: float = 0.0
    """How old these numbers are. Of an engine that has stopped telling them the worker takes no more work."""


class Generation(Protocol):
    """A running generation: iterate it for its chunks."""

    @property
    def usage(self) -> Usage:
        """Tokens so far."""

    def __aiter__(self) -> AsyncIterator[Chunk]:
        """Itself."""

    async def __anext__(self) -> Chunk:
        """The next chunk: everything that has become ready since the last one. Raises `EngineError`."""

    async def aclose(self) -> None:
        """Cancel, if it still runs; returns when the engine has given up the slot. May be called again."""


class Engine(Protocol):
    """An inference engine in this process. All calls from the event loop that `start` ran on."""

    async def start(self) -> None:
        """Load and warm up. Raises `EngineUnavailable`, or `EngineDead`."""

    async def shutdown(self, drain_s: float) -> None:
        """Stop; generations still running after `drain_s` seconds are cancelled."""

    def info(self) -> EngineInfo:
        """What it is; valid after `start`."""

    def generate(self, request: GenerationRequest) -> Generation:
        """Begin to answer. Errors come out of the iteration."""

    def stats(self) -> EngineStats:
        """How busy it is now."""


def check(request: GenerationRequest) -> None:
    """What no engine accepts. Raises `InvalidRequest` with the member and the reason."""
    if not request.messages:
        raise InvalidRequest("messages: at least one is needed")
    if not all(_is_text(message.content) for message in request.messages):
        raise InvalidRequest("messages: half a surrogate pair is no text")
    if not all(_is_text(sequence) for sequence in request.stop):
        raise InvalidRequest("stop: half a surrogate pair is no text")
    if request.max_tokens < 1:
        raise InvalidRequest(f"max_tokens: {request.max_tokens} is less than 1")
    if any(not sequence for sequence in request.stop):
        raise InvalidRequest("stop: a stop sequence must not be empty")
    if not 0 <= request.temperature <= 100:
        raise InvalidRequest(f"temperature: {request.temperature} is out of range")
    if not 0 < request.top_p <= 1:
        raise InvalidRequest(f"top_p: {request.top_p} is not in (0, 1]")


def _is_text(text: str) -> bool:
    """Whether it can be written as UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
