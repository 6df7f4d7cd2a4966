"""How full a pool is for a model, how long a reply would wait, and what is done about it. Pure.

1. The forecast of a wait is Little's law: what waits ahead of a new request and finds no free slot, over the slots
   that work, times how long a generation has held its slot (a moving mean). Free traffic has all that waits ahead of
   it, paid traffic only what is paid. What waits for other requests of its own account to end is ahead of nobody. A
   worker whose lease is stale has no slots.
2. A stage begins when the forecast reaches its threshold, or, for the first one, when the KV cache is full and
   something waits. Paid traffic passes the stages last: its thresholds are `paid_patience` times as high, a full KV
   cache counts for it only when free traffic is refused already, and its stage is never above that of free traffic.
3. A stage is left, one at a time, when the forecast has been below `leave_share` of its threshold for `hold_ms`.
4. Workers that are there and of which none has renewed in time are taken for full: free traffic gets the first stage at
   least, and keeps it as rule 3 says. It is not refused for that, and paid traffic waits until they are dead or back.
   Where nothing else is known of any worker no stage changes; where none has worked for long, there is none.
5. Free traffic leaves so many slots free that of a thousand paid arrivals one at most finds none. Slots that become
   free go to paid traffic first, so what is kept for it behaves like a stock that is refilled at the rate of all ends
   and taken from at the rate of paid arrivals: an arrival finds it empty with the probability of their ratio to the
   power of its size (the M/M/1 queue of what is missing). Where no paid traffic comes nothing is kept. Arrivals of an
   account that may have no further generation now are not counted: they take nothing.
"""

import math
from collections.abc import Mapping

import msgspec

from schemas.values import PRIORITIES, STAGES, Priority, Stage

HOLD_GUESS_MS = 5_000.0
"""How long a generation takes, until one has been measured."""
HOLD_WEIGHT = 0.1
RETRY_S_MAX = 60
RESERVE_MISSED = 0.001
"""Part of paid arrivals that may find no slot kept for them."""
RATE_OVER_MS = 30_000
"""Time constant of the measured rate of paid arrivals."""


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """When stages begin, as the forecast wait of free traffic."""

    enabled: bool = True
    shorten_ms: int = 2_000
    smaller_ms: int = 6_000
    refuse_ms: int = 15_000
    paid_patience: float = 8.0
    kv_share: float = 0.95
    """Part of the KV cache that is spoken for, from which on it counts as full."""
    leave_share: float = 0.5
    hold_ms: int = 3_000
    shortened_tokens: int = 256
    """Longest output under `shorten`."""
    notice_ms: int = 5_000
    """Who is to wait so long is told."""

    def of(self, stage: Stage, priority: Priority) -> float:
        """Where a stage begins."""
        patience = self.paid_patience if priority == "paid" else 1.0
        return patience * {"full": 0, "shorten": self.shorten_ms, "smaller_model": self.smaller_ms}.get(
            stage, self.refuse_ms
        )


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers of a model have, those with a fresh lease."""

    workers: int = 0
    stale: int = 0
    """Of these, those that do not drain and have not renewed in time."""
    slots_alive: int = 0
    """Slots of all of them, also of those that drain or are stale."""
    slots: int = 0
    free_slots: int = 0
    kv_tokens: int = 0
    kv_tokens_held: int = 0
    running: int = 0
    reserved: int = 0
    """Slots that free traffic leaves free."""

    def plus(self, other: "Capacity", times: int = 1) -> "Capacity":
        """Both together; `times` -1: what is left without the other."""
        return Capacity(
            workers=self.workers + times * other.workers,
            stale=self.stale + times * other.stale,
            slots_alive=self.slots_alive + times * other.slots_alive,
            slots=self.slots + times * other.slots,
            free_slots=self.free_slots + times * other.free_slots,
            kv_tokens=self.kv_tokens + times * other.kv_tokens,
            kv_tokens_held=self.kv_tokens_held + times * other.kv_tokens_held,
            running=self.running + times * other.running,
            reserved=self.reserved + times * other.reserved,
        )

    @property
    def works(self) -> bool:
        """Somebody runs something, or would: not all are silent, draining, or full of nothing."""
        return self.running > 0 or self.free_slots > 0

    @property
    def is_silent(self) -> bool:
        """There are workers, and nobody knows how they are."""
        return self.stale > 0 and self.slots == 0

    @property
    def kv_share(self) -> float:
        """Part of the KV cache that is spoken for; 0 where engines do not say what they have."""
        return self.kv_tokens_held / self.kv_tokens if self.kv_tokens else 0.0


class Rate(msgspec.Struct, frozen=True):
    """Arrivals a second, exponentially weighted, as of a time of the flow clock."""

    per_s: float
    at_ms: int

    def now(self, flow_ms: int) -> float:
        """The rate by now."""
        return self.per_s * math.exp((self.at_ms - flow_ms) / RATE_OVER_MS)


class Level(msgspec.Struct, frozen=True):
    """A stage, and since when the forecast has been low enough to leave it (None: it is not)."""

    stage: Stage = "full"
    low_since_ms: int | None = None


def one_more(before: Rate | None, flow_ms: int) -> Rate:
    """The rate with an arrival now."""
    return Rate((before.now(flow_ms) if before else 0.0) + 1000 / RATE_OVER_MS, flow_ms)


def reserve(paid_per_s: float, slots: int, hold_ms: float | None) -> int:
    """Slots that free traffic leaves free, half of them at most. Rule 5."""
    if hold_ms is None or not slots:
        return 0
    share = paid_per_s * hold_ms / 1000 / slots
    if share <= RESERVE_MISSED:
        return 0
    most = slots // 2
    return most if share >= 1 else min(most, math.ceil(math.log(RESERVE_MISSED) / math.log(share)))


def wait_ms(capacity: Capacity, ahead: int, hold_ms: float | None, priority: Priority = "paid") -> int | None:
    """Forecast of the wait behind `ahead` requests; None where no worker works. Rule 1."""
    if not capacity.works:
        return None
    kept = capacity.reserved if priority == "free" else 0
    behind = ahead + 1 - max(0, capacity.free_slots - kept)
    if behind <= 0:
        return 0
    return round(behind * (HOLD_GUESS_MS if hold_ms is None else hold_ms) / (capacity.running or capacity.slots))


def next_level(
    before: Level, wait: int | None, *, least: Stage, priority: Priority, thresholds: Thresholds, flow_ms: int
) -> Level:
    """The stage after a measurement: what the forecast says, and `least` at least. Rules 2 to 4."""
    if not thresholds.enabled:
        return Level()
    if wait is None:
        return before if least == "full" else Level(max(before.stage, least, key=STAGES.index))
    reached = max((n for n in range(len(STAGES)) if wait >= thresholds.of(STAGES[n], priority)), default=0)
    reached = max(reached, STAGES.index(least))
    at = STAGES.index(before.stage)
    if reached > at:
        return Level(STAGES[reached])
    low = reached < at and wait < thresholds.leave_share * thresholds.of(before.stage, priority)
    if not low or before.low_since_ms is None:
        return Level(before.stage, flow_ms if low else None)
    return Level(STAGES[at - 1], flow_ms) if flow_ms - before.low_since_ms >= thresholds.hold_ms else before


def least(priority: Priority, has: Capacity, ahead: int, free: Stage, thresholds: Thresholds) -> Stage:
    """The stage that has begun whatever the forecast is, `free` being that of free traffic. Rules 2 and 4."""
    if has.is_silent:
        return "shorten" if priority == "free" else "full"
    full = ahead > 0 and has.kv_share >= thresholds.kv_share
    return "shorten" if full and (priority == "free" or free == "refuse") else "full"


def not_above(paid: Stage, free: Stage) -> Stage:
    """The stage of paid traffic: never above that of free traffic."""
    return min(paid, free, key=STAGES.index)


def retry_after_s(wait: int | None, priority: Priority, thresholds: Thresholds) -> int:
    """After so long, if nothing else comes, it is worth another try."""
    if wait is None:
        return 30
    over_ms = wait - thresholds.leave_share * thresholds.of("refuse", priority)
    return min(RETRY_S_MAX, max(1, math.ceil(over_ms / 1000)))


def held_for(before: float | None, ms: int) -> float:
    """The moving mean of how long generations hold their slots, with one more."""
    return float(ms) if before is None else before + HOLD_WEIGHT * (ms - before)


def ahead_of(priority: Priority, waiting: Mapping[Priority, int]) -> int:
    """Of what waits, what is served before a new request of this priority."""
    return sum(waiting[one] for one in PRIORITIES[: PRIORITIES.index(priority) + 1])
