"""The time in which a simulated engine lives."""

import asyncio
import heapq
from typing import Protocol


class Clock(Protocol):
    """Seconds that pass."""

    def now_s(self) -> float:
        """The time now."""

    async def sleep(self, duration_s: float) -> None:
        """Wait for so long in this clock's time."""


class RealClock:
    """The event loop's time, `speed` times as fast."""

    def __init__(self, speed: float = 1.0) -> None:
        self._speed = speed

    def now_s(self) -> float:
        return asyncio.get_running_loop().time() * self._speed

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s / self._speed)


class VirtualClock:
    """Time that passes when it is told to: a day of traffic in seconds, the same each time."""

    SETTLE_TURNS = 20
    """Turns of the event loop after each moment, for the tasks that it woke."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._number = 0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now_s(self) -> float:
        return self._now_s

    async def sleep(self, duration_s: float) -> None:
        self._number += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now_s + duration_s, self._number, future))
        await future

    async def advance(self, duration_s: float) -> None:
        """Let so much time pass; whoever sleeps wakes at its moment, in order."""
        until_s = self._now_s + duration_s
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= until_s:
            at_s, _, future = heapq.heappop(self._sleepers)
            self._now_s = max(self._now_s, at_s)
            if not future.done():
                future.set_result(None)
            await self._settle()
        self._now_s = until_s

    async def _settle(self) -> None:
        for _ in range(self.SETTLE_TURNS):
            await asyncio.sleep(0)
