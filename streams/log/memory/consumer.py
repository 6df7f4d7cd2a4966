"""Readers and group members of the log in memory."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from streams.log.log import Aborted, Expired, Listener, Start
from streams.log.memory.groups import Group
from streams.log.steps import Fenced, NotAppended, OffsetExpired, Partition, Record

if TYPE_CHECKING:
    from streams.log.memory.log import MemoryLog

LIMIT = 2_000


class MemoryReader:
    """See `Reader`."""

    def __init__(
        self, log: "MemoryLog", partitions: Sequence[Partition], start: Start, *, committed_only: bool
    ) -> None:
        self._log = log
        self._committed_only = committed_only
        with log.changed:
            self._positions = {partition: self._start_of(partition, start) for partition in partitions}

    def poll(self, timeout_s: float) -> list[Record]:
        with self._log.changed:
            records = self._fetch()
            if not records and timeout_s > 0 and self._log.changed.wait(self._log.patience(timeout_s)):
                records = self._fetch()
            return records

    def ends(self) -> dict[Partition, int]:
        with self._log.changed:
            return {partition: self._log.store.partition(partition).end for partition in self._positions}

    def positions(self) -> dict[Partition, int]:
        return dict(self._positions)

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        self._positions.update(offsets)

    def close(self) -> None:
        return

    def _fetch(self) -> list[Record]:
        records: list[Record] = []
        if self._log.down:
            return records
        for partition, position in self._positions.items():
            log = self._log.store.partition(partition)
            if position < log.first:
                raise OffsetExpired(f"{partition}: {position} is gone; the first one left is {log.first}")
            fetched = log.fetch(position, LIMIT, committed_only=self._committed_only)
            records.extend(fetched.records)
            self._positions[partition] = fetched.next_offset
        return records

    def _start_of(self, partition: Partition, start: Start) -> int:
        log = self._log.store.partition(partition)
        if start.at == "beginning":
            return log.first
        if start.at == "time":
            for offset in range(log.first, log.end):
                record = log.entries[offset].record
                if record is not None and record.timestamp_ms >= start.time_ms:
                    return offset
        return log.end


class MemoryConsumer:
    """See `Consumer`."""

    def __init__(
        self, log: "MemoryLog", group: Group, name: str, topics: Sequence[str], listener: Listener, expired: Expired
    ) -> None:
        self.name = name
        self.topics = tuple(topics)
        self._log = log
        self._group = group
        self._listener = listener
        self._expired: Expired = expired
        self._positions: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        self._commit_failed = False
        self._closed = False
        with log.changed:
            group.join(self)

    def poll(self, timeout_s: float, limit: int, gather_s: float = 0.0) -> list[Record]:  # noqa: ARG002 - no waiting
        with self._log.changed:
            if self._log.down:
                self._log.changed.wait(self._log.patience(timeout_s))
                return []
            self._rebalance()
            records = self._fetch(limit)
            if not records and timeout_s > 0 and self._log.changed.wait(self._log.patience(timeout_s)):
                records = self._fetch(limit)
            return records

    def commit(self, offsets: Mapping[Partition, int], *, wait: bool) -> None:
        with self._log.changed:
            self._log.point("offsets", self.name)
            taken = not self._log.down and self._group.commit(self, offsets)
        self._commit_failed = self._commit_failed or not taken
        if wait and not taken:
            raise NotAppended("offsets: not a member of the group, not the owner, or the log is down")

    def commit_failed(self) -> bool:
        failed, self._commit_failed = self._commit_failed, False
        return failed

    def commit_in_transaction(self, offsets: Mapping[Partition, int]) -> None:
        """As part of a transaction; raises `Aborted`."""
        if not self._group.commit(self, offsets):
            raise Aborted(f"{self.name} does not own these partitions any more")

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        self._positions.update({p: offset for p, offset in offsets.items() if p in self._positions})

    def pause(self, partitions: Iterable[Partition]) -> None:
        self._paused.update(partitions)

    def resume(self, partitions: Iterable[Partition]) -> None:
        self._paused.difference_update(partitions)

    def lag(self, positions: Mapping[Partition, int]) -> int | None:
        with self._log.changed:
            return sum(
                max(self._log.store.partition(p).stable_end - max(position, self._positions.get(p, 0)), 0)
                for p, position in positions.items()
            )

    def reachable(self) -> bool:
        return not self._log.down

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with self._log.changed:
            self._give_up(sorted(self._positions), lost=self._group.named(self.name) is not self)
            self._group.leave(self)

    def _rebalance(self) -> None:
        member = self._group.named(self.name)
        if member is None:
            # The session was over: what we had is lost, and we come back as a newcomer.
            self._give_up(sorted(self._positions), lost=True)
            self._group.join(self)
        elif member is not self:
            raise Fenced(f"another process has taken the place of {self.name}")
        self._give_up(self._group.to_revoke(self), lost=False)
        new = self._group.to_assign(self)
        if new:
            starts = {p: self._group.committed.get(p, self._log.store.partition(p).first) for p in new}
            self._positions.update(starts)
            self._paused.difference_update(starts)
            self._listener.on_assigned(starts)

    def _give_up(self, partitions: Sequence[Partition], *, lost: bool) -> None:
        if partitions:
            self._listener.on_revoked(partitions, lost=lost)
        for partition in partitions:
            self._positions.pop(partition, None)
        self._group.revoked(self, partitions)

    def _fetch(self, limit: int) -> list[Record]:
        records: list[Record] = []
        for partition, position in self._positions.items():
            if partition in self._paused or len(records) >= limit:
                continue
            log = self._log.store.partition(partition)
            if not log.first <= position <= log.end:
                text = f"{partition}: the offset to go on from ({position}) is gone; the first one left is {log.first}"
                if self._expired == "stop":
                    raise OffsetExpired(text)
                self._positions[partition] = log.first
            fetched = log.fetch(self._positions[partition], limit - len(records), committed_only=True)
            records.extend(fetched.records)
            self._positions[partition] = fetched.next_offset
        return records
