"""The composition of the log in memory, and what a test can do to it."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from schemas import topics
from schemas.codec import Headers, decode
from schemas.events import Event
from streams.log.log import Assignment, Expired, Listener, Start
from streams.log.memory.consumer import MemoryConsumer, MemoryReader
from streams.log.memory.groups import Group
from streams.log.memory.store import Store
from streams.log.memory.writer import MemoryAppended, MemoryTransactions, MemoryWriter
from streams.log.partitioner import partition_of
from streams.log.steps import LogError, NotAppended, Partition, Place, Record

_DECLARED: Mapping[str, int] = {topic.name: topic.partitions for topic in topics.FIXED}


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _nothing(_: str, __: str) -> None:
    return


class MemoryLog:
    """The log in memory. Topics and their partition counts are those of `schemas.topics`, or as given.

    Faults, in the hands of a test:

    - `at_point(point, who)`: is called at the points `append`, `offsets`, `transaction`, `transaction-written` and
      `transaction-committed`, with the topic, the member or the transactions' name. What it raises happens there:
      `NotAppended` at `append`, `Aborted` at the first two of a transaction, or an exception of the test's own, which
      is a crash: drop the loop, make a new one.
    - `down`: nothing can be read, and what is written waits.
    - `expire(group, replica)`, `shake(group)`: a member's session ends; everything is revoked and assigned anew.
    - `end_transactions()`: the broker aborts what a crashed process left open. (A new process of the same name does
      that too; others cannot restore their state before.)
    - `cut(partition, before)`, `compact(topic)`: retention and compaction.
    """

    def __init__(
        self,
        partitions: Mapping[str, int] | None = None,
        now_ms: Callable[[], int] = _wall_ms,
        *,
        real_time: bool = True,
    ) -> None:
        """Make an empty log.

        Args:
            partitions: partition counts that differ from the declared ones, and topics beside those.
            now_ms: the clock for timestamps.
            real_time: whether waiting for records or acknowledgements takes time; in a simulation it must not.
        """
        self._counts = dict(partitions or {})
        self._groups: dict[str, Group] = {}
        self._epochs: dict[str, int] = {}
        self._waiting: deque[MemoryAppended] = deque()
        self._down = False
        self._real_time = real_time
        self.now_ms = now_ms
        self.store = Store()
        self.changed = threading.Condition()
        self.at_point: Callable[[str, str], None] = _nothing

    def partitions(self, topic: str) -> int:
        count = self._counts.get(topic) or _DECLARED.get(topic)
        if count is not None:
            return count
        if topic.endswith(".dead"):
            return 1
        if topic.startswith("inference."):
            return topics.INBOXES
        raise LogError(f"no such topic: {topic}")

    def writer(self, source: str, *, linger_ms: float = 0.0, delivery_timeout_s: float = 30.0) -> MemoryWriter:  # noqa: ARG002
        return MemoryWriter(self, source)

    def reader(self, partitions: Sequence[Partition], start: Start, *, committed_only: bool = True) -> MemoryReader:
        return MemoryReader(self, partitions, start, committed_only=committed_only)

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
    ) -> MemoryConsumer:
        del held_ms  # nothing is saved by it here
        if group not in self._groups:
            self._groups[group] = Group(assignment, {topic: self.partitions(topic) for topic in topics})
        return MemoryConsumer(self, self._groups[group], f"{group}-{replica}", topics, listener, expired)

    def transactions(self, name: str, source: str) -> MemoryTransactions:
        with self.changed:
            return MemoryTransactions(self, name, source)

    def close(self) -> None:
        return

    # --- for tests: looking -----------------------------------------------------------------------------------

    def records(self, topic: str, *, committed_only: bool = True) -> list[Record]:
        """All records of a topic that are there, partition by partition."""
        with self.changed:
            logs = [self.store.partition(Partition(topic, number)) for number in range(self.partitions(topic))]
            return [
                record
                for log in logs
                for record in log.fetch(log.first, log.end, committed_only=committed_only).records
            ]

    def events(self, topic: str) -> list[Event]:
        """The events of a topic, partition by partition."""
        return [decode(record.value, record.headers).event for record in self.records(topic)]

    def committed(self, group: str) -> dict[Partition, int]:
        """A group's committed offsets."""
        return dict(self._groups[group].committed) if group in self._groups else {}

    # --- for tests: faults ------------------------------------------------------------------------------------

    @property
    def down(self) -> bool:
        """Whether the log cannot be reached."""
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        with self.changed:
            self._down = down
            while self._waiting and not down:
                self._append(self._waiting.popleft())
            self.changed.notify_all()

    def expire(self, group: str, replica: int) -> None:
        """A member was silent for too long: its partitions go to others."""
        with self.changed:
            if group in self._groups and (member := self._groups[group].named(f"{group}-{replica}")) is not None:
                self._groups[group].leave(member)

    def shake(self, group: str) -> None:
        """Revoke everything from every member of a group and assign it anew."""
        with self.changed:
            if group in self._groups:
                self._groups[group].shake()

    def end_transactions(self) -> None:
        """Abort all open transactions, as the broker does after their timeout."""
        with self.changed:
            for name in self.store.open_transactions():
                self.store.end(name, "aborted")
            self.changed.notify_all()

    def cut(self, partition: Partition, before: int) -> None:
        """Retention removes all before an offset."""
        with self.changed:
            self.store.cut(partition, before)

    def compact(self, topic: str) -> None:
        """Compaction keeps the newest record of each key."""
        with self.changed:
            for number in range(self.partitions(topic)):
                self.store.partition(Partition(topic, number)).compact()

    def lose_waiting(self) -> None:
        """What waits because the log is down is lost with the processes that wrote it."""
        self._waiting.clear()

    # --- for the clients --------------------------------------------------------------------------------------

    def record(
        self, topic: str, key: str | None, value: bytes | None, headers: Headers, partition: int | None
    ) -> Record:
        """A record as it will stand, but for its offset."""
        count = self.partitions(topic)
        if partition is None:
            partition = 0 if key is None else partition_of(key, count)
        if not 0 <= partition < count:
            raise NotAppended(f"{topic} has no partition {partition}")
        return Record(topic, partition, -1, key, value, tuple(headers), self.now_ms())

    def take(self, appended: MemoryAppended) -> None:
        """Append, or keep until the log is up again."""
        with self.changed:
            if self._down:
                self._waiting.append(appended)
            else:
                self._append(appended)
                self.changed.notify_all()

    def point(self, point: str, who: str) -> None:
        """A place where a test may make something happen."""
        self.at_point(point, who)

    def patience(self, timeout_s: float) -> float:
        """How long to wait really."""
        return timeout_s if self._real_time else 0.0

    def new_epoch(self, name: str) -> int:
        """Fence the transactions of a name; the epoch of the new owner."""
        self.store.end(name, "aborted")
        self._epochs[name] = self._epochs.get(name, 0) + 1
        return self._epochs[name]

    def epoch(self, name: str) -> int:
        """The living epoch of a name."""
        return self._epochs[name]

    def _append(self, appended: MemoryAppended) -> None:
        record = appended.record
        try:
            self.point("append", record.topic)
        except NotAppended as error:
            appended.decided(None, error)
            return
        offset = self.store.append(record)
        appended.decided(Place(record.topic, record.partition, offset), None)
