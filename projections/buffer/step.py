"""The stream buffer: the step over `tokens` that makes every reply's events readable in Redis.

1. What one turn of the loop brought is written at once, in as few calls as possible (`commands`), and the answers are
   awaited: when `poll` returns, everything taken is in Redis, or `trouble` says why not.
2. While Redis cannot be written, pending frames are kept and tried again with growing pauses. Sending them twice is
   harmless. When too many bytes wait, the step is busy.
3. Lost data is noticed in three ways: a gap or a missing head refuses an append; the partition's marker is gone or
   bears another name (Redis was flushed, or a new one took its place); or the marker's position has gone back (a
   replica or an old file took over). The step then goes back to its settled position and folds again from there.
   Offsets come out the same, so readers lose and repeat nothing.
4. Markers are asked a few times a second, also when nothing is to be written, in the call that writes the frames and
   after them. Nothing becomes settled between two questions that a loss could take: see the grace in `replies`.
   They are asked with every end, too: no later frame of that reply would be refused for the gap, if just the end is
   what a replica that takes over has not got. The call that is refused for a gap has moved its marker on all the same:
   that one is taken away before the replay, or it would vouch for what is not written again yet.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import structlog

from projections.buffer import commands
from projections.buffer.replies import Held, Limits, Replies
from projections.redis import functions
from projections.redis.client import Command, FunctionMissing, Store, StoreUnavailable
from streams.log.steps import Arrived, Busy, Partition, Rewind

log = structlog.get_logger()

PENDING_BYTES_MAX = 33_554_432
PASS_TIME_MS = 250
MARK_MS = 250
RETRY_MS = 50
RETRY_MAX_MS = 2_000
CALM_MS = 10_000
"""After so long without a loss, the next one is answered at once again."""


class Counts(msgspec.Struct):
    """What the step has done, for metrics."""

    frames: int = 0
    calls: int = 0
    rewinds: int = 0
    failures: int = 0


class _Owned(msgspec.Struct):
    """A partition of ours. `store` is the name in its marker, empty while unknown; `marked` the position there."""

    replies: Replies
    store: str = ""
    marked: int = 0
    overstated: bool = False
    """The marker was moved on by the call that was refused an append, and stands beyond what is there."""


class BufferStep:
    """A `Step` over `tokens`."""

    def __init__(self, store: Store, namespace: str, lifetimes: commands.Lifetimes, limits: Limits) -> None:
        self._store = store
        self._namespace = namespace
        self._lifetimes = lifetimes
        self._limits = limits
        self._owned: dict[Partition, _Owned] = {}
        self._not_before_ms = 0
        self._marked_ms = 0
        self._passed_ms = 0
        self._failures = 0
        self._losses = 0
        self._lost_ms = 0
        self.trouble = ""
        """Why nothing can be written at the moment; empty when all is well."""
        self.counts = Counts()

    def assigned(self, starts: Mapping[Partition, int]) -> None:
        for partition, start in starts.items():
            self._owned[partition] = _Owned(Replies(start, self._limits, self._namespace))
        self._marked_ms = 0

    def revoked(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._owned.pop(partition, None)

    def submit(self, batch: Sequence[Arrived], now_ms: int) -> None:
        del now_ms
        if sum(owned.replies.pending_bytes for owned in self._owned.values()) > PENDING_BYTES_MAX:
            raise Busy
        owned_by_number = {partition.number: owned.replies for partition, owned in self._owned.items()}
        for arrived in batch:
            record = arrived.record
            replies = owned_by_number.get(record.partition)
            if replies is not None:
                replies.take(record.offset, record.timestamp_ms, arrived.envelope.event)

    def poll(self, now_ms: int) -> None:
        if now_ms < self._not_before_ms <= now_ms + RETRY_MAX_MS:
            return
        if not 0 <= now_ms - self._passed_ms < PASS_TIME_MS:
            self._passed_ms = now_ms
            for owned in self._owned.values():
                owned.replies.pass_time(now_ms)
        self._write(now_ms)

    def settled(self) -> Mapping[Partition, int]:
        return {partition: owned.replies.settled() for partition, owned in self._owned.items()}

    def drain(self, deadline_s: float) -> None:
        """Nothing is kept back between turns; what could not be written is folded again by the next owner."""
        del deadline_s

    def open_replies(self) -> int:
        """How many replies are held."""
        return sum(len(owned.replies) for owned in self._owned.values())

    def _write(self, now_ms: int) -> None:
        dirty = [(owned, owned.replies.dirty()) for owned in self._owned.values()]
        dirty = [(owned, replies) for owned, replies in dirty if replies]
        due = not 0 <= now_ms - self._marked_ms < MARK_MS
        marks = [(partition, owned) for partition, owned in self._owned.items() if due or owned.replies.closing()]
        if not dirty and not marks:
            return
        try:
            try:
                lost = self._send(dirty, marks, now_ms)
            except FunctionMissing:
                self._store.load_library(functions.SOURCE)
                lost = self._send(dirty, marks, now_ms)
        except (StoreUnavailable, FunctionMissing) as failure:
            self._put_off(now_ms, str(failure))
            return
        self.trouble = ""
        self._failures = 0
        if due:
            self._marked_ms = now_ms
        if lost:
            self._rewind(lost, now_ms)

    def _send(
        self,
        dirty: Sequence[tuple[_Owned, list[Held]]],
        marks: Sequence[tuple[Partition, _Owned]],
        now_ms: int,
    ) -> list[_Owned]:
        """Write all of it; the partitions of which something was lost."""
        appends = commands.Appends(
            self._namespace,
            now_ms,
            self._lifetimes,
            replies_per_call=1 if self._store.clustered else commands.REPLIES_PER_CALL,
        )
        opened = [held for _, replies in dirty for held in replies if held.opening]
        answers_of = [
            (owned, held, appends.add(held))
            for owned, replies in dirty
            for held in replies
            if held.frames or held.closing
        ]
        appended = appends.finish()
        fresh = uuid.uuid4().hex if marks else ""
        overstated = [(partition, owned) for partition, owned in self._owned.items() if owned.overstated]
        sent = [commands.unmark(self._namespace, partition.number) for partition, _ in overstated]
        sent += [commands.opening(self._namespace, held, now_ms, self._lifetimes) for held in opened]
        sent += appended
        sent += [self._mark(partition, owned, fresh) for partition, owned in marks]
        answers = self._store.call(sent)
        self.counts.calls += len(sent)

        for _, owned in overstated:
            owned.overstated = False
        after_open = len(overstated) + len(opened)
        offsets = [at for answer in answers[after_open : after_open + len(appended)] for at in answer]
        lost = self._marked(marks, answers[after_open + len(appended) :])
        if min(offsets, default=0) < 0:
            lost += self._refused(answers_of, offsets)
        for owned, replies in dirty:
            if not any(owned is other for other in lost):
                self.counts.frames += sum([len(held.frames) for held in replies])
                owned.replies.written()
        return lost

    def _marked(self, marks: Sequence[tuple[Partition, _Owned]], names: Sequence[bytes]) -> list[_Owned]:
        lost = []
        for (partition, owned), name in zip(marks, names, strict=True):
            if name:
                owned.store, owned.marked = name.decode(), owned.replies.position
            else:
                log.warning("buffer_lost", partition=partition.number, store=owned.store)
                lost.append(owned)
        return lost

    def _refused(self, answers_of: Sequence[tuple[_Owned, Held, int]], offsets: Sequence[int]) -> list[_Owned]:
        """Forget what was closed with less than this (a cut); the partitions with a gap.

        What is closed with all of it is held like any other: it may yet be lost, and only we could bring it back.
        """
        lost: list[_Owned] = []
        at = 0
        for owned, held, count in answers_of:
            mine = offsets[at : at + count]
            at += count
            if functions.GAP in mine:
                log.warning("buffer_gap", reply_id=held.reply.queued.reply_id, offset=held.base)
                lost.append(owned)
                owned.overstated = True
            elif functions.CLOSED in mine:
                owned.replies.forget(held)
        return lost

    def _mark(self, partition: Partition, owned: _Owned, fresh: str) -> Command:
        return commands.mark(
            self._namespace,
            partition.number,
            name=fresh,
            expected=owned.store,
            least=owned.marked,
            position=owned.replies.position,
        )

    def _put_off(self, now_ms: int, reason: str) -> None:
        if not self.trouble:
            log.warning("buffer_unavailable", reason=reason)
        self.trouble = reason
        self._not_before_ms = now_ms + _pause_ms(self._failures)
        self._failures += 1
        self.counts.failures += 1

    def _rewind(self, lost: list[_Owned], now_ms: int) -> None:
        if now_ms - self._lost_ms > CALM_MS:
            self._losses = 0
        else:
            self._not_before_ms = now_ms + _pause_ms(self._losses)
        self._losses += 1
        self._lost_ms = now_ms
        offsets: dict[Partition, int] = {}
        for partition, owned in self._owned.items():
            if any(owned is other for other in lost):
                offsets[partition] = start = owned.replies.settled()
                replies = Replies(start, self._limits, self._namespace)
                self._owned[partition] = _Owned(replies, overstated=owned.overstated)
        self._marked_ms = 0
        self.counts.rewinds += 1
        log.warning("buffer_rewinds", offsets={partition.number: offset for partition, offset in offsets.items()})
        raise Rewind(offsets)


def _pause_ms(before: int) -> int:
    return min(RETRY_MAX_MS, RETRY_MS << min(before, 10))
