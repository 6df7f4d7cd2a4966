"""The plain step of the limits: settles in Redis what was reserved for each reply, from the topic `usage`.

1. A reply is settled by its record of kind `reply`, whatever became of it; records of attempts, corrections and closed
   bills say nothing about buckets. Settling twice is settling once (`schemas/tiers/limits.lua`, rule 4).
2. What was submitted is sent in one round trip a turn; committed is what was answered.
3. A marker in Redis has a name, and how far each partition has come. When it is another one, has gone, or has fallen
   back, the store was lost, restarted empty, or failed over: the partition is read again from twice the longest window
   of an account ago (and margins), and what it says is charged as of the time when it ended, with the refill in
   between. No bucket then holds more than it would have held, unless that was a debt: it begins empty, and each reply
   is charged at its end, when what it had reserved at its beginning had come back in part already.
4. Until every partition has been made again, nothing says that the buckets are whole, and the API grants from shares
   of its own. Reservations of replies that ran are lost with the store; each is charged when its reply ends.
5. While Redis is away nothing is committed; submitted records wait, up to a bound.
"""

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from projections.limits import commands
from projections.limits.commands import Owners
from projections.redis.client import Command, FunctionMissing, Store, StoreUnavailable
from schemas.events import UsageRecorded
from schemas.tiers import MICRO
from schemas.tiers.library import SOURCE
from streams.log.steps import Arrived, Busy, Partition, Rewind

log = structlog.get_logger()

PENDING_MAX = 20_000
NOTE_MS = 1_000
RETRY_MS = 100
RETRY_MAX_MS = 2_000


class Span(msgspec.Struct, frozen=True):
    """A stretch of a partition: the first offset of a time, and the end as it is now."""

    first: int
    end: int


class Counts(msgspec.Struct):
    """What the step has done, for metrics. Tokens are given back or charged besides."""

    settled: int = 0
    late: int = 0
    repeated: int = 0
    tokens_back: int = 0
    tokens_more: int = 0
    rebuilds: int = 0
    failures: int = 0


class _Pending(msgspec.Struct, frozen=True):
    offset: int
    event: UsageRecorded


class _Owned(msgspec.Struct):
    """A partition of ours. `store` is the name in its marker, empty while unknown."""

    position: int
    """Of the next record that will be submitted."""
    settled: int
    """Everything before it is in Redis."""
    pending: deque[_Pending] = msgspec.field(default_factory=deque)
    store: str = ""
    noted: int = -1
    until: int | None = None
    """The buckets are made again from what is before this offset; None: they are whole."""


class _Noted(msgspec.Struct, frozen=True):
    """What the marker is told of a partition: how far it has come; None: nothing, only asked."""

    partition: Partition
    owned: _Owned
    reached: int | None


class LimitsStep:
    """A `Step` over `usage`.

    Args:
        store: the Redis.
        namespace: prefix of all keys.
        owners: whose buckets a reply took from.
        span: where a partition's records of a time begin, and its end. May block for a moment; raises `LogError`.
        partitions: how many the topic has.
    """

    def __init__(
        self,
        store: Store,
        namespace: str,
        owners: Owners,
        span: Callable[[Partition, int], Span],
        partitions: int,
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._owners = owners
        self._span = span
        self._partitions = partitions
        self._owned: dict[Partition, _Owned] = {}
        self._noted_ms = 0
        self._not_before_ms = 0
        self._failures = 0
        self.trouble = ""
        """Why nothing can be written at the moment; empty when all is well."""
        self.counts = Counts()

    def assigned(self, starts: Mapping[Partition, int]) -> None:
        for partition, start in starts.items():
            self._owned[partition] = _Owned(start, start)
        self._noted_ms = 0

    def revoked(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._owned.pop(partition, None)

    def submit(self, batch: Sequence[Arrived], now_ms: int) -> None:
        del now_ms
        if sum(len(owned.pending) for owned in self._owned.values()) > PENDING_MAX:
            raise Busy
        for arrived in batch:
            record, event = arrived.record, arrived.envelope.event
            owned = self._owned.get(Partition(record.topic, record.partition))
            if owned is None or record.offset < owned.position:
                continue
            if isinstance(event, UsageRecorded) and event.record_kind == "reply":
                owned.pending.append(_Pending(record.offset, event))
            owned.position = record.offset + 1

    def poll(self, now_ms: int) -> None:
        if now_ms < self._not_before_ms <= now_ms + RETRY_MAX_MS:
            return
        noting = not 0 <= now_ms - self._noted_ms < NOTE_MS
        noting |= any(not owned.store or _has_caught_up(owned) for owned in self._owned.values())
        pending = any(owned.pending for owned in self._owned.values())
        if not (noting or pending):
            for owned in self._owned.values():
                owned.settled = owned.position
            return
        try:
            try:
                lost = self._send(now_ms, noting=noting)
            except FunctionMissing:
                self._store.load_library(SOURCE)
                lost = self._send(now_ms, noting=noting)
        except (StoreUnavailable, FunctionMissing) as failure:
            self._put_off(now_ms, str(failure))
            return
        self.trouble = ""
        self._failures = 0
        if noting:
            self._noted_ms = now_ms
        if lost:
            self._again(lost, now_ms)

    def settled(self) -> Mapping[Partition, int]:
        return {partition: owned.settled for partition, owned in self._owned.items()}

    def drain(self, deadline_s: float) -> None:
        """Nothing is kept back between turns; what could not be written is read again by the next owner."""
        del deadline_s

    @property
    def whole(self) -> bool:
        """Every partition of ours is in Redis as far as it has been read."""
        return all(owned.store and owned.until is None for owned in self._owned.values())

    def _send(self, now_ms: int, *, noting: bool) -> dict[Partition, int | None]:
        """Write what is pending. The partitions that must be read again: from that offset, or from as far back as the
        buckets need (None).
        """
        # What a store has, whose name is not known yet, must be known before it is written to.
        taken = [(owned, tuple(owned.pending)) for owned in self._owned.values() if owned.store]
        sent: list[Command] = []
        for owned, pending in taken:
            for one in pending:
                again = owned.until is not None and one.offset < owned.until
                owner = self._owners.owner(one.event)
                sent.append(commands.settling(self._namespace, one.event, owner, now_ms, again=again))
        settles = len(sent)
        noted = [_Noted(partition, owned, _reached(owned)) for partition, owned in self._owned.items() if noting]
        fresh = uuid.uuid4().hex
        sent += [self._note(fresh, one) for one in noted]
        answers = self._store.call(sent)
        for _, code, back in answers[:settles]:
            self._count(code, back)
        for owned, pending in taken:
            for _ in pending:
                owned.pending.popleft()
            owned.settled = owned.position
        return self._noted(noted, answers[settles:])

    def _note(self, fresh: str, one: "_Noted") -> Command:
        owned, number = one.owned, one.partition.number
        return commands.noting(self._namespace, fresh, owned.store, number, owned.noted, one.reached, self._partitions)

    def _noted(self, noted: Sequence["_Noted"], answers: Sequence[Any]) -> dict[Partition, int | None]:
        lost: dict[Partition, int | None] = {}
        for one, (name, position) in zip(noted, answers, strict=True):
            partition, owned = one.partition, one.owned
            if not name:
                log.warning("limits_lost", partition=partition.number, store=owned.store)
                lost[partition] = None
            elif not owned.store:
                owned.store, owned.noted = name.decode(), position
                if owned.until is None and position < 0:
                    lost[partition] = None
                elif owned.until is None and position < owned.settled:
                    lost[partition] = position
            elif one.reached is not None:
                owned.until, owned.noted = None, one.reached
        return lost

    def _again(self, lost: Mapping[Partition, int | None], now_ms: int) -> None:
        since_ms = now_ms - 2 * self._owners.window_ms() - 2 * commands.MARGIN_MS
        offsets: dict[Partition, int] = {}
        for partition, offset in lost.items():
            owned = self._owned[partition]
            if offset is not None:
                # Written and committed after the marker had been: once more, it changes nothing.
                fresh = _Owned(offset, offset, store=owned.store, noted=offset)
            else:
                span = self._span(partition, since_ms)
                fresh = _Owned(span.first, span.first, until=span.end)
                self.counts.rebuilds += 1
                log.warning("limits_made_again", partition=partition.number, first=span.first, end=span.end)
            self._owned[partition] = fresh
            offsets[partition] = fresh.position
        self._noted_ms = 0
        raise Rewind(offsets)

    def _count(self, code: int, back: int) -> None:
        if code == 0:
            self.counts.repeated += 1
            return
        self.counts.settled += 1
        self.counts.late += code == 2
        if back >= 0:
            self.counts.tokens_back += back // MICRO
        else:
            self.counts.tokens_more += -back // MICRO

    def _put_off(self, now_ms: int, reason: str) -> None:
        if not self.trouble:
            log.warning("limits_unavailable", reason=reason)
        self.trouble = reason
        self._not_before_ms = now_ms + min(RETRY_MAX_MS, RETRY_MS << min(self._failures, 10))
        self._failures += 1
        self.counts.failures += 1


def _reached(owned: _Owned) -> int | None:
    return owned.position if owned.store and (owned.until is None or _has_caught_up(owned)) else None


def _has_caught_up(owned: _Owned) -> bool:
    """All that the buckets are made again from has been written, but the marker does not say so yet."""
    return owned.until is not None and bool(owned.store) and owned.position >= owned.until and not owned.pending
