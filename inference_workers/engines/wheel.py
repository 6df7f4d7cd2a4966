"""One timer for all streams of an engine: whatever is due goes off in one burst.

Times are the event loop's seconds. An item never goes off before its time; it may go off up to a step later, and the
step grows with the number of items (20 µs each, at most 5 ms), so that hundreds of streams cost one wake-up a step.
Lateness does not add up: each item names its next time itself.
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

STEP_S_MAX = 0.005
STEP_S_PER_ITEM = 0.000_02

T = TypeVar("T")


class Wheel(Generic[T]):
    """Calls `fire(item, now)` when an item's time has come; its return is the item's next time, or None."""

    def __init__(self, fire: Callable[[T, float], float | None]) -> None:
        self._fire = fire
        self._heap: list[tuple[float, int, T]] = []
        self._number = 0
        self._timer: asyncio.Handle | None = None
        self._armed = 0.0
        """When the timer goes off; kept here because a loop may answer a time that has come with a plain handle."""
        self._last = 0.0

    def add(self, item: T, at: float) -> None:
        """Let the item go off at a time. An item that is over simply returns None when it goes off."""
        self._number += 1
        heapq.heappush(self._heap, (at, self._number, item))
        self._arm()

    def close(self) -> None:
        """Nothing goes off any more."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if not self._heap:
            return
        step = min(STEP_S_MAX, STEP_S_PER_ITEM * len(self._heap))
        at = max(self._heap[0][0], self._last + step)
        if self._timer is not None:
            if self._armed <= at:
                return
            self._timer.cancel()
        self._armed = at
        self._timer = asyncio.get_running_loop().call_at(at, self._turn)

    def _turn(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        self._last = now
        heap = self._heap
        again: list[tuple[float, int, T]] = []
        while heap and heap[0][0] <= now:
            _, number, item = heapq.heappop(heap)
            following = self._fire(item, now)
            if following is not None:
                again.append((following, number, item))
        for entry in again:
            heapq.heappush(heap, entry)
        self._arm()
