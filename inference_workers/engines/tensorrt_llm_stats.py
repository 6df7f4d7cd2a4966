"""What TensorRT-LLM says of its iterations, every member of it optional, folded into what a worker asks for."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

import msgspec
import structlog

logger = structlog.get_logger("inference_workers")

STATS_IDLE_S = 0.2
"""A round of statistics ends when none came for so long. Short: some versions wait for it in the calling thread."""
STATS_PAUSE_S = 0.05
STATS_FIRST_S = 2.0
"""How long the first statistics may take after the first generation."""

Source = Callable[[float], AsyncIterator[Mapping[str, Any]]]
"""A round of statistics or events; it ends when none came for so many seconds."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The newest of what has been told, and what adds up."""

    at_s: float | None = None
    """When, on the event loop's clock; None: never."""
    kv_tokens: int = 0
    """Tokens that the cache holds; 0: not said."""
    kv_tokens_used: int | None = None
    step_ms: float | None = None
    paused: int = 0
    preemptions: int = 0

    def and_then(self, said: Mapping[str, Any], now_s: float) -> "Told":
        """With one more iteration."""
        blocks = _object(said, "kvCacheStats")
        paused = _number(_object(said, "inflightBatchingStats"), "numPausedRequests")
        per_block = _number(blocks, "tokensPerBlock") or 0
        used, size = _number(blocks, "usedNumBlocks"), _number(blocks, "maxNumBlocks")
        step_ms = _number(said, "iterLatencyMS")
        return Told(
            at_s=now_s,
            kv_tokens=int(size * per_block) if size else self.kv_tokens,
            kv_tokens_used=self.kv_tokens_used if used is None or not per_block else int(used * per_block),
            step_ms=self.step_ms if step_ms is None else step_ms,
            paused=self.paused if paused is None else int(paused),
            preemptions=self.preemptions + max(0, int(paused or 0) - self.paused),
        )


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of the KV cache that became reusable and that were given up, since the start."""

    stored: int = 0
    removed: int = 0

    def and_then(self, event: Mapping[str, Any]) -> "Blocks":
        """With one more event."""
        data = _object(event, "data") or event
        match data.get("type"):
            case "stored":
                return Blocks(stored=self.stored + _length(data, "blocks"), removed=self.removed)
            case "removed":
                return Blocks(stored=self.stored, removed=self.removed + _length(data, "block_hashes"))
        return self


class Listener:
    """The one reader of the library's two queues.

    Args:
        broke: told when a queue fails.
    """

    def __init__(self, broke: Callable[[BaseException], None]) -> None:
        self.told = Told()
        self.blocks = Blocks()
        self.busy = asyncio.Event()
        """Set while requests run; nothing is told in between."""
        self.tells = False
        """Statistics arrive, so their age says something."""
        self._broke = broke
        self._tasks: list[asyncio.Task[None]] = []
        self._arrived = asyncio.Event()

    def start(self, statistics: Source | None, events: Source | None) -> None:
        """Listen to those that are not None."""
        if statistics is not None:
            self._begin(self._statistics(statistics))
        if events is not None:
            self._begin(self._events(events))
        self.tells = statistics is not None

    async def first(self) -> None:
        """After the first generation: whether statistics arrive at all. Those that never came are not waited for."""
        if self.tells:
            try:
                await asyncio.wait_for(self._arrived.wait(), STATS_FIRST_S)
            except TimeoutError:
                self.tells = False
                logger.warning("engine_tells_no_statistics", engine="tensorrt_llm")

    def stop(self) -> None:
        """Listen no more."""
        for task in self._tasks:
            task.cancel()

    def _begin(self, listening: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(listening)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, NotImplementedError):
            self.tells = False
            logger.warning("engine_tells_no_statistics", engine="tensorrt_llm", reason=str(error))
        elif error is not None:
            self._broke(error)

    async def _statistics(self, source: Source) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self.busy.wait()
            async for said in source(STATS_IDLE_S):
                self.told = self.told.and_then(said, loop.time())
                self._arrived.set()
            await asyncio.sleep(STATS_PAUSE_S)

    async def _events(self, source: Source) -> None:
        while True:
            await self.busy.wait()
            async for event in source(STATS_IDLE_S):
                self.blocks = self.blocks.and_then(event)
            await asyncio.sleep(STATS_PAUSE_S)


def _object(said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = said.get(name)
    return value if isinstance(value, Mapping) else {}


def _number(said: Mapping[str, Any], name: str) -> float | None:
    value = said.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _length(said: Mapping[str, Any], name: str) -> int:
    value = said.get(name)
    return len(value) if isinstance(value, list | tuple) else 0
