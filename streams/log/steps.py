"""What a process supplies to the loops, and what passes between them.

Rules of the plain loop (`Step`):

1. Records of one partition arrive in order; a record may come again after a restart, a rebalance or a rewind.
2. A step says through `settled` how far its effects are durable; only that is committed, never more.
3. `Busy` from `submit` holds the batch back (with hysteresis); the same records are submitted again later.
4. A record that cannot be decoded, or that the step refuses with `Undecodable`, goes to the dead letters of its
   topic; when too many do, the loop stops.
5. `Rewind` from any call makes the loop seek back and submit again from there.

Rules of the transactional loop (`TransactionalStep`):

1. State is kept per partition number; all input topics and the state topic have the same partition count, and one
   number of all of them is assigned together.
2. One transaction holds outputs, state records and offsets. State is staged by `decide` and taken over only by
   `committed`; after an abort the stage is dropped and the same records are decided again.
3. On assignment the state is restored from the state topic before the first record is decided.
4. A fenced writer is fatal: the process exits and its supervisor starts it anew.
5. A decision with nothing but `staged` needs no transaction: it is taken over at once, and its offsets are committed
   with the next transaction or within a second. After a crash in between its records are decided again.
6. Two clocks are handed in. `now_ms` is the wall clock, for deadlines that people see. `flow_ms` is for leases: it
   counts from 0 in each process, goes on by at most 500 ms a turn, and stands still while the log cannot be reached
   and for a settle time after that. So what is silent only because the log was away does not look dead. Values of
   it are comparable within one process only: never write them into the log.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from schemas.codec import Envelope, Headers
from schemas.events import Event


class Partition(NamedTuple):
    """A partition of a topic, by the topic's logical name."""

    topic: str
    number: int


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as it stands in the log. `value` None is a tombstone of a compacted topic."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class Arrived(msgspec.Struct, frozen=True, gc=False):
    """A record with the envelope decoded from it."""

    record: Record
    envelope: Envelope[Event]


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """An event to be written. Topic, key and partition follow from the event where they are not given."""

    event: Event
    topic: str | None = None
    key: str | None = None
    partition: int | None = None
    cause: Envelope[Event] | None = None
    """Whose trace it continues and whose id becomes `ce_causationid`."""
    traceparent: str | None = None
    """The trace to continue where there is no cause (say, a caller's). Neither given: a new trace begins."""


class StateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record for the state topic, written in the partition that is decided; `value` None is a tombstone."""

    key: str
    value: bytes | None


class Busy(Exception):
    """The step holds as much as it may; the record shall come again."""


class Rewind(Exception):
    """The step has to see a partition's records again from an offset (say, because a store was lost)."""

    def __init__(self, offsets: Mapping[Partition, int]) -> None:
        super().__init__(f"rewind to {dict(offsets)}")
        self.offsets = dict(offsets)


class Step(Protocol):
    """What the plain loop drives; see the rules above. Called from one thread."""

    def assigned(self, starts: Mapping[Partition, int]) -> None:
        """These partitions are ours from these offsets on; whatever was known of them is void."""

    def revoked(self, partitions: Iterable[Partition]) -> None:
        """These are ours no more (also in the middle of a batch)."""

    def submit(self, batch: Sequence[Arrived], now_ms: int) -> None:
        """Take these records: in order per partition, all or none of them.

        Raises:
            Busy: the step is full; nothing of the batch was taken.
            Undecodable: this record (by topic, partition and offset) can never be taken; nothing of the batch was.
            Rewind: see there.
        """

    def poll(self, now_ms: int) -> None:
        """Called in each turn of the loop, also when nothing arrives: flush by time, look after effects."""

    def settled(self) -> Mapping[Partition, int]:
        """Per partition the offset to commit: of the first record whose effect is not durable yet."""

    def drain(self, deadline_s: float) -> None:
        """Make everything submitted durable, for `deadline_s` seconds at most; no more will come."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What a transactional step wants done for one partition number.

    Order: `before` is written by the plain writer and acknowledged before the transaction commits; `outputs`,
    `states` and the offsets are the transaction; `after` is written by the plain writer once it has committed
    (and again after a crash, if the state says so: its readers drop duplicates by identity). `reports` are written by
    the plain writer and by nobody waited for: measurements, of which any may be lost or come from a zombie.
    """

    before: tuple[Output, ...] = ()
    outputs: tuple[Output, ...] = ()
    states: tuple[StateRecord, ...] = ()
    after: tuple[Output, ...] = ()
    reports: tuple[Output, ...] = ()
    staged: Any = None
    """The step's own: given back in `committed`."""

    @property
    def writes(self) -> bool:
        """Whether it takes a transaction."""
        return bool(self.before or self.outputs or self.states or self.after)


NOTHING = Decision()


class TransactionalStep(Protocol):
    """What the transactional loop drives; see the rules above. Called from one thread."""

    def restore(self, number: int, records: Iterable[Record], now_ms: int, flow_ms: int) -> None:
        """The state topic's records of a partition number, oldest first; may contain tombstones.

        Replaces whatever was known of the number.
        """

    def decide(self, number: int, batch: Sequence[Arrived], now_ms: int, flow_ms: int) -> Decision:
        """Decide about these records (none: time has passed). Must not change the step's state."""

    def committed(self, number: int, decision: Decision) -> None:
        """The decision is in the log: take over what was staged."""

    def written(self, number: int, decision: Decision) -> None:
        """The decision's `after` is acknowledged as well."""

    def revoked(self, number: int) -> None:
        """The partition number is ours no more: forget its state."""


class Writer(Protocol):
    """The plain writer: idempotent, ordered per partition, every failure reaches the caller."""

    def append(self, output: Output, on_error: "Callable[[NotAppended], None] | None" = None) -> "Appended":
        """Begin to write; returns at once.

        Args:
            output: what to write.
            on_error: called once if it fails, for writers that do not wait for each record. It runs on the writer's
                own thread (in a writer that belongs to an event loop: in the loop), and must be short.

        Raises:
            LogFull: the local queue is full.
        """

    def flush(self, timeout_s: float) -> None:
        """Wait until everything appended is acknowledged.

        Raises:
            NotAppended: something appended since the last flush failed, or the time is over.
        """

    def close(self, timeout_s: float = 10.0) -> None:
        """Flush and close; raises as `flush`."""


class Place(NamedTuple):
    """Where the log put a record."""

    topic: str
    partition: int
    offset: int


class Appended(Protocol):
    """An append in flight."""

    def done(self) -> bool:
        """Whether it is decided: acknowledged or failed."""

    def result(self, timeout_s: float | None = None) -> Place:
        """Wait for the acknowledgement (`acks=all`). Raises `NotAppended`, or `TimeoutError`."""

    def __await__(self) -> Generator[Any, None, Place]:
        """The same from asyncio. Raises `NotAppended`."""


class LogError(Exception):
    """Base of what the log raises."""


class LogFull(LogError):
    """The local queue is full: retry after a moment, or refuse."""


class NotAppended(LogError):
    """The log did not take a record within its delivery timeout; it may or may not be there."""


class Fenced(LogError):
    """Another instance has taken over: exit at once."""


class OffsetExpired(LogError):
    """The committed offset is not in the log any more; an operator decides (never jumped silently)."""


class TooManyDead(LogError):
    """Most records fail: stop and alarm instead of draining the topic into its dead letters."""


class Counts(msgspec.Struct):
    """What a plain loop has done since it began, for metrics."""

    records: int = 0
    turns: int = 0
    commits: int = 0
    rebalances: int = 0
    pauses: int = 0
    rewinds: int = 0
