"""Which prefixes the engine has cached, as far as its worker knows: what dispatch is told in leases.

An estimate from what the engine was given: the blocks (`schemas.prefix`) of each prompt when it begins, and of prompt
and reply when it ends, the least recently used forgotten as the KV cache fills. What it says is a hint: the engine's
own count of cached tokens is what is billed.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from schemas.prefix import BLOCK_BYTES, packed

BLOCKS_MAX = 8_192
"""Blocks that are told of; a larger cache is known by its newest part."""
BLOCKS_UNKNOWN = 1_024
"""The same where the engine does not say how much it holds."""
BYTES_PER_TOKEN = 4
WHOLE_EVERY = 10
"""Every so many renewals all blocks are told, for a dispatcher that has restarted."""


class Told(NamedTuple):
    """What a renewal says, as `WorkerLeased` has it."""

    prefixes: str
    dropped: str
    whole: bool


class Prefixes:
    """The blocks, least recently used first, and what was not told yet.

    Args:
        kv_tokens: what the engine's cache holds; 0: not known.
    """

    def __init__(self, kv_tokens: int) -> None:
        self._most = min(BLOCKS_MAX, kv_tokens * BYTES_PER_TOKEN // BLOCK_BYTES) if kv_tokens else BLOCKS_UNKNOWN
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._added: dict[int, None] = {}
        self._dropped: dict[int, None] = {}

    def used(self, names: Iterable[int]) -> None:
        """These blocks are cached now."""
        for name in names:
            if name in self._blocks:
                self._blocks.move_to_end(name)
                continue
            self._blocks[name] = None
            self._added[name] = None
            self._dropped.pop(name, None)
        while len(self._blocks) > self._most:
            oldest, _ = self._blocks.popitem(last=False)
            if self._added.pop(oldest, 0) == 0:
                self._dropped[oldest] = None

    def tell(self, renewal: int) -> Told:
        """What has changed since the last time, or all of it."""
        whole = renewal % WHOLE_EVERY == 1
        told = Told(packed(list(self._blocks) if whole else self._added), "" if whole else packed(self._dropped), whole)
        self._added.clear()
        self._dropped.clear()
        return told
