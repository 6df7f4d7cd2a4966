"""Which workers have which blocks of prompts cached (`schemas.prefix`), by block.

A prompt of hundreds of blocks is compared with all workers at once: a look-up for each block, and not one for each
block of each worker. What is here is always what the workers' `prefixes` and `fresh` say together.
"""

from collections.abc import Iterable, Mapping, Sequence

from streams.dispatch.overlays import Overlay
from streams.dispatch.pool import Worker

NONE: frozenset[int] = frozenset()


class Caches:
    """Changes over `base`, by block: the inboxes of the workers that have it, a bit each."""

    __slots__ = ("_bits",)

    def __init__(self, base: dict[int, int]) -> None:
        self._bits: Overlay[int, int] = Overlay(base)

    def changed(self, before: Worker | None, after: Worker, names: Iterable[int] | None = None) -> None:
        """The worker of an inbox is another one now, or has cached something else.

        Args:
            before: what it was, None where there was none.
            after: what it is.
            names: the blocks that may have come or gone, where they are known: sets of thousands are not compared then.
        """
        had, had_fresh = (before.prefixes, before.fresh) if before else (NONE, NONE)
        if had is after.prefixes and had_fresh is after.fresh:
            return
        if names is None:
            names = (had | had_fresh) ^ (after.prefixes | after.fresh)
        bit = 1 << after.registered.inbox
        for name in names:
            bits = self._bits.get(name) or 0
            now = bits | bit if name in after.prefixes or name in after.fresh else bits & ~bit
            if now != bits:
                self._bits.put(name, now or None)

    def shared(self, names: Sequence[int]) -> Mapping[int, int]:
        """By inbox: how many blocks of a prompt, from its beginning on, are cached there; not named: none."""
        found: dict[int, int] = {}
        left = (self._bits.get(names[0]) or 0) if names else 0
        for count, name in enumerate(names):
            kept = left & (self._bits.get(name) or 0)
            for inbox in _numbers(left & ~kept):
                found[inbox] = count
            if not kept:
                return found
            left = kept
        for inbox in _numbers(left):
            found[inbox] = len(names)
        return found

    def settle(self) -> dict[int, int]:
        """Take the changes over; `base` itself."""
        return self._bits.settle()


def _numbers(bits: int) -> list[int]:
    """The numbers of the bits that are set."""
    found: list[int] = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found
