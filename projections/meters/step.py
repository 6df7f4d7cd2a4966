"""The step over `usage` that tells a billing provider, each charge once.

1. Events are told several at a time, in any order. A record is settled when the provider has acknowledged it, when it
   is none of the provider's business, or when it is a dead letter. The offset of the first one that is not settled is
   committed, so a crash tells again what was on its way, under the same identifiers.
2. What the provider does not take now is tried again, after a random time that doubles up to `RETRY_MAX_MS`; meanwhile
   nothing else is told either, and then one at a time until it goes well.
3. What it will never take becomes a dead letter of `usage`, with its words. When most do, the process stops.
   What is too old to be told (`rules`, 3) becomes one too, and stops nothing: after a long outage most are.
4. While `waiting_max` records wait, the step is busy.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import msgspec
import structlog

from projections.meters.meter import Later, Meter, Never, Outcome, Told
from projections.meters.rules import MeterEvent, Rules, Skipped, TooOld, meter_event
from schemas.codec import Undecodable
from streams.log.deadletters import Window, bury
from streams.log.log import RecordWriter
from streams.log.steps import Appended, Arrived, Busy, Partition, Record

log = structlog.get_logger()

RETRY_MS = 200
RETRY_MAX_MS = 60_000
GROUP = "meters"


class Counts(msgspec.Struct):
    """What the step has done, for metrics."""

    told: int = 0
    again: int = 0
    failures: int = 0
    dead: int = 0
    """Refused for good."""
    too_old: int = 0
    skipped: dict[str, int] = {}


class _Waiting(msgspec.Struct):
    """A record that is not settled."""

    record: Record
    event: MeterEvent | None
    """None: its dead letter is on its way."""
    tries: int = 0
    not_before_ms: int = 0
    telling: "Future[Outcome] | None" = None
    dead: Appended | None = None
    done: bool = False


class _Book(msgspec.Struct):
    """Of a partition: what is not settled, in its order, and the offset behind what was taken."""

    taken: int
    waiting: deque[_Waiting]


class MetersStep:
    """A `Step`. `jitter` gives numbers from 0 to 1."""

    def __init__(
        self,
        meter: Meter,
        rules: Rules,
        writer: RecordWriter,
        *,
        at_once: int,
        waiting_max: int,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._meter = meter
        self._rules = rules
        self._writer = writer
        self._at_once = at_once
        self._waiting_max = waiting_max
        self._jitter = jitter
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="meter")
        self._books: dict[Partition, _Book] = {}
        self._window = Window()
        self._telling = 0
        self._quiet_until_ms = 0
        self._failures = 0
        self._too_old = False
        """It was logged that records are too old, since the last one that was told."""
        self.trouble = ""
        """Why nothing can be told at the moment; empty when all is well."""
        self.counts = Counts()

    @property
    def waiting(self) -> int:
        """Records that are not settled."""
        return sum(len(book.waiting) for book in self._books.values())

    def assigned(self, starts: Mapping[Partition, int]) -> None:
        for partition, start in starts.items():
            self._books[partition] = _Book(taken=start, waiting=deque())

    def revoked(self, partitions: Iterable[Partition]) -> None:
        """What is being told is told to its end; the next owner tells it again."""
        for partition in partitions:
            book = self._books.pop(partition, None)
            for one in book.waiting if book else ():
                self._telling -= one.telling is not None

    def submit(self, batch: Sequence[Arrived], now_ms: int) -> None:
        if self.waiting >= self._waiting_max:
            raise Busy
        for arrived in batch:
            record = arrived.record
            book = self._books.get(Partition(record.topic, record.partition))
            if book is None:
                continue
            book.taken = record.offset + 1
            found = meter_event(arrived.envelope.event, self._rules, now_ms, arrived.envelope.source)
            match found:
                case MeterEvent():
                    book.waiting.append(_Waiting(record=record, event=found))
                case Skipped(why):
                    self.counts.skipped[why] = self.counts.skipped.get(why, 0) + 1
                case TooOld(age_ms):
                    one = _Waiting(record=record, event=None)
                    book.waiting.append(one)
                    self._pass_over(one, age_ms, now_ms)
        self._tell(now_ms)

    def poll(self, now_ms: int) -> None:
        self._hear(now_ms)
        self._tell(now_ms)

    def settled(self) -> Mapping[Partition, int]:
        return {
            partition: book.waiting[0].record.offset if book.waiting else book.taken
            for partition, book in self._books.items()
        }

    def drain(self, deadline_s: float) -> None:
        """Hear what is being told; what waits is told by the next life."""
        until = time.monotonic() + deadline_s
        while self._telling and time.monotonic() < until:
            telling = [one.telling for book in self._books.values() for one in book.waiting if one.telling is not None]
            wait(telling, max(0.0, until - time.monotonic()), FIRST_COMPLETED)
            self._hear(time.time_ns() // 1_000_000)
        self._writer.flush(max(0.1, until - time.monotonic()))
        self._hear(time.time_ns() // 1_000_000)

    def close(self) -> None:
        """No more is told."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._meter.close()

    def _tell(self, now_ms: int) -> None:
        if now_ms < self._quiet_until_ms:
            return
        # After a failure one at a time shows whether it is over.
        most = 1 if self._failures else self._at_once
        for book in self._books.values():
            for one in book.waiting:
                if self._telling >= most:
                    return
                event = one.event
                if event is None or one.done or one.telling is not None or now_ms < one.not_before_ms:
                    continue
                if now_ms - event.at_ms > self._rules.age_max_ms:
                    one.event = None
                    self._pass_over(one, now_ms - event.at_ms, now_ms)
                    continue
                one.tries += 1
                one.telling = self._threads.submit(self._meter.tell, event)
                self._telling += 1

    def _hear(self, now_ms: int) -> None:
        for book in self._books.values():
            for one in book.waiting:
                if one.telling is not None and one.telling.done():
                    outcome = one.telling.result()
                    one.telling = None
                    self._telling -= 1
                    self._heard(one, outcome, now_ms)
                elif one.dead is not None and one.dead.done():
                    one.dead.result(0)
                    one.dead, one.done = None, True
            while book.waiting and book.waiting[0].done:
                book.waiting.popleft()

    def _heard(self, one: _Waiting, outcome: Outcome, now_ms: int) -> None:
        match outcome:
            case Told(again):
                one.done = True
                self.counts.told += not again
                self.counts.again += again
                self._window.add(1, 0)
                self._too_old = False
                self._well()
            case Never(reason):
                one.event = None
                self._well()
                self._refused(one, reason, now_ms)
            case Later(reason, after_s, blocked):
                self._failures += 1
                self.counts.failures += 1
                pause_ms = min(RETRY_MAX_MS, RETRY_MS << min(one.tries - 1, 10))
                pause_ms = round(pause_ms * (0.5 + self._jitter() / 2))
                if after_s is not None:
                    pause_ms = max(pause_ms, min(round(after_s * 1000), RETRY_MAX_MS))
                one.not_before_ms = now_ms + pause_ms
                self._quiet_until_ms = max(self._quiet_until_ms, now_ms + pause_ms)
                if not self.trouble:
                    log.warning("meter_refuses" if blocked else "meter_unavailable", reason=reason)
                self.trouble = reason

    def _well(self) -> None:
        if self.trouble:
            log.info("meter_available")
        self.trouble = ""
        self._failures = 0

    def _refused(self, one: _Waiting, reason: str, now_ms: int) -> None:
        self._window.add(0, 1)
        record = one.record
        log.error("meter_dead_letter", partition=record.partition, offset=record.offset, reason=reason)
        self.counts.dead += 1
        self._bury(one, reason, now_ms)

    def _pass_over(self, one: _Waiting, age_ms: int, now_ms: int) -> None:
        """Nothing is wrong with it, so it says nothing about the records behind it."""
        if not self._too_old:
            record = one.record
            log.error("meter_too_old", partition=record.partition, offset=record.offset, reason=too_old(age_ms))
        self._too_old = True
        self.counts.too_old += 1
        self._bury(one, too_old(age_ms), now_ms)

    def _bury(self, one: _Waiting, reason: str, now_ms: int) -> None:
        record = one.record
        error = Undecodable(
            topic=record.topic, partition=record.partition, offset=record.offset, field="meter", reason=reason
        )
        one.dead = bury(self._writer, record, error, group=GROUP, now_ms=now_ms)


def too_old(age_ms: int) -> str:
    """Why a record is not told by itself any more."""
    return f"{age_ms / 3_600_000:.1f} hours old: the provider may have had it, and forgotten"
