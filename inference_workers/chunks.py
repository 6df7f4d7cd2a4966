"""The reading end of a generation, shared by the engines: chunks go in as they come, one task takes them out.

What has come since the last take comes out as one chunk, so a slow reader gets larger pieces, not a longer queue.
Bounded by the generation's own token limit.
"""

import asyncio
from collections.abc import Awaitable, Callable

from inference_workers.engine import Chunk, EngineError, Finish
from schemas.values import Usage


def refused(error: EngineError) -> "ChunkStream":
    """A generation that never begins: its iteration raises this."""
    stream = ChunkStream(_nothing)
    stream.fail(error)
    return stream


async def _nothing() -> None:
    return


class ChunkStream:
    """A `Generation` that an engine feeds from its event loop.

    The engine sets `input_tokens` and `cached_tokens` when it knows them, and `counted` where tokens are estimated;
    `output_tokens` counts what was fed.

    Args:
        close: stops the generation in the engine and waits until its slot is given up; called at most once.
    """

    __slots__ = (
        "_close",
        "_closing",
        "_done",
        "_error",
        "_finish",
        "_heard",
        "_text",
        "_tokens",
        "_waiter",
        "cached_tokens",
        "counted",
        "input_tokens",
        "output_tokens",
    )

    def __init__(self, close: Callable[[], Awaitable[None]], *, input_tokens: int = 0) -> None:
        self.input_tokens = input_tokens
        self.cached_tokens = 0
        self.output_tokens = 0
        self.counted = True
        self._close = close
        self._closing: asyncio.Task[None] | None = None
        self._heard = 0
        self._text: list[str] = []
        self._tokens = 0
        self._finish: Finish | None = None
        self._error: EngineError | None = None
        self._done = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_input_tokens=self.cached_tokens,
            counted=self.counted,
        )

    @property
    def open(self) -> bool:
        """Whether more may be fed."""
        return self._finish is None and self._error is None and not self._done

    def unheard(self, total: int) -> int:
        """Of the `total` tokens that the engine says it has made, how many it had not told before.

        Engines tell some tokens again: each counts once, whatever they say is new.
        """
        fresh = max(0, total - self._heard)
        self._heard += fresh
        return fresh

    def feed(self, text: str, tokens: int, finish: Finish | None = None) -> None:
        """More text. Nothing may follow a `finish`."""
        if not self.open:
            return
        self._text.append(text)
        self._tokens += tokens
        self.output_tokens += tokens
        self._finish = finish
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def fail(self, error: EngineError) -> None:
        """The generation ends with an error, after what was fed before."""
        if self.open:
            self._error = error
            self._wake()

    def __aiter__(self) -> "ChunkStream":
        return self

    async def __anext__(self) -> Chunk:
        while not self._text:
            if self._error is not None and not self._done:
                self._done = True
                raise self._error
            if self._done:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        text = self._text[0] if len(self._text) == 1 else "".join(self._text)
        chunk = Chunk(text=text, tokens=self._tokens, finish=self._finish)
        self._text.clear()
        self._tokens = 0
        if self._finish is not None:
            self._done = True
        return chunk

    async def aclose(self) -> None:
        if self._closing is None:
            # What was fed stays to be read: it is counted in the usage, so it has to be seen.
            self._done = True
            self._wake()
            self._closing = asyncio.ensure_future(self._closed())
        await asyncio.shield(self._closing)

    async def _closed(self) -> None:
        await self._close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
