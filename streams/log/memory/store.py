"""Partitions and transactions, as a broker keeps them.

Rules:

1. A partition is a sequence of entries: records, marks of ended transactions (which take an offset, as in Kafka),
   and holes left by compaction.
2. A record in a transaction is visible to readers of committed records once the transaction is committed, and
   nothing after it is before that (the stable end).
3. `first` is where retention has cut the partition off.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from streams.log.steps import LogError, Partition, Record


class Transaction(msgspec.Struct, eq=False):
    """A transaction and where it wrote."""

    name: str
    state: Literal["open", "committed", "aborted"] = "open"
    partitions: set[Partition] = msgspec.field(default_factory=set)


class Entry(msgspec.Struct, frozen=True):
    """One offset of a partition. `record` None: a mark or a hole."""

    record: Record | None
    transaction: Transaction | None = None


class Fetched(msgspec.Struct, frozen=True):
    """What a fetch brought, and the offset to go on from (past marks and what was aborted)."""

    records: list[Record]
    next_offset: int


class PartitionLog:
    """One partition."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.first = 0
        self._open: dict[str, int] = {}

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return len(self.entries)

    @property
    def stable_end(self) -> int:
        """The first offset of an open transaction, else the end."""
        return min(self._open.values(), default=self.end)

    def append(self, entry: Entry) -> None:
        """Put an entry at the end."""
        if entry.transaction is not None:
            self._open.setdefault(entry.transaction.name, self.end)
        self.entries.append(entry)

    def ended(self, transaction: Transaction) -> None:
        """Put the mark of a transaction's end at the end."""
        del self._open[transaction.name]
        self.entries.append(Entry(None))

    def fetch(self, offset: int, limit: int, *, committed_only: bool) -> Fetched:
        """Up to `limit` records from an offset on."""
        end = self.stable_end if committed_only else self.end
        records: list[Record] = []
        while offset < end and len(records) < limit:
            entry = self.entries[offset]
            offset += 1
            aborted = entry.transaction is not None and entry.transaction.state == "aborted"
            if entry.record is not None and not (committed_only and aborted):
                records.append(entry.record)
        return Fetched(records, offset)

    def compact(self) -> None:
        """Keep the newest record of each key below the stable end, and no tombstones."""
        newest: dict[str | None, int] = {}
        end = self.stable_end
        for offset, entry in enumerate(self.entries[:end]):
            if entry.record is not None and (entry.transaction is None or entry.transaction.state == "committed"):
                newest[entry.record.key] = offset
        for offset, entry in enumerate(self.entries[:end]):
            record = entry.record
            if record is not None and (newest.get(record.key) != offset or record.value is None):
                self.entries[offset] = Entry(None)


class Store:
    """All partitions of all topics."""

    def __init__(self) -> None:
        self._partitions: dict[Partition, PartitionLog] = {}
        self._open: dict[str, Transaction] = {}

    def partition(self, partition: Partition) -> PartitionLog:
        """One partition; it exists from the first look on."""
        if partition not in self._partitions:
            self._partitions[partition] = PartitionLog()
        return self._partitions[partition]

    def append(self, record: Record, transaction: Transaction | None = None) -> int:
        """Put a record at the end of its partition (its `offset` is replaced); the offset."""
        partition = Partition(record.topic, record.partition)
        log = self.partition(partition)
        offset = log.end
        log.append(Entry(msgspec.structs.replace(record, offset=offset), transaction))
        if transaction is not None:
            transaction.partitions.add(partition)
        return offset

    def begin(self, name: str) -> Transaction:
        """Begin a transaction; one of that name that is still open is aborted."""
        self.end(name, "aborted")
        self._open[name] = Transaction(name)
        return self._open[name]

    def end(self, name: str, state: Literal["committed", "aborted"]) -> None:
        """End the open transaction of a name, if there is one."""
        transaction = self._open.pop(name, None)
        if transaction is None:
            return
        transaction.state = state
        for partition in transaction.partitions:
            self.partition(partition).ended(transaction)

    def open_transactions(self) -> Iterable[str]:
        """The names of transactions that are open."""
        return tuple(self._open)

    def cut(self, partition: Partition, before: int) -> None:
        """Retention: nothing before this offset is there any more."""
        log = self.partition(partition)
        if before > log.end:
            raise LogError(f"{partition} ends at {log.end}")
        log.first = max(log.first, before)
