"""A model of a GPU server: a batch of sequences, its KV cache, and a function that gives the next engine step.

Pure: no clock, no I/O, chance from a seed.

1. A step reads at most `prefill_chunk_tokens` of prompts, oldest first (chunked prefill), and gives one token to each
   sequence whose prompt has been read; the step that reads the end of a prompt gives its first token.
2. `batching="iteration"` (Orca): sequences enter and leave between any two steps, in order of arrival, when a slot is
   free and the KV cache has room for their prompt. `batching="request"` (FasterTransformer): a batch enters when the
   batch before it is over, reads its prompts in one step, and keeps each slot until the last of it has ended.
3. `reserve="nothing"` (vLLM): blocks are taken as a sequence grows. Where none is left, the youngest sequence loses
   its blocks and waits at the head of the queue, to read its prompt and what it had given again: its text does not
   change. The oldest is never hit as long as another runs, so each comes to its end. `reserve="output"` takes the
   prompt and the token limit at once (TensorRT-LLM's "guaranteed no evict"), `reserve="context"` the longest sequence
   that there may be, in one piece (FasterTransformer, Orca).
4. With `prefix_cache`, and `reserve="nothing"`, full blocks are shared between sequences that begin alike and have
   the same salt, and stay until their room is needed (`engines.kv_blocks`).
5. A step takes `step_overhead_s` + `token_s` (reading the weights) + `sequence_s` for each sequence that decodes
   + `kv_token_s` for each KV token that these attend to (reading the cache: decoding is bound by memory)
   + prompt tokens read / `prefill_tokens_per_s` + `attention_s` for each pair of a prompt token read and a token
   before it; the first four varied by `jitter`. In a batch by requests, sequences that have ended go on to count.

Sources: Yu et al., "Orca", OSDI 2022, for 2; Kwon et al., "Efficient Memory Management for LLM Serving with
PagedAttention", SOSP 2023, for 3 and 4 (preemption by recomputation, all or nothing, the latest first).
"""

import random
from collections import OrderedDict
from typing import Literal

import msgspec

from inference_workers.engines.kv_blocks import KvBlocks, link
from inference_workers.engines.sequences import Sequence, Step

Batching = Literal["iteration", "request"]
Reserve = Literal["nothing", "output", "context"]


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong; token counts from 1."""

    hang_at: int | None = None
    """After that many tokens a generation falls silent and keeps its slot until it is closed."""
    crash_at: int | None = None
    """After that many tokens of any generation the engine dies."""
    ignore_abort: bool = False
    """A close does not stop the sequence: it runs to its end."""
    duplicate_diff: bool = False
    """Each piece of output is reported twice."""
    split_utf8: bool = False
    """Tokens end in the middle of characters."""
    stall_at: int | None = None
    """After that many tokens of all generations together the engine makes no more steps, and hears no close."""
    lose_stats_at: int | None = None
    """After that many tokens of all generations together the statistics stay as they are, and age."""


class SimulatedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The server that is modelled."""

    model: str = "simulated"
    slots: int = 64
    context_tokens: int = 8192
    kv_tokens: int = 262_144
    block_tokens: int = 16
    batching: Batching = "iteration"
    reserve: Reserve = "nothing"
    prefix_cache: bool = True
    prefill_tokens_per_s: float = 20_000.0
    prefill_chunk_tokens: int = 2_048
    step_overhead_s: float = 0.001
    token_s: float = 0.012
    sequence_s: float = 187.5e-6
    kv_token_s: float = 10e-9
    attention_s: float = 0.0
    jitter: float = 0.05
    output_tokens_mean: int = 120
    prefix_block_tokens: int = 512
    start_s: float = 0.0
    seed: int = 1
    faults: Faults = Faults()

    @property
    def sequence_tokens_max(self) -> int:
        """Prompt and output of the longest sequence that can run."""
        return min(self.context_tokens, self.kv_tokens // self.block_tokens * self.block_tokens)


class Batch:
    """The state of the modelled server."""

    def __init__(self, settings: SimulatedSettings) -> None:
        self._settings = settings
        self._chance = random.Random(settings.seed)
        self._by_request = settings.batching == "request"
        self._reserve = "output" if self._by_request and settings.reserve == "nothing" else settings.reserve
        self._shares = settings.prefix_cache and self._reserve == "nothing"
        self._ended: list[Sequence] = []
        self._preempted = False
        self.blocks = KvBlocks(settings.kv_tokens // settings.block_tokens)
        self._spare = self.blocks.total // 100
        """Blocks that stay for those that run when another enters (vLLM's watermark)."""
        self.waiting: OrderedDict[str, Sequence] = OrderedDict()
        self.running: OrderedDict[str, Sequence] = OrderedDict()
        self.preemptions = 0

    @property
    def active(self) -> int:
        """Slots taken."""
        return len(self.running) + len(self._ended)

    @property
    def kv_tokens_used(self) -> int:
        """Tokens of the blocks that sequences have taken or reserved."""
        return (self.blocks.held + self.blocks.referenced) * self._settings.block_tokens

    def add(self, sequence: Sequence) -> None:
        """A new sequence; it waits for a slot. Its id is in use by no other.

        Raises:
            ValueError: it could never run.
        """
        if sequence.prompt_tokens + sequence.length > self._settings.sequence_tokens_max:
            raise ValueError(f"a sequence of {sequence.prompt_tokens} + {sequence.length} tokens does not fit")
        sequence.names = list(sequence.prompt.names)
        self.waiting[sequence.id] = sequence
        if not self._by_request:
            self._admit()

    def remove(self, sequence_id: str) -> None:
        """A sequence is over: its slot and its blocks are free, in a batch by requests at the end of the batch."""
        if self.waiting.pop(sequence_id, None) is not None:
            return
        sequence = self.running.pop(sequence_id, None)
        if sequence is None:
            return
        if not self._by_request:
            self._release(sequence)
            self._admit()
            return
        self._ended.append(sequence)
        if not self.running:
            for ended in self._ended:
                self._release(ended)
            self._ended.clear()

    def step(self) -> Step | None:
        """The next step; None when nothing is to be done."""
        self._begin()
        budget = left = 1 << 60 if self._by_request else self._settings.prefill_chunk_tokens
        pairs = decoding = context = 0
        produced: list[Sequence] = []
        for sequence in list(self.running.values()):
            if not sequence.running:
                continue
            unread = sequence.unread
            if unread:
                part = min(unread, left)
                left -= part
                pairs += part * (sequence.prompt_tokens + sequence.given - unread + part // 2)
                self._read(sequence, part)
                if unread > part:
                    continue
            if sequence.silent or sequence.given >= sequence.length:
                continue
            if not sequence.room and not self._grow(sequence):
                continue
            if not unread:
                decoding += 1
                context += sequence.prompt_tokens + sequence.given
            sequence.room -= 1
            sequence.given += 1
            produced.append(sequence)
        read = budget - left
        if not read and not produced and not self._preempted:
            return None
        return Step(self._duration_s(read, pairs, decoding, context), produced)

    def _begin(self) -> None:
        if (self._by_request and not self.running) or self._preempted:
            self._preempted = False
            self._admit()

    def _read(self, sequence: Sequence, part: int) -> None:
        """So much more of its prompt has been read; at the end its full blocks can be shared."""
        sequence.unread -= part
        if sequence.unread or not self._shares:
            return
        fresh = sequence.names[sequence.named :]
        for name in fresh:
            self.blocks.name(name)
        sequence.named += len(fresh)
        sequence.held -= len(fresh)

    def _duration_s(self, read: int, pairs: int, decoding: int, context: int) -> float:
        settings = self._settings
        decoding += len(self._ended)
        context += sum(ended.prompt_tokens + ended.given for ended in self._ended)
        varied = settings.step_overhead_s + settings.token_s
        varied += decoding * settings.sequence_s + context * settings.kv_token_s
        if settings.jitter:
            varied *= max(0.0, self._chance.gauss(1.0, settings.jitter))
        return varied + read / settings.prefill_tokens_per_s + pairs * settings.attention_s

    def _admit(self) -> None:
        waiting, running, slots = self.waiting, self.running, self._settings.slots
        while waiting and len(running) + len(self._ended) < slots:
            sequence = next(iter(waiting.values()))
            if not self._enter(sequence):
                return
            del waiting[sequence.id]
            running[sequence.id] = sequence

    def _enter(self, sequence: Sequence) -> bool:
        """Take the blocks that it needs to begin; False when there are not enough."""
        size, blocks, reserve = self._settings.block_tokens, self.blocks, self._reserve
        known = sequence.prompt_tokens + sequence.given
        tokens = known
        if reserve != "nothing":
            longest = self._settings.sequence_tokens_max
            limit = max(sequence.limit, sequence.length)
            tokens = longest if reserve == "context" else min(longest, sequence.prompt_tokens + limit)
        found = blocks.share(sequence.names) if self._shares else 0
        needed = -(-tokens // size) - found
        spare = self._spare if self.running and reserve == "nothing" else 0
        if blocks.available - needed < spare or not blocks.take(needed):
            blocks.release(sequence.names[:found], 0)
            return False
        sequence.named, sequence.held = found, needed
        sequence.unread = max(1, known - found * size)
        sequence.room = (found + needed) * size - known
        if not sequence.entered:
            sequence.entered = True
            sequence.cached = known - sequence.unread
        sequence.running = True
        return True

    def _grow(self, sequence: Sequence) -> bool:
        """One more block; False when the sequence had to give up its own."""
        if self._shares:
            self._name_given(sequence)
        while not self.blocks.take(1):
            _, youngest = self.running.popitem()
            self._release(youngest)
            self.preemptions += 1
            self._preempted = True
            self.waiting[youngest.id] = youngest
            self.waiting.move_to_end(youngest.id, last=False)
            if youngest is sequence:
                return False
        sequence.held += 1
        sequence.room = self._settings.block_tokens
        return True

    def _release(self, sequence: Sequence) -> None:
        self.blocks.release(sequence.names[: sequence.named], sequence.held)
        sequence.named = sequence.held = 0
        sequence.running = False

    def _name_given(self, sequence: Sequence) -> None:
        """Its last block is full of what it gave: whoever continues the text can share it."""
        size, end = self._settings.block_tokens, sequence.given
        full = (sequence.prompt_tokens + end) // size
        if not sequence.output or full <= len(sequence.names):
            return
        before = sequence.names[-1] if sequence.names else sequence.first
        start = full * size - size - sequence.prompt_tokens
        given = tuple(sequence.output[max(0, start) : end])
        name = link(before, sequence.prompt.tail + given if start < 0 else given)
        sequence.names.append(name)
        self.blocks.name(name)
        sequence.named += 1
        sequence.held -= 1
