"""The events: everything that happens is one of these, past tense, frozen.

An event class says once, for everybody, its topic, its key and its identity:

- `TOPIC` is the logical name of its topic (`schemas.topics`); None where the writer chooses (priority topics).
- `KEY` names the field whose value is the record's key, so that one key's events keep their order.
- `VERSION` is part of the type on the wire. A published version is never edited: a change adds a version and
  an upcast in `schemas.codec`, and the golden bytes of the old one stay in the tests.
- `identity()` is the event's `ce_id`: it does not depend on time of receipt, batch or offset, so a consumer
  that saw it before can drop it.

Times are wall-clock milliseconds since the epoch, UTC (`…_at_ms`). Text is Unicode, stored as it came.
"""

from typing import ClassVar, Literal

import msgspec

from schemas.values import (
    EndStatus,
    Failure,
    InvoiceLine,
    Notice,
    Priority,
    PromptMessage,
    Sampling,
    Stage,
    Tier,
    TimeMs,
    Timings,
    Usage,
    VoidAttempt,
)


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of all events. Unknown members are ignored on decoding and kept on re-encoding (`schemas.codec`)."""

    TOPIC: ClassVar[str | None] = None
    KEY: ClassVar[str] = "conversation_id"
    VERSION: ClassVar[int] = 1
    TIMED: ClassVar[bool] = True
    """Whether the envelope carries `ce_time` and the trace; false for the token path, where bytes count."""

    def identity(self) -> str:
        """The event's id, unique within its source and type."""
        raise AssertionError(f"{type(self).__name__} has no identity")

    def key(self) -> str:
        """The record's key."""
        return str(getattr(self, self.KEY))


# --- messages: what people did in a conversation, kept forever -------------------------------------------------


class MessageSubmitted(Event, frozen=True):
    """A user message was accepted, together with the id of the reply that will answer it.

    Version 2 added `history` and `metadata`.
    """

    TOPIC = "messages"
    VERSION = 2

    conversation_id: str
    message_id: str
    reply_id: str
    account_id: str
    tier: Tier
    content: str
    body_digest: str
    """SHA-256 (hex) of the canonical request body: the same client id with another digest is a conflict."""
    submitted_at_ms: TimeMs
    new_conversation: bool
    """The request named no conversation: this message begins one."""
    client_message_id: str | None = None
    parent_id: str | None = None
    """The message it answers; absent: the newest of the current branch."""
    model: str = "auto"
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    system: str | None = None
    """Absent: the one that holds on its branch; empty: none from here on."""
    history: tuple[PromptMessage, ...] = ()
    """What was said before it, as a client that keeps the conversation itself tells it; what stands before it on its
    branch is not taken then."""
    metadata: dict[str, str] = {}
    """What the client wants to find on it again."""

    def identity(self) -> str:
        return self.message_id


class RegenerationRequested(Event, frozen=True):
    """A new sibling of a reply was asked for; the user's message stays as it is."""

    TOPIC = "messages"

    conversation_id: str
    reply_id: str
    """The new reply."""
    regenerated_id: str
    """The reply that it is a sibling of."""
    account_id: str
    tier: Tier
    body_digest: str
    submitted_at_ms: TimeMs
    client_message_id: str | None = None
    model: str = "auto"
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def identity(self) -> str:
        return self.reply_id


class ReplyStored(Event, frozen=True):
    """A reply reached its end: the text that readers saw, as one piece. Written by settlement.

    Version 2 added `void_attempts`, and `retry_after_s` to errors; version 3 `cache_write_long_tokens` and
    `reasoning_tokens` to the usage.
    """

    TOPIC = "messages"
    VERSION = 3

    conversation_id: str
    reply_id: str
    message_id: str
    """The user message that it answers."""
    account_id: str
    tier: Tier
    pool: str
    model: str
    status: EndStatus
    text: str
    attempt: int
    final_offset: int
    """Offset of the stream's `ended` event."""
    usage: Usage
    submitted_at_ms: TimeMs
    ended_at_ms: TimeMs
    timings: Timings | None = None
    error: Failure | None = None
    void_attempts: tuple[VoidAttempt, ...] = ()
    """Those before the last one, in order."""

    def identity(self) -> str:
        return f"{self.reply_id}/stored"


class ConversationRenamed(Event, frozen=True):
    """The conversation got a title of its owner's choice."""

    TOPIC = "messages"

    conversation_id: str
    account_id: str
    title: str
    renamed_at_ms: TimeMs
    request_id: str

    def identity(self) -> str:
        return f"{self.conversation_id}/renamed/{self.request_id}"


class BranchChosen(Event, frozen=True):
    """The current branch is the one that ends in (or passes through) this message."""

    TOPIC = "messages"

    conversation_id: str
    account_id: str
    message_id: str
    chosen_at_ms: TimeMs
    request_id: str

    def identity(self) -> str:
        return f"{self.conversation_id}/branch/{self.request_id}"


class ConversationDeleted(Event, frozen=True):
    """The conversation is gone for every reader; its content is erased from the views."""

    TOPIC = "messages"

    conversation_id: str
    account_id: str
    deleted_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.conversation_id}/deleted"


class ConversationSummarised(Event, frozen=True):
    """Messages up to one were summarised, for a context policy that uses summaries."""

    TOPIC = "messages"

    conversation_id: str
    account_id: str
    until_message_id: str
    summary: str
    summarised_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.conversation_id}/summary/{self.until_message_id}"


class CancellationRequested(Event, frozen=True):
    """Somebody who may do so asked that a reply stop. May come before its message."""

    TOPIC = "cancellations"

    conversation_id: str
    reply_id: str
    account_id: str
    requested_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.reply_id}/cancel"


# --- requests: what turns decided, for the dispatch of a pool --------------------------------------------------


class GenerationAdmitted(Event, frozen=True):
    """A turn was admitted to a pool: everything that a worker needs, and until when it is wanted."""

    TOPIC = "requests"
    KEY = "pool"

    pool: str
    priority: Priority
    reply_id: str
    message_id: str
    conversation_id: str
    account_id: str
    tier: Tier
    model: str
    prompt: tuple[PromptMessage, ...]
    prompt_tokens_estimate: int
    sampling: Sampling
    submitted_at_ms: TimeMs
    deadline_at_ms: TimeMs
    notices: tuple[Notice, ...] = ()

    def identity(self) -> str:
        return f"{self.reply_id}/admitted"


class GenerationDeclined(Event, frozen=True):
    """A reply ends without (or instead of) running: refused at admission, cancelled early, or past its deadline.

    Version 2 added `retry_after_s` to errors.
    """

    TOPIC = "requests"
    KEY = "pool"
    VERSION = 2

    pool: str
    reply_id: str
    message_id: str
    conversation_id: str
    account_id: str
    tier: Tier
    model: str
    status: EndStatus
    error: Failure | None
    submitted_at_ms: TimeMs
    admitted: bool
    """It had been admitted before, so its stream is open already."""

    def identity(self) -> str:
        return f"{self.reply_id}/declined"


class GenerationCancelled(Event, frozen=True):
    """An admitted reply shall stop; in order with its admission."""

    TOPIC = "requests"
    KEY = "pool"

    pool: str
    reply_id: str
    conversation_id: str

    def identity(self) -> str:
        return f"{self.reply_id}/cancelled"


# --- inference.<pool>.<priority>: a worker's inbox (the partition is the worker's ordinal) ----------------------


class GenerationRequested(Event, frozen=True):
    """One attempt at a reply was given to one worker, under the lease epoch that it names.

    Version 2 added `kv_tokens`.
    """

    KEY = "reply_id"
    VERSION = 2

    pool: str
    priority: Priority
    epoch: int
    reply_id: str
    conversation_id: str
    account_id: str
    generation_id: str
    attempt: int
    model: str
    prompt: tuple[PromptMessage, ...]
    sampling: Sampling
    submitted_at_ms: TimeMs
    deadline_at_ms: TimeMs
    kv_tokens: int = 0
    """What dispatch counts for it in the engine's KV cache: prompt and longest output, less the cached prefix."""

    def identity(self) -> str:
        return f"{self.generation_id}/requested"


class GenerationParked(Event, frozen=True):
    """A reply failed because its workers died of it, it seems. For a person to look at."""

    TOPIC = "requests.dead"
    KEY = "pool"

    pool: str
    reply_id: str
    workers: tuple[str, ...]
    """The instances that died while they had it."""
    parked_at_ms: TimeMs
    admitted: GenerationAdmitted

    def identity(self) -> str:
        return f"{self.reply_id}/parked"


class GenerationRevoked(Event, frozen=True):
    """A worker shall stop a generation that was taken from it; nothing that it still emits counts."""

    KEY = "reply_id"

    pool: str
    epoch: int
    reply_id: str
    generation_id: str

    def identity(self) -> str:
        return f"{self.generation_id}/revoked"


# --- tokens: what a reply's readers see, folded by schemas.reply -----------------------------------------------


class GenerationQueued(Event, frozen=True):
    """A reply waits for a worker. Opens the reply for every fold: what comes for one not opened is dropped."""

    TOPIC = "tokens"

    reply_id: str
    message_id: str
    conversation_id: str
    account_id: str
    tier: Tier
    pool: str
    model: str
    submitted_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.reply_id}/queued"


class NoticeGiven(Event, frozen=True):
    """The reader of a reply is told something (degraded service, high demand). Once per code."""

    TOPIC = "tokens"

    reply_id: str
    conversation_id: str
    notice: Notice

    def identity(self) -> str:
        return f"{self.reply_id}/notice/{self.notice.code}"


class GenerationStarted(Event, frozen=True):
    """A worker began an attempt. The first one of an attempt owns it."""

    TOPIC = "tokens"

    reply_id: str
    conversation_id: str
    generation_id: str
    attempt: int
    model: str
    worker: str
    started_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.generation_id}/0"


class TokensGenerated(Event, frozen=True):
    """A piece of a reply's text. `seq` counts from 1 within its generation, without gaps."""

    TOPIC = "tokens"
    TIMED = False

    reply_id: str
    conversation_id: str
    generation_id: str
    attempt: int
    seq: int
    text: str
    tokens: int
    """Output tokens that this piece stands for (0 when it only completes an earlier one's characters)."""

    def identity(self) -> str:
        return f"{self.generation_id}/{self.seq}"


class GenerationReset(Event, frozen=True):
    """The attempt so far is void; the reply starts again as attempt `attempt`. Written by dispatch."""

    TOPIC = "tokens"

    reply_id: str
    conversation_id: str
    attempt: int
    reason: str

    def identity(self) -> str:
        return f"{self.reply_id}/reset/{self.attempt}"


class GenerationEnded(Event, frozen=True):
    """The end of a reply, as one record. The first accepted one is final.

    From a worker: `generation_id` is its own, `seq` follows its last piece, `usage` and the text's digest are
    given. From dispatch, for a reply that no worker will end: `generation_id` is empty, `seq` is 0.
    Version 2 added `retry_after_s` to errors; version 3 `cache_write_long_tokens` and `reasoning_tokens` to the usage.
    """

    TOPIC = "tokens"
    VERSION = 3

    reply_id: str
    conversation_id: str
    generation_id: str
    attempt: int
    seq: int
    status: EndStatus
    ended_at_ms: TimeMs
    usage: Usage | None = None
    text_bytes: int | None = None
    text_digest: str | None = None
    """First 16 hex digits of the SHA-256 of the text's UTF-8 bytes."""
    timings: Timings | None = None
    error: Failure | None = None

    def identity(self) -> str:
        by = self.generation_id or f"{self.reply_id}/dispatch"
        return f"{by}/end/{self.attempt}"


# --- usage -----------------------------------------------------------------------------------------------------


class UsageRecorded(Event, frozen=True):
    """What one reply (or one attempt at it that came to nothing) used and costs, whatever happened on the way.

    Identity: the reply's id and the kind. A higher revision replaces a lower one; `account_id` and `usage_day` are the
    same in all of them. Input is in exclusive parts: uncached + cache read + cache write + cache write long.
    Version 2 added `cache_write_long_input_tokens`, `reasoning_tokens`, `charged`, `queued_ms` and `gpu_ms`.
    """

    TOPIC = "usage"
    KEY = "account_id"
    VERSION = 2

    account_id: str
    reply_id: str
    conversation_id: str
    record_kind: str
    """`reply` for the reply as it ended; `attempt-1`, … for attempts that came to nothing, which cost nothing."""
    revision: int
    usage_day: str
    """YYYY-MM-DD, UTC, computed once, from the reply's end."""
    status: EndStatus
    tier: Tier
    pool: str
    model: str
    attempts: int
    """Number of the attempt; of a reply its last one, which is how many there were."""
    uncached_input_tokens: int
    cache_read_input_tokens: int
    cache_write_input_tokens: int
    output_tokens: int
    """Those generated, reasoning included."""
    counted: bool
    """True: counted by the engine. False: estimated from what reached the log."""
    cost: str
    """Decimal in `currency`, as text."""
    currency: str
    price_version: str
    """Of the price list entry that it was computed with; `unpriced` where there is none."""
    ended_at_ms: TimeMs
    cache_write_long_input_tokens: int = 0
    """Written to a cache that is kept for an hour or more."""
    reasoning_tokens: int = 0
    charged: bool = True
    """False: `cost` is 0 because it was our failure."""
    queued_ms: int | None = None
    """From acceptance until the engine had the prompt; None: it never had it."""
    gpu_ms: int | None = None
    """From then until the end; None: not known."""

    def identity(self) -> str:
        return f"{self.reply_id}/{self.record_kind}/{self.revision}"


class UsageAdjusted(Event, frozen=True):
    """A correction or refund: a record of its own with the difference, never an edit."""

    TOPIC = "usage"
    KEY = "account_id"

    account_id: str
    reply_id: str
    record_kind: str
    revision: int
    usage_day: str
    cost: str
    currency: str
    reason: str
    adjusted_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.reply_id}/{self.record_kind}/{self.revision}"


class PeriodEnded(Event, frozen=True):
    """An account's month, and what was open before it, takes no more: what comes behind this in the log is late for it.

    The bill follows from what stands before; it is said by `PeriodClosed`.
    """

    TOPIC = "usage"
    KEY = "account_id"

    account_id: str
    period: str
    """YYYY-MM, UTC."""
    ended_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.account_id}/period/{self.period}"


class PeriodClosed(Event, frozen=True):
    """An account's bill for a month, final. What came later for its days is on the next one, as `late`.

    What is on it stands before the month's `PeriodEnded` in the log; or before itself, where there is none.
    """

    TOPIC = "usage"
    KEY = "account_id"

    account_id: str
    period: str
    """YYYY-MM, UTC."""
    lines: tuple[InvoiceLine, ...]
    """Together they are the bill."""
    closed_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.account_id}/invoice/{self.period}"


# --- workers: leases -------------------------------------------------------------------------------------------


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
    """A worker stops of its own will; what it still held goes to another one at once."""

    TOPIC = "workers"
    KEY = "pool"

    pool: str
    instance: str
    inbox: int
    epoch: int

    def identity(self) -> str:
        return f"{self.instance}/released"


class GenerationFinished(Event, frozen=True):
    """A worker's generation is over and its end is in the log (or it was handed back: `returned`).

    Version 2 added `reason` and `ran_ms`; version 3 `cache_write_long_tokens` and `reasoning_tokens` to the usage.
    """

    TOPIC = "workers"
    KEY = "pool"
    VERSION = 3

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

    def identity(self) -> str:
        return f"{self.generation_id}/finished"


# --- load: how full pools are, as dispatch measures it -----------------------------------------------------------


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


# --- demand ----------------------------------------------------------------------------------------------------


class DemandForecast(Event, frozen=True):
    """Demand of a pool and tier in the last window, and what is expected of the next.

    Version 2 added `service_ms_mean` and `seasonal`.
    """

    TOPIC = "demand"
    KEY = "pool"
    VERSION = 2

    pool: str
    tier: Tier
    window_start_ms: TimeMs
    window_ms: int
    arrivals: int
    input_tokens: int
    output_tokens: int
    queue_ms_mean: float
    forecast_arrivals: float
    forecast_output_tokens: float
    service_ms_mean: float = 0.0
    """How long a generation had its slot, on average."""
    seasonal: bool = False
    """The forecast knows this time of the day from days before."""

    def identity(self) -> str:
        return f"{self.pool}/{self.tier}/{self.window_start_ms}"

    def key(self) -> str:
        return f"{self.pool}/{self.tier}"


class ReplicasDesired(Event, frozen=True):
    """How many workers a pool should have for the demand that is expected of the next window: for an autoscaler."""

    TOPIC = "demand"
    KEY = "pool"

    pool: str
    window_start_ms: TimeMs
    window_ms: int
    workers: int
    """Those that renewed their lease in the window."""
    slots_needed: float
    """Generations at a time, headroom included."""
    slots_per_worker: float
    replicas: int

    def identity(self) -> str:
        return f"{self.pool}/replicas/{self.window_start_ms}"

    def key(self) -> str:
        return f"{self.pool}/replicas"


# --- accounts (compacted: each fact has its own key, all of one account in one partition) ----------------------


class AccountOpened(Event, frozen=True):
    """An account exists. Version 2 added `organisation_id`."""

    TOPIC = "accounts"
    KEY = "account_id"
    VERSION = 2

    account_id: str
    name: str
    tier: Tier
    opened_at_ms: TimeMs
    organisation_id: str | None = None
    """Whose buckets it draws from too, together with its other accounts; None: nobody's."""

    def identity(self) -> str:
        return f"{self.account_id}/account"

    def key(self) -> str:
        return self.identity()


class AccountClosed(Event, frozen=True):
    """Nothing opens the account any more. What it used stays."""

    TOPIC = "accounts"
    KEY = "account_id"

    account_id: str
    closed_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.account_id}/closed"

    def key(self) -> str:
        return self.identity()


class AccountRenamed(Event, frozen=True):
    """What the account is called from now on; its id stays."""

    TOPIC = "accounts"
    KEY = "account_id"

    account_id: str
    name: str
    renamed_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.account_id}/name/{self.renamed_at_ms}"

    def key(self) -> str:
        return f"{self.account_id}/name"


class UnknownUsersChosen(Event, frozen=True):
    """Whether tokens (JWT) of users that the account has never added open it. Until it is chosen they are refused."""

    TOPIC = "accounts"
    KEY = "account_id"

    account_id: str
    unknown_users: Literal["refuse", "admit"]
    chosen_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.account_id}/unknown-users/{self.chosen_at_ms}"

    def key(self) -> str:
        return f"{self.account_id}/unknown-users"


class TierChanged(Event, frozen=True):
    """The account's tier from now on."""

    TOPIC = "accounts"
    KEY = "account_id"

    account_id: str
    tier: Tier
    changed_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.account_id}/tier/{self.changed_at_ms}"

    def key(self) -> str:
        return f"{self.account_id}/tier"


class UserAdded(Event, frozen=True):
    """A person (or program) of an account, to whom keys can belong."""

    TOPIC = "accounts"
    KEY = "account_id"

    account_id: str
    user_id: str
    """Unique within its account; the `sub` of a JWT."""
    name: str
    added_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.account_id}/user/{self.user_id}"

    def key(self) -> str:
        return self.identity()


class UserRemoved(Event, frozen=True):
    """The user's keys and tokens open nothing any more."""

    TOPIC = "accounts"
    KEY = "account_id"

    account_id: str
    user_id: str
    removed_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.account_id}/user/{self.user_id}/removed"

    def key(self) -> str:
        return f"{self.account_id}/user/{self.user_id}"


class KeyIssued(Event, frozen=True):
    """An API key exists. Only its hash is known to us; the key was shown once.

    Version 2 added `name`, `prefix`, `user_id` and `expires_at_ms`.
    """

    TOPIC = "accounts"
    KEY = "account_id"
    VERSION = 2

    account_id: str
    key_id: str
    key_hash: str
    """SHA-256 (hex) of the whole key. Keys have 128 random bits or more, so no salt is needed."""
    issued_at_ms: TimeMs
    name: str = ""
    """What its owner calls it."""
    prefix: str = ""
    """Its first characters, to recognise it by."""
    user_id: str | None = None
    expires_at_ms: TimeMs | None = None
    """From then on it opens nothing; None: never."""

    def identity(self) -> str:
        return f"{self.account_id}/key/{self.key_id}"

    def key(self) -> str:
        return self.identity()


class KeyRevoked(Event, frozen=True):
    """A key opens nothing any more.

    It takes the place of `KeyIssued` in the compacted topic, so it says what that said. Version 2 added all but the
    first three members.
    """

    TOPIC = "accounts"
    KEY = "account_id"
    VERSION = 2

    account_id: str
    key_id: str
    revoked_at_ms: TimeMs
    issued_at_ms: TimeMs | None = None
    name: str = ""
    prefix: str = ""
    user_id: str | None = None
    expires_at_ms: TimeMs | None = None

    def identity(self) -> str:
        return f"{self.account_id}/key/{self.key_id}/revoked"

    def key(self) -> str:
        return f"{self.account_id}/key/{self.key_id}"


class LimitsChanged(Event, frozen=True):
    """What the account may, where it differs from its tier (`schemas.tiers`). None: as the tier says.

    All of them at once: a later record replaces an earlier one. Version 2 added all but `requests_per_minute`.
    """

    TOPIC = "accounts"
    KEY = "account_id"
    VERSION = 2

    account_id: str
    changed_at_ms: TimeMs
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    burst_tokens: int | None = None
    output_tokens_max: int | None = None
    running_max: int | None = None
    models: tuple[str, ...] | None = None
    spend_soft: str | None = None
    """Decimal, of a calendar month (UTC)."""
    spend_hard: str | None = None

    def identity(self) -> str:
        return f"{self.account_id}/limits/{self.changed_at_ms}"

    def key(self) -> str:
        return f"{self.account_id}/limits"


EVENTS: tuple[type[Event], ...] = tuple(
    value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, Event) and value is not Event
)
"""Every event class, in the order of this file."""
