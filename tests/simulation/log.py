"""The log of the simulation: in memory, with what a network does to it.

- A partition can be held: what is appended from then on is read later, by everybody. So messages of different topics
  (and of different partitions) overtake each other; within a partition order stands.
- An append can be done twice, or be done and reported as failed, or fail late, after what followed it has been taken.
- The partitions of a group can be moved among its members, as a rebalance does.
"""

from collections.abc import Callable, Mapping
from typing import Literal

from schemas.codec import type_name
from schemas.events import TokensGenerated
from schemas.topics import CANCELLATIONS, MESSAGES, REQUESTS, TOKENS, WORKERS
from streams.log.memory import MemoryLog
from streams.log.memory.store import PartitionLog, Store
from streams.log.memory.writer import MemoryAppended
from streams.log.steps import NotAppended, Partition, Place

Fate = Literal["once", "twice", "unheard", "late"]

HELD = (MESSAGES.name, CANCELLATIONS.name, REQUESTS.name, WORKERS.name, TOKENS.name)
"""Topics that may be held (state topics are read to their end on restoration, which would wait in vain)."""
LATE = type_name(TokensGenerated).encode()
"""Of a piece only: its worker does not wait for it and is told by a call."""


def _once(_: str) -> Fate:
    return "once"


class _Partition(PartitionLog):
    """A partition that can be held."""

    def __init__(self) -> None:
        super().__init__()
        self.held_at: int | None = None

    @property
    def stable_end(self) -> int:
        end = super().stable_end
        return end if self.held_at is None else min(end, self.held_at)


class _Store(Store):
    def partition(self, partition: Partition) -> PartitionLog:
        found = self._partitions.get(partition)
        if found is None:
            found = self._partitions[partition] = _Partition()
        return found


class SimulatedLog(MemoryLog):
    """See this module."""

    def __init__(self, partitions: Mapping[str, int], now_ms: Callable[[], int]) -> None:
        super().__init__(partitions, now_ms, real_time=False)
        self.store = _Store()
        self.fate: Callable[[str], Fate] = _once
        self.version = 0
        """Grows with everything that a reader could notice."""
        self._held: dict[Partition, int] = {}
        self._late: list[tuple[int, MemoryAppended]] = []

    def hold(self, partition: Partition, until_ms: int) -> None:
        """Let nobody read what comes until then."""
        log = self.store.partition(partition)
        if isinstance(log, _Partition) and log.held_at is None:
            log.held_at = log.end
            self._held[partition] = until_ms

    def tick(self, *, release: bool = False) -> None:
        """Let happen what is due (`release`: all of it)."""
        now_ms = self.now_ms()
        for partition in [p for p, until_ms in self._held.items() if release or until_ms <= now_ms]:
            del self._held[partition]
            self.store.partition(partition).held_at = None  # type: ignore[attr-defined]
            self.version += 1
        for due_ms, appended in [*self._late]:
            if release or due_ms <= now_ms:
                self._late.remove((due_ms, appended))
                appended.decided(None, NotAppended("the log did not take it in time"))

    def move(self, group: str) -> None:
        """Give each member's partitions to the next one."""
        members = self._groups.get(group)
        if members is not None and len(members._target) > 1:
            names = sorted(members._target)
            targets = [members._target[name] for name in names]
            members._target = dict(zip(names, targets[1:] + targets[:1], strict=True))
            self.version += 1

    def _append(self, appended: MemoryAppended) -> None:
        fate = self.fate(appended.record.topic)
        self.version += 1
        if fate == "once":
            super()._append(appended)
            return
        record = appended.record
        if fate == "late" and record.topic == TOKENS.name and dict(record.headers)["ce_type"] == LATE:
            self._late.append((self.now_ms() + 500, appended))
            return
        offset = self.store.append(record)
        if fate == "twice":
            offset = self.store.append(record)
        if fate == "unheard":
            appended.decided(None, NotAppended("its acknowledgement was lost"))
        else:
            appended.decided(Place(record.topic, record.partition, offset), None)
