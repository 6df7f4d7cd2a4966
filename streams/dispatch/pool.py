"""The state of one pool: requests that wait or run, its workers, and ends that are decided but maybe not written."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Literal

import msgspec

from schemas.events import GenerationAdmitted, GenerationEnded, WorkerRegistered
from schemas.values import Priority
from streams.dispatch.lines import Line
from streams.dispatch.load import Level, Rate
from streams.dispatch.shares import Askers

Phase = Literal["queued", "given"]
ModelLine = tuple[str, Priority]
"""What a line is of: a model and a priority."""
Lease = tuple[int, int]
"""A worker for as long as it lives: its inbox and its epoch. Its successor in the inbox has nothing cached."""
ModelAccount = tuple[str, str]
"""A model and an account."""


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a request is; the part of it that changes."""

    phase: Phase = "queued"
    attempt: int = 1
    killed: tuple[str, ...] = ()
    """Instances of the workers that died with it, an attempt each."""
    stalled: int = 0
    """Attempts in which the engine fell silent."""
    returned: int = 0
    """Attempts that were handed back."""
    inbox: int = -1
    epoch: int = -1
    """Lease of the worker that has it, while given."""
    kv_tokens: int = 0
    """What it takes there."""
    not_before_ms: int = 0
    """It was handed back because there was no room: not to be given again before."""
    cancelled: bool = False
    """Never to be given again; ends as cancelled if its worker dies."""
    reset_reason: str = ""
    reset_detail: str = ""
    """What was said of the attempt before: a sentence for people, often none."""
    unwritten: bool = False
    """The reset of this attempt is decided and perhaps not in `tokens` yet."""

    @property
    def lost(self) -> int:
        """Attempts whose worker died."""
        return len(self.killed)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that has to run."""

    admitted: GenerationAdmitted
    order: int
    """Offset of its admission: first come, first served, also after a lost attempt."""
    traceparent: str | None = None
    progress: Progress = Progress()
    chars: int = 0
    """Size of its prompt."""
    prompt_bytes: int = 0
    """The same as it is rendered in `schemas.prefix`: of this its blocks are parts."""
    blocks: tuple[int, ...] = ()
    """Its prompt's, see `schemas.prefix`."""
    given_flow_ms: int = -1
    """When it was given, on the flow clock of this process; -1: by an earlier life, or not."""

    @property
    def generation_id(self) -> str:
        """The id of the current attempt; follows from reply and attempt."""
        return f"gen_{self.admitted.reply_id.removeprefix('rep_')}_{self.progress.attempt}"

    @property
    def tokens(self) -> int:
        """KV tokens that it may need: its prompt and its longest reply."""
        return self.admitted.prompt_tokens_estimate + self.admitted.sampling.max_output_tokens


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker by its inbox: the newest registration, and what is known of its room."""

    registered: WorkerRegistered
    epoch: int
    alive: bool = True
    released: bool = False
    """It said that it stops: no late renewal revives this epoch."""
    draining: bool = False
    closed: bool = False
    """It handed something back and has not renewed since: it gets nothing."""
    renewed_flow_ms: int = 0
    """When it renewed last, on the flow clock of this process."""
    free_slots: int = 0
    """As it said last, less what it was given and plus what it finished since."""
    free_tokens: int = 0
    held: int = 0
    """Generations that we know it has."""
    held_tokens: int = 0
    isolated: int = 0
    """Of these, suspects (`Limits.is_suspect`): one at most."""
    prefixes: frozenset[int] = frozenset()
    """Blocks that it has cached, as it said last."""
    fresh: frozenset[int] = frozenset()
    """Blocks of what it was given since."""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """One pool. A round changes none of it before it is settled (`streams.dispatch.round`)."""

    name: str
    requests: dict[str, Request] = msgspec.field(default_factory=dict)
    """By reply id; those that wait and those that run."""
    lines: Mapping[ModelLine, Line] = {}
    waiting: int = 0
    waiting_chars: int = 0
    running: dict[str, int] = msgspec.field(default_factory=dict)
    """Generations that accounts have on workers."""
    running_of: dict[ModelAccount, int] = msgspec.field(default_factory=dict)
    """The same by model."""
    held_back: frozenset[ModelAccount] = frozenset()
    """Accounts that wait for a model and have all that they may while others ask: two a model at most."""
    askers: Mapping[str, Askers] = {}
    """By model."""
    workers: Mapping[int, Worker] = {}
    cached: dict[int, int] = msgspec.field(default_factory=dict)
    """By block of prompts: the inboxes of the workers that have it cached, a bit each (`streams.dispatch.caches`)."""
    endings: dict[str, GenerationEnded] = msgspec.field(default_factory=dict)
    """By reply id: ends decided here and perhaps not in `tokens` yet."""
    next_deadline_ms: int = 0
    """No request's deadline is before this."""
    recent: OrderedDict[str, bool] = msgspec.field(default_factory=OrderedDict)
    """Ended replies, the newest last."""
    affinity: OrderedDict[str, Lease] = msgspec.field(default_factory=OrderedDict)
    """Conversation -> the worker that had it last; the newest last."""
    unaged: Mapping[str, int] = {}
    """By model: placements since the last one of an aged request."""
    last_inbox: int = -1
    hold_ms: Mapping[str, float] = {}
    """By model: how long generations hold their slots."""
    paid_rates: Mapping[str, Rate] = {}
    """By model: how much paid traffic comes."""
    levels: Mapping[ModelLine, Level] = {}
    empty_since_ms: Mapping[str, int] = {}
    """By model: since when, on the flow clock, no worker runs it."""
    reported_flow_ms: int = -1_000_000
    tally: Mapping[tuple[str, str], int] = {}
    """What happened since this process began, for metrics: (what, why) -> how often."""
