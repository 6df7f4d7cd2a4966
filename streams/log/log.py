"""The log as an interface: what `streams.log.kafka` and `streams.log.memory` both are.

Topics, groups and names are logical here; a namespace, where there is one, is the implementation's business.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from schemas.codec import Headers
from streams.log.steps import Appended, NotAppended, Output, Partition, Record, StateRecord, Writer


class Start(msgspec.Struct, frozen=True):
    """Where a reader begins in each of its partitions."""

    at: Literal["beginning", "end", "time"]
    time_ms: int = 0


BEGINNING = Start("beginning")
END = Start("end")


def since(time_ms: int) -> Start:
    """From the first record that is not older than this wall-clock time."""
    return Start("time", time_ms)


Assignment = Literal["together", "sticky"]
"""How a group shares partitions. `together`: one number of all topics goes to one member (range). `sticky`: as few
partitions as possible change hands, and the others are not interrupted."""

Expired = Literal["stop", "earliest"]
"""What to do when a committed offset is not in the log any more: stop (the default), or, by an operator's decision,
go on with the earliest record that is left."""


class Reader(Protocol):
    """Reads given partitions, outside of any group. Used from one thread."""

    def poll(self, timeout_s: float) -> list[Record]:
        """What is there, in order per partition; waits up to `timeout_s` for the first record."""

    def ends(self) -> dict[Partition, int]:
        """The offset that the next record of each partition will get, asked of the log now."""

    def positions(self) -> dict[Partition, int]:
        """Up to where each partition has been read, marks of transactions included.

        A reader has seen all that was there at a time when its positions have reached the `ends` of that time.
        """

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        """Go on reading from these offsets."""

    def close(self) -> None:
        """Leave."""


class Listener(Protocol):
    """Is told of rebalances, in the thread and within the call of `Consumer.poll` or `Consumer.close`."""

    def on_assigned(self, starts: Mapping[Partition, int]) -> None:
        """New partitions, with the offset of the first record that will come of each."""

    def on_revoked(self, partitions: Sequence[Partition], *, lost: bool) -> None:
        """Partitions that go away. Unless `lost`, offsets can still be committed for them within this call."""


class Consumer(Protocol):
    """A member of a group. Used from one thread."""

    def poll(self, timeout_s: float, limit: int, gather_s: float = 0.0) -> list[Record]:
        """Records of the partitions that are ours; waits up to `timeout_s` for the first one.

        Args:
            timeout_s: how long to wait for the first record.
            limit: at most so many.
            gather_s: having one, wait so long for more.

        Raises:
            OffsetExpired: see there.
            Fenced: another member has our name.
        """

    def commit(self, offsets: Mapping[Partition, int], *, wait: bool) -> None:
        """Commit; without `wait` a failure is told by `commit_failed`.

        Raises:
            NotAppended: with `wait`, it failed.
        """

    def commit_failed(self) -> bool:
        """Whether a commit without `wait` has failed since the last time this was asked: commit again."""

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        """The next records of these partitions are from these offsets on."""

    def pause(self, partitions: Iterable[Partition]) -> None:
        """No records of these until `resume`."""

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Records again."""

    def lag(self, positions: Mapping[Partition, int]) -> int | None:
        """Records between these positions and the ends, as far as is known without asking; None: not known yet."""

    def reachable(self) -> bool:
        """Whether the log has answered lately for every partition that is ours."""

    def close(self) -> None:
        """Leave; revokes first. A member with a fixed name keeps its place for the session's time."""


class Aborted(Exception):
    """The transaction was aborted, nothing of it is visible; the same may be tried again."""


class Transactions(Protocol):
    """Writes in transactions, under a name that only one living process may have. Used from one thread."""

    def commit(
        self,
        outputs: Sequence[Output],
        states: Sequence[tuple[Partition, StateRecord]],
        offsets: Mapping[Partition, int],
        consumer: Consumer,
        condition: Callable[[], None],
    ) -> None:
        """All of it or nothing, provided that `consumer` is still a member of its group.

        Args:
            condition: called before the commit, while the rest is on its way; `NotAppended` from it aborts.

        Raises:
            Aborted: nothing was written.
            Fenced: another process has taken over, or the outcome cannot be known: exit.
        """

    def close(self) -> None:
        """Release what is held."""


class RecordWriter(Writer, Protocol):
    """A writer that also takes records as they stand (dead letters, imports)."""

    def append_record(
        self,
        topic: str,
        key: str | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None = None,
        on_error: Callable[[NotAppended], None] | None = None,
    ) -> Appended:
        """As `append`, with nothing derived."""


class Log(Protocol):
    """The log."""

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has. Raises `LogError` when there is no such topic."""

    def writer(self, source: str, *, linger_ms: float = 0.0, delivery_timeout_s: float = 30.0) -> RecordWriter:
        """A plain writer.

        Args:
            source: `ce_source` of what it writes, such as `streams/settlement`.
            linger_ms: how long a record may wait for company on its way out.
            delivery_timeout_s: when a record counts as failed.
        """

    def reader(self, partitions: Sequence[Partition], start: Start, *, committed_only: bool = True) -> Reader:
        """A reader; where it starts is decided before this returns, so nothing written later is missed."""

    def consumer(
        self,
        group: str,
        topics: Sequence[str],
        listener: Listener,
        *,
        replica: int = 0,
        assignment: Assignment = "sticky",
        expired: Expired = "stop",
        held_ms: int = 0,
    ) -> Consumer:
        """A member of a group; `replica` names it, so that its next life takes its place at once.

        Args:
            group: its name.
            topics: what it reads.
            listener: is told of rebalances.
            replica: which member it is.
            assignment: see there.
            expired: see there.
            held_ms: for so long the log may hold records back, so that more of them come at a time. 0: each comes at
                once, which under load costs the log and the member a request for nearly every write.
        """

    def transactions(self, name: str, source: str) -> Transactions:
        """A transactional writer; fences the one before it of the same name.

        Raises:
            LogError: the log cannot be reached.
        """

    def close(self) -> None:
        """Close what was not closed."""
