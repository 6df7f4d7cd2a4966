"""An engine's slots and the queue before them: first come, first served."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Slots(Generic[T]):
    """At most `capacity` items are active; the others wait in order. Items are compared by identity."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError("an engine needs at least one slot")
        self.capacity = capacity
        self._active: dict[int, T] = {}
        self._waiting: deque[T] = deque()

    @property
    def active(self) -> int:
        """Slots taken."""
        return len(self._active)

    @property
    def queued(self) -> int:
        """Items that wait."""
        return len(self._waiting)

    def items(self) -> list[T]:
        """All items: the active ones, then the waiting ones."""
        return [*self._active.values(), *self._waiting]

    def enter(self, item: T) -> bool:
        """Take a slot (True) or queue up (False)."""
        if len(self._active) < self.capacity:
            self._active[id(item)] = item
            return True
        self._waiting.append(item)
        return False

    def leave(self, item: T) -> T | None:
        """Give up the slot or the place in the queue; the item that now has the slot, if one does."""
        if self._active.pop(id(item), None) is None:
            self._waiting = deque(other for other in self._waiting if other is not item)
            return None
        if not self._waiting:
            return None
        following = self._waiting.popleft()
        self._active[id(following)] = following
        return following
