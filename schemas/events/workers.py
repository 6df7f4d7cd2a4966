"""Who runs, and how full it is: the topics `workers` (leases) and `load` (of pools, as dispatch measures it)."""

from schemas.events.base import Event
from schemas.values import EndStatus, Stage, TimeMs, Usage


class WorkerRegistered(Event, frozen=True):
    """A worker took an inbox. The offset of this record is its lease epoch: the log orders epochs."""

    TOPIC = "workers"
    KEY = "pool"

    pool: str
    instance: str
    """Unique per start of a worker."""
    inbox: int
    model: str
    slots: int
    kv_tokens: int
    """Tokens that the engine's KV cache holds; 0 when it does not say."""
    context_tokens: int

    def identity(self) -> str:
        return f"{self.instance}/registered"


class WorkerLeased(Event, frozen=True):
    """A worker is alive: renewed every second; dead after three.

    Version 2 added what its engine says (totals count from its start), and the prefixes that it has cached.
    """

    TOPIC = "workers"
    KEY = "pool"
    VERSION = 2

    pool: str
    instance: str
    inbox: int
    epoch: int
    renewal: int
    free_slots: int
    free_kv_tokens: int
    draining: bool = False
    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    step_ms: float | None = None
    """Of the engine's last iteration."""
    prefixes: str = ""
    """Blocks (`schemas.prefix`, packed) cached since the renewal before; with `whole` all of them."""
    dropped: str = ""
    """Blocks that are not cached any more."""
    whole: bool = False

    def identity(self) -> str:
        return f"{self.instance}/{self.renewal}"


class WorkerReleased(Event, frozen=True):
    """A worker stops of its own will; what it still held goes to another one at once.

    Version 2 added `reason`.
    """

    TOPIC = "workers"
    KEY = "pool"
    VERSION = 2

    pool: str
    instance: str
    inbox: int
    epoch: int
    reason: str = ""
    """`drained`: it was told to. `engine_dead`, `engine_hung` (all of it fell silent), `engine_stuck` (an abort was not
    answered): its engine let it down."""

    def identity(self) -> str:
        return f"{self.instance}/released"


class GenerationFinished(Event, frozen=True):
    """A worker's generation is over and its end is in the log (or it was handed back: `returned`).

    Version 2 added `reason` and `ran_ms`; version 3 `cache_write_long_tokens` and `reasoning_tokens` to the usage;
    version 4 `detail`.
    """

    TOPIC = "workers"
    KEY = "pool"
    VERSION = 4

    pool: str
    inbox: int
    epoch: int
    reply_id: str
    generation_id: str
    attempt: int
    status: EndStatus | None
    """None when returned: not ended, to be dispatched again."""
    returned: bool = False
    queued_ms: int = 0
    usage: Usage | None = None
    reason: str = ""
    """Why it was handed back."""
    ran_ms: int = 0
    """From the engine's beginning to its end."""
    detail: str = ""
    """What the engine or a provider said of it, where it was handed back: a sentence for people, without secrets."""

    def identity(self) -> str:
        return f"{self.generation_id}/finished"


class LoadMeasured(Event, frozen=True):
    """How full a pool is for one model. Written every second and when a stage changes; the newest one counts."""

    TOPIC = "load"
    KEY = "pool"

    pool: str
    model: str
    measured_at_ms: TimeMs
    workers: int
    """Alive, of this model."""
    slots: int
    free_slots: int
    kv_tokens: int
    kv_tokens_held: int
    running: int
    waiting_paid: int
    waiting_free: int
    wait_paid_ms: int | None
    """Forecast of the wait of a reply that would be admitted now; None: nobody can say, no worker runs."""
    wait_free_ms: int | None
    stage_paid: Stage
    stage_free: Stage
    retry_after_s: int = 0
    """Where a stage refuses: after so long it is worth another try."""

    def identity(self) -> str:
        return f"{self.pool}/{self.model}/{self.measured_at_ms}"

    def key(self) -> str:
        return f"{self.pool}/{self.model}"
