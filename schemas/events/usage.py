"""What was used and what it costs: the topic `usage`, folded by `schemas.invoice`."""

from schemas.events.base import Event
from schemas.values import EndStatus, InvoiceLine, Tier, TimeMs


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
