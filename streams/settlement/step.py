"""The plain step of settlement: folds `tokens`, writes `ReplyStored` and `UsageRecorded` for each accepted end.

1. The checkpoint of a partition is the first event of its oldest reply that is open or not yet acknowledged, or of one
   that would be opened again otherwise (`schemas.reply`, rule 8). After a restart everything is folded again from
   there, and written again: readers deduplicate by identity.
2. A reply that nothing was heard of for `abandoned_ms` of our own reading is given up with an alarm, so that the
   checkpoint moves on. (Dispatch and the sweeper end every reply long before.)
3. While more than `unacknowledged_max` records are on their way, the step is busy.
4. Open replies are bounded by what dispatch lets in. To refuse their records here could never end, because their ends
   would be refused too; so above `open_max` or `open_chars_max` the step stops the process with `TooMuchOpen`, and an
   operator gives it more room. Nothing is lost.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from schemas.events import GenerationQueued, TokensGenerated
from schemas.reply import Openings, Reply, apply
from streams.log.steps import Appended, Arrived, Busy, LogError, LogFull, Output, Partition, Writer
from streams.settlement.rules import Alarm, Settlement, Tariff, settle

NUMBERS: Mapping[str, str] = {
    "turnlog_settlement_open_replies": "Replies that have not ended",
    "turnlog_settlement_open_chars": "Characters of them",
    "turnlog_settlement_unacknowledged": "Ends whose records are on their way",
}


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The declared limits of settlement."""

    abandoned_ms: int = 1_800_000
    unacknowledged_max: int = 5_000
    open_max: int = 200_000
    open_chars_max: int = 1_000_000_000
    closed_max: int = 10_000
    """Ended replies remembered per partition: a late `GenerationQueued` does not open them again."""


class TooMuchOpen(LogError):
    """More open replies, or text of them, than settlement may hold."""


class _Open(msgspec.Struct):
    reply: Reply
    first_offset: int
    heard_ms: int
    last_opening: int
    chars: int = 0


class _Unacknowledged(msgspec.Struct):
    partition: Partition
    first_offset: int
    outputs: tuple[Output, ...]
    appended: list[Appended]


class _Book(msgspec.Struct):
    """One partition."""

    next_offset: int
    open: dict[str, _Open]
    """By reply id, in the order of their first offsets."""
    closed: dict[str, None]
    openings: Openings


class Settle:
    """A `Step`. `alarm` is told what must not happen; `writer` is the plain writer."""

    def __init__(self, writer: Writer, tariff: Tariff, limits: Limits, alarm: Callable[[Alarm], None]) -> None:
        self._writer = writer
        self._tariff = tariff
        self._limits = limits
        self._alarm = alarm
        self._books: dict[Partition, _Book] = {}
        self._unsent: deque[_Unacknowledged] = deque()
        self._sent: deque[_Unacknowledged] = deque()
        self._open_chars = 0
        self._looked_ms = 0

    @property
    def open_replies(self) -> int:
        """Replies that are open now."""
        return sum(len(book.open) for book in self._books.values())

    def numbers(self) -> Mapping[str, float]:
        """What `NUMBERS` names."""
        counts = (self.open_replies, self._open_chars, len(self._unsent) + len(self._sent))
        return dict(zip(NUMBERS, counts, strict=True))

    def assigned(self, starts: Mapping[Partition, int]) -> None:
        """Fold these anew."""
        self.revoked(starts)
        for partition, offset in starts.items():
            self._books[partition] = _Book(next_offset=offset, open={}, closed={}, openings=Openings())

    def revoked(self, partitions: Iterable[Partition]) -> None:
        """Forget these; what is on its way stays so, and is written again by the next owner."""
        gone = set(partitions)
        for partition in gone:
            book = self._books.pop(partition, None)
            if book is not None:
                self._open_chars -= sum(open_.chars for open_ in book.open.values())
        self._unsent = deque(one for one in self._unsent if one.partition not in gone)
        self._sent = deque(one for one in self._sent if one.partition not in gone)

    def submit(self, batch: Sequence[Arrived], now_ms: int) -> None:
        """Fold these records."""
        self._acknowledged()
        if len(self._unsent) + len(self._sent) >= self._limits.unacknowledged_max:
            raise Busy
        for arrived in batch:
            partition = Partition(arrived.record.topic, arrived.record.partition)
            book = self._books.get(partition)
            if book is not None:
                self._take(partition, book, arrived, now_ms)
                book.next_offset = arrived.record.offset + 1
        self._send()
        if self._open_chars > self._limits.open_chars_max or self.open_replies > self._limits.open_max:
            raise TooMuchOpen(f"{self.open_replies} replies with {self._open_chars} characters are open")

    def poll(self, now_ms: int) -> None:
        """Look after what is on its way, and for abandoned replies."""
        self._send()
        self._acknowledged()
        if now_ms - self._looked_ms >= self._limits.abandoned_ms // 60:
            self._looked_ms = now_ms
            self._abandon(now_ms)

    def settled(self) -> Mapping[Partition, int]:
        """See rule 1."""
        offsets = {partition: _checkpoint(book) for partition, book in self._books.items()}
        for queue in (self._unsent, self._sent):
            for one in queue:
                offsets[one.partition] = min(offsets[one.partition], one.first_offset)
        return {partition: self._books[partition].openings.checkpoint(at) for partition, at in offsets.items()}

    def drain(self, deadline_s: float) -> None:
        """Have everything acknowledged; open replies are folded again by the next life."""
        until = time.monotonic() + deadline_s
        while self._unsent and time.monotonic() < until:
            self._writer.flush(max(0.0, until - time.monotonic()))
            self._send()
        self._writer.flush(max(0.0, until - time.monotonic()))
        self._acknowledged()

    def _take(self, partition: Partition, book: _Book, arrived: Arrived, now_ms: int) -> None:
        event = arrived.envelope.event
        reply_id = getattr(event, "reply_id", "")
        known = book.open.get(reply_id)
        if known is None:
            reply, _ = apply(None, event)
            if reply is not None and reply_id not in book.closed:
                at = arrived.record.offset
                book.open[reply_id] = _Open(reply=reply, first_offset=at, heard_ms=now_ms, last_opening=at)
            return
        known.heard_ms = now_ms
        if isinstance(event, GenerationQueued):
            known.last_opening = arrived.record.offset
        known.reply, _ = _folded(known.reply, arrived)
        if isinstance(event, TokensGenerated):
            known.chars += len(event.text)
            self._open_chars += len(event.text)
        if known.reply.phase == "ended":
            self._close(partition, book, known, arrived)

    def _close(self, partition: Partition, book: _Book, ended: _Open, arrived: Arrived) -> None:
        reply_id = ended.reply.queued.reply_id
        self._forget(book, reply_id)
        settlement = settle(ended.reply, arrived.envelope.event, self._tariff)
        for alarm in settlement.alarms:
            self._alarm(alarm)
        outputs = _outputs(settlement, arrived)
        self._unsent.append(
            _Unacknowledged(partition=partition, first_offset=ended.first_offset, outputs=outputs, appended=[])
        )

    def _forget(self, book: _Book, reply_id: str) -> None:
        forgotten = book.open.pop(reply_id)
        self._open_chars -= forgotten.chars
        book.openings.ended(forgotten.first_offset, forgotten.last_opening)
        book.closed[reply_id] = None
        if len(book.closed) > self._limits.closed_max:
            del book.closed[next(iter(book.closed))]

    def _send(self) -> None:
        while self._unsent:
            first = self._unsent[0]
            try:
                while len(first.appended) < len(first.outputs):
                    first.appended.append(self._writer.append(first.outputs[len(first.appended)]))
            except LogFull:
                return
            self._sent.append(self._unsent.popleft())

    def _acknowledged(self) -> None:
        while self._sent and all(appended.done() for appended in self._sent[0].appended):
            # What the log refused stays here while the process ends: leaving must not commit past it.
            for appended in self._sent[0].appended:
                appended.result(0)
            self._sent.popleft()

    def _abandon(self, now_ms: int) -> None:
        for book in self._books.values():
            for reply_id, open_ in list(book.open.items()):
                if now_ms - open_.heard_ms >= self._limits.abandoned_ms:
                    self._forget(book, reply_id)
                    self._alarm(Alarm(code="abandoned", detail=f"{reply_id}: nothing came for it, and no end"))


def _folded(reply: Reply, arrived: Arrived) -> tuple[Reply, object]:
    after, events = apply(reply, arrived.envelope.event)
    return after or reply, events


def _outputs(settlement: Settlement, arrived: Arrived) -> tuple[Output, ...]:
    events = (settlement.stored, *settlement.usage)
    return tuple(Output(event=event, cause=arrived.envelope) for event in events)


def _checkpoint(book: _Book) -> int:
    """The first of the open ones is the oldest."""
    return next((open_.first_offset for open_ in book.open.values()), book.next_offset)
