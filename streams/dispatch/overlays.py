"""Changes over a mapping that is not touched until they are settled: so a decision can be dropped, and is cheap.

While changes are laid over a mapping, nobody else may change it.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Overlay(Generic[K, V]):
    """A mapping, changed."""

    __slots__ = ("_base", "_changes")

    def __init__(self, base: dict[K, V]) -> None:
        self._base = base
        self._changes: dict[K, V | None] = {}

    def get(self, name: K) -> V | None:
        """The value, or None."""
        return self._changes[name] if name in self._changes else self._base.get(name)

    def __getitem__(self, name: K) -> V:
        """The value. Raises KeyError where there is none."""
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def put(self, name: K, value: V | None) -> None:
        """The name has this value; none, for None."""
        self._changes[name] = value

    def values(self) -> Iterator[V]:
        """All values. The mapping must not be changed meanwhile."""
        for name, value in self._base.items():
            if name not in self._changes:
                yield value
        yield from (value for value in self._changes.values() if value is not None)

    def settle(self) -> dict[K, V]:
        """Take the changes over; the mapping itself."""
        for name, value in self._changes.items():
            if value is None:
                self._base.pop(name, None)
            else:
                self._base[name] = value
        self._changes = {}
        return self._base


class Memory(Generic[V]):
    """The newest so many names and their values, changed: what is remembered once more is new again."""

    __slots__ = ("_base", "_most", "_news")

    def __init__(self, base: "OrderedDict[str, V]", most: int) -> None:
        self._base = base
        self._most = most
        self._news: dict[str, V] = {}

    def get(self, name: str) -> V | None:
        """The value, or None: unknown, or forgotten."""
        return self._news[name] if name in self._news else self._base.get(name)

    def put(self, name: str, value: V) -> None:
        """Remember this."""
        self._news.pop(name, None)
        self._news[name] = value

    def settle(self) -> "OrderedDict[str, V]":
        """Take the news over, and forget the oldest above the limit; the mapping itself."""
        for name, value in self._news.items():
            self._base[name] = value
            self._base.move_to_end(name)
        while len(self._base) > self._most:
            self._base.popitem(last=False)
        self._news = {}
        return self._base
