"""The pace at which requests begin: so many in one iteration of the event loop, the others in the next ones.

A thousand requests that arrive together would otherwise all run before anything else does: a stream's next chunk would
wait for all of them.
"""

import asyncio
from collections import deque


class Pacing:
    """See above. `at_once`: how many begin in one iteration."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._begun = 0
        self._line: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Returns when it is the caller's turn: at once, where few have begun."""
        if self._begun < self._at_once and not self._line:
            self._begin()
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(mine)
        await mine

    def _begin(self) -> None:
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._next)
        self._begun += 1

    def _next(self) -> None:
        self._begun = 0
        while self._line and self._begun < self._at_once:
            first = self._line.popleft()
            if not first.done():
                self._begin()
                first.set_result(None)
