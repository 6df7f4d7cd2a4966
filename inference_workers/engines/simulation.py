"""A model of a GPU server: continuous batching, a KV cache in blocks, a prefix cache, prefill and decode rates.

Pure: a batch of sequences and a function that gives the next engine step; no clock, no I/O, chance from a seed.

1. A sequence enters the batch, in order of arrival, when a slot is free and the KV cache has blocks for its prompt and
   its whole output. The blocks of a prompt's beginning that the prefix cache has are not read again.
2. One step reads at most `prefill_chunk_tokens` of prompts, oldest first, and gives one token to each sequence whose
   prompt has been read.
3. A step takes `step_overhead_s`, the prompt tokens over the prefill rate, and, when it decodes, the time of one token,
   longer by `slow_down` times the part of the slots that decode, and varied by `jitter`.
"""

import hashlib
import random
from collections import OrderedDict

import msgspec


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong, for each generation; token counts from 1."""

    hang_at: int | None = None
    """After that many tokens it falls silent and keeps its slot until it is closed."""
    crash_at: int | None = None
    """After that many tokens of any generation the engine dies."""
    ignore_abort: bool = False
    """A close does not stop the sequence: it runs to its end."""
    duplicate_diff: bool = False
    """Each piece of output is reported twice."""
    split_utf8: bool = False
    """Tokens end in the middle of characters."""


class SimulatedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The server that is modelled."""

    model: str = "simulated"
    slots: int = 64
    context_tokens: int = 8192
    kv_tokens: int = 262_144
    block_tokens: int = 16
    prefill_tokens_per_s: float = 20_000.0
    prefill_chunk_tokens: int = 2_048
    step_overhead_s: float = 0.001
    token_s: float = 0.012
    slow_down: float = 1.0
    jitter: float = 0.05
    output_tokens_mean: int = 120
    start_s: float = 0.0
    seed: int = 1
    faults: Faults = Faults()


class Sequence(msgspec.Struct):
    """One generation in the model. Changed by `Batch` only."""

    id: str
    prompt: tuple[int, ...]
    output: tuple[bytes, ...]
    """Token bytes that it will give, unless stopped before."""
    cut: bool
    """The answer is longer than what it may give."""
    salt: str
    unread: int = 0
    cached: int = 0
    given: int = 0
    blocks: int = 0
    silent: bool = False


class Produced(msgspec.Struct, frozen=True):
    """A token of a sequence: its position (from 0) and its bytes."""

    id: str
    position: int
    data: bytes


class Step(msgspec.Struct, frozen=True):
    """What one engine step does and how long it takes."""

    duration_s: float
    produced: tuple[Produced, ...]


class Batch:
    """The state of the modelled server."""

    def __init__(self, settings: SimulatedSettings) -> None:
        self._settings = settings
        self._chance = random.Random(settings.seed)
        self._free_blocks = settings.kv_tokens // settings.block_tokens
        self._cache: OrderedDict[bytes, None] = OrderedDict()
        self._cache_max = self._free_blocks
        self.waiting: OrderedDict[str, Sequence] = OrderedDict()
        self.running: OrderedDict[str, Sequence] = OrderedDict()

    @property
    def kv_tokens_used(self) -> int:
        """Tokens of the KV cache that running sequences hold."""
        return sum(sequence.blocks for sequence in self.running.values()) * self._settings.block_tokens

    def add(self, sequence: Sequence) -> None:
        """A new sequence; it waits for a slot."""
        self.waiting[sequence.id] = sequence
        self._admit()

    def remove(self, sequence_id: str) -> None:
        """A sequence is over: its slot and its blocks are free."""
        self.waiting.pop(sequence_id, None)
        sequence = self.running.pop(sequence_id, None)
        if sequence is not None:
            self._free_blocks += sequence.blocks
            self._remember(sequence)
        self._admit()

    def step(self) -> Step | None:
        """The next step; None when nothing is to be done."""
        budget = self._settings.prefill_chunk_tokens
        read = 0
        produced: list[Produced] = []
        for sequence in self.running.values():
            if sequence.unread:
                part = min(sequence.unread, budget - read)
                sequence.unread -= part
                read += part
            elif not sequence.silent and sequence.given < len(sequence.output):
                produced.append(Produced(sequence.id, sequence.given, sequence.output[sequence.given]))
                sequence.given += 1
        if not read and not produced:
            return None
        return Step(self._duration_s(read, len(produced)), tuple(produced))

    def _duration_s(self, read: int, decoded: int) -> float:
        settings = self._settings
        token_s = settings.token_s * (1 + settings.slow_down * decoded / settings.slots) if decoded else 0.0
        varied = max(0.0, self._chance.gauss(1.0, settings.jitter))
        return settings.step_overhead_s + read / settings.prefill_tokens_per_s + token_s * varied

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._settings.slots:
            sequence = next(iter(self.waiting.values()))
            blocks = -(-(len(sequence.prompt) + len(sequence.output)) // self._settings.block_tokens)
            if blocks > self._free_blocks:
                return
            del self.waiting[sequence.id]
            self._free_blocks -= blocks
            sequence.blocks = blocks
            sequence.cached = self._cached(sequence)
            sequence.unread = len(sequence.prompt) - sequence.cached
            self.running[sequence.id] = sequence

    def _cached(self, sequence: Sequence) -> int:
        """Tokens at the beginning of the prompt that need not be read; the last token always is."""
        found = 0
        for name in _block_names(sequence.prompt, self._settings.block_tokens, sequence.salt):
            if name not in self._cache:
                break
            self._cache.move_to_end(name)
            found += self._settings.block_tokens
        return min(found, len(sequence.prompt) - 1)

    def _remember(self, sequence: Sequence) -> None:
        if sequence.unread:
            return
        for name in _block_names(sequence.prompt, self._settings.block_tokens, sequence.salt):
            self._cache[name] = None
            self._cache.move_to_end(name)
        while len(self._cache) > self._cache_max:
            self._cache.popitem(last=False)


def _block_names(prompt: tuple[int, ...], size: int, salt: str) -> list[bytes]:
    """A name for each full block: it stands for the block and everything before it."""
    names: list[bytes] = []
    name = salt.encode()
    for start in range(0, len(prompt) - size + 1, size):
        block = ",".join(map(str, prompt[start : start + size])).encode()
        name = hashlib.blake2b(name + b"|" + block, digest_size=16).digest()
        names.append(name)
    return names
