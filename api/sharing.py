"""Questions to a store that many ask at once: few are on their way, and those who wait for the same share one.

Rules:

1. So many questions are on their way at most; the rest wait in line, in their order. A burst of readers takes longer
   then, and is not told that the store is down.
2. Who asks what is still in line gets that answer: it will be read after his asking, as his own would be. A question
   that is on its way already is nobody else's: what was written since may not be in its answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """See the rules of this module."""

    def __init__(self, at_once: int) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._line: dict[Hashable, asyncio.Future[T]] = {}

    async def ask(self, key: Hashable, question: Callable[[], Awaitable[T]]) -> T:
        """The answer; raises what the question raises."""
        waiting = self._line.get(key)
        if waiting is None:
            waiting = self._line[key] = asyncio.ensure_future(self._in_turn(key, question))
            waiting.add_done_callback(_heard)
        return await asyncio.shield(waiting)

    async def _in_turn(self, key: Hashable, question: Callable[[], Awaitable[T]]) -> T:
        async with self._free:
            del self._line[key]
            return await question()


def _heard(answer: "asyncio.Future[T]") -> None:
    """Whoever still waits gets an error; nobody may be left."""
    if not answer.cancelled():
        answer.exception()
