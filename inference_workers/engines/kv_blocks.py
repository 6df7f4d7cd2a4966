"""The KV cache of a modelled server: blocks of equal size that are counted, shared by name and evicted.

1. A block is free, or held without a name by one sequence, or named and referenced by one or more, or named and
   cached: referenced by none and kept for the next one that begins alike. Free, held, referenced and cached blocks
   are always all blocks.
2. A name stands for a block's tokens and everything before them (vLLM's prefix caching, and TensorRT-LLM's block
   reuse). The first link of the chain is the salt, so different salts never share a block.
3. A block that is asked for is a free one, else the cached one that was used the longest time ago.

Pure: no clock, no I/O.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable

import msgspec


class Run(msgspec.Struct, frozen=True):
    """A part of a prompt: `tokens` where they are known, else `length` tokens that equal those of the same `name`."""

    tokens: tuple[int, ...] = ()
    name: int = 0
    length: int = 0

    @property
    def size(self) -> int:
        """Its tokens, counted."""
        return len(self.tokens) or self.length

    def part(self, start: int, end: int) -> tuple[int, ...]:
        """What stands for these of its tokens in a block's name."""
        return self.tokens[start:end] if self.tokens else (-1, self.name, start, end)


class Chain(msgspec.Struct, frozen=True):
    """The names of a prompt's full blocks, and what stands for the tokens after them."""

    names: tuple[int, ...]
    tail: tuple[int, ...]


def root(salt: str) -> int:
    """The first link of the chains of a salt."""
    return int.from_bytes(hashlib.blake2b(salt.encode(), digest_size=8).digest())


def link(before: int, block: tuple[int, ...]) -> int:
    """The name of a block after the one named `before`. The same in every process: nothing but integers is hashed."""
    return hash((before, block))


def chain(runs: Iterable[Run], block_tokens: int, first: int) -> Chain:
    """The names of the blocks of a prompt that consists of these runs."""
    names: list[int] = []
    block: tuple[int, ...] = ()
    filled = 0
    for run in runs:
        at, size = 0, run.size
        while at < size:
            take = min(block_tokens - filled, size - at)
            block += run.part(at, at + take)
            at += take
            filled += take
            if filled == block_tokens:
                first = link(first, block)
                names.append(first)
                block, filled = (), 0
    return Chain(tuple(names), block)


class KvBlocks:
    """All blocks of one server."""

    __slots__ = ("_cached", "_references", "free", "held", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self.held = 0
        self._references: dict[int, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def referenced(self) -> int:
        """Named blocks that sequences use."""
        return len(self._references)

    @property
    def cached(self) -> int:
        """Named blocks that no sequence uses."""
        return len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that can be taken."""
        return self.free + len(self._cached)

    def take(self, count: int) -> bool:
        """Hold so many more blocks without a name, or, where there are not so many, none."""
        if count > self.free + len(self._cached):
            return False
        for _ in range(count - self.free):
            self._cached.popitem(last=False)
            self.free += 1
        self.free -= count
        self.held += count
        return True

    def share(self, names: Iterable[int]) -> int:
        """Reference the longest beginning of these names that is there; how many they are."""
        references, cached = self._references, self._cached
        found = 0
        for name in names:
            count = references.get(name)
            if count is None:
                if name not in cached:
                    break
                del cached[name]
                count = 0
            references[name] = count + 1
            found += 1
        return found

    def name(self, name: int) -> None:
        """A held block is full and has this name now. Where another block has it already, that one is shared."""
        self.held -= 1
        count = self._references.get(name)
        if count is not None:
            self._references[name] = count + 1
            self.free += 1
            return
        if name in self._cached:
            del self._cached[name]
            self.free += 1
        self._references[name] = 1

    def release(self, names: list[int], held: int) -> None:
        """A sequence gives up its blocks. Of the named ones the last is evicted first: no other needs it alone."""
        self.held -= held
        self.free += held
        references = self._references
        for name in reversed(names):
            count = references[name]
            if count > 1:
                references[name] = count - 1
            else:
                del references[name]
                self._cached[name] = None
