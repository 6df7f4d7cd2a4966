"""The one consumer loop. The rules of its steps are in `steps`; these are its own:

1. Committed is what the step says is settled, never more; where the step has settled all that it was given, also
   the records after it that were dead letters. Only changes are committed, so an idle loop commits nothing.
2. While the step is busy its batch is held and offered again. After `busy_pause_ms` of that the consumer is paused
   and polled on, so that its group does not lose it; it is resumed when the batch has been taken. (A pause throws
   prefetched records away, so not every short wait makes one.)
3. On revocation what is settled is committed first. What is held of a partition that goes away is dropped.
4. After a rebalance the consumer is paused or not as the loop says, whatever it was before.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Event as Flag

import msgspec

from schemas.codec import Undecodable
from streams.log.deadletters import Intake
from streams.log.log import Assignment, Consumer, Expired, Log
from streams.log.steps import Arrived, Busy, Counts, LogError, NotAppended, Partition, Rewind, Step

ALWAYS = -1
"""`gather_above` of a loop that gathers without load, too."""
GATHER_FULL = 100


class LoopSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a loop goes. Times are in the unit of their names."""

    poll_s: float = 0.1
    """How long a turn waits for the first record."""
    records_max: int = 2_000
    """Records of one turn."""
    gather_s: float = 0.0
    """Under load: how long a turn waits for company after its first record."""
    gather_above: int = 50
    """Load is when the turn before had more records than this; the wait grows with them up to `GATHER_FULL`."""
    held_ms: int = 0
    """See `Log.consumer`."""
    commit_ms: int = 500
    busy_wait_s: float = 0.005
    """Between two offers of a batch that the step was too busy for."""
    busy_pause_ms: int = 1_000
    drain_s: float = 20.0
    assignment: Assignment = "sticky"
    expired: Expired = "stop"


class Loop:
    """The loop as an object that is turned: by `run`, or step by step by a simulation."""

    def __init__(
        self,
        log: Log,
        step: Step,
        *,
        topics: Sequence[str],
        group: str,
        replica: int = 0,
        settings: LoopSettings = LoopSettings(),  # noqa: B008 - frozen
    ) -> None:
        self._step = step
        self._settings = settings
        self._writer = log.writer(f"loop/{group}")
        self._intake = Intake(self._writer, group)
        self._positions: dict[Partition, int] = {}
        self._submitted: dict[Partition, int] = {}
        self._committed: dict[Partition, int] = {}
        self._committed_ms = 0
        self._held: list[Arrived] = []
        self._busy_since_ms: int | None = None
        self._paused = False
        self._brought = 0
        self._rewound: dict[Partition, int] = {}
        self._stopped = False
        self.counts = Counts()
        self._consumer: Consumer = log.consumer(
            group,
            topics,
            self,
            replica=replica,
            assignment=settings.assignment,
            expired=settings.expired,
            held_ms=settings.held_ms,
        )

    def turn(self, now_ms: int, wait_s: float | None = None) -> int:
        """One turn: poll, decode, submit, settle, commit. How many records arrived.

        Args:
            now_ms: the wall clock.
            wait_s: how long to wait for a record, instead of the settings' `poll_s`.

        Raises:
            LogError: the process must end; see its kinds in `steps`.
        """
        self.counts.turns += 1
        arrived = 0
        try:
            arrived = self._take(now_ms, self._settings.poll_s if wait_s is None else wait_s)
            if self._held:
                self._offer(now_ms)
            self._step.poll(now_ms)
            if not 0 <= now_ms - self._committed_ms < self._settings.commit_ms:
                self._commit(now_ms)
        except Rewind as rewind:
            self._rewound.update(rewind.offsets)
        self._rewind()
        if not self._held:
            self._free()
        return arrived

    def stop(self) -> None:
        """Drain the step, commit what is settled and leave the group. Called once, when no more turns will come."""
        if self._stopped:
            return
        self._stopped = True
        if self._positions:
            self._step.drain(self._settings.drain_s)
        # Closing revokes, and that commits what is settled.
        self.close()

    def close(self) -> None:
        """Leave without draining; what is settled is committed."""
        self._stopped = True
        self._consumer.close()
        self._writer.close()

    def lag(self) -> int | None:
        """Records that are in the log and not submitted yet; None: not known."""
        return self._consumer.lag(self._positions)

    def positions(self) -> Mapping[Partition, int]:
        """The partitions that are ours, and the offset of the next record of each."""
        return dict(self._positions)

    def on_assigned(self, starts: Mapping[Partition, int]) -> None:
        """Of the consumer's listener."""
        self.counts.rebalances += 1
        self._positions.update(starts)
        self._committed.update(starts)
        for partition in starts:
            self._submitted.pop(partition, None)
        try:
            self._step.assigned(starts)
        except Rewind as rewind:
            self._rewound.update(rewind.offsets)
        if self._paused:
            self._consumer.pause(starts)
        else:
            self._consumer.resume(starts)

    def on_revoked(self, partitions: Sequence[Partition], *, lost: bool) -> None:
        """Of the consumer's listener."""
        self.counts.rebalances += 1
        gone = frozenset(partitions)
        if not lost:
            self._commit_last(gone)
        self._held = [a for a in self._held if Partition(a.record.topic, a.record.partition) not in gone]
        for partition in gone:
            self._positions.pop(partition, None)
            self._submitted.pop(partition, None)
            self._committed.pop(partition, None)
        self._step.revoked(partitions)

    def _take(self, now_ms: int, wait_s: float) -> int:
        if self._held and not self._paused:
            if now_ms - (self._busy_since_ms or now_ms) < self._settings.busy_pause_ms:
                time.sleep(min(wait_s, self._settings.busy_wait_s))
                return 0
            self._pause()
        above = self._settings.gather_above
        share = 1.0 if above == ALWAYS else min(1.0, self._brought / GATHER_FULL)
        gather_s = self._settings.gather_s * share if self._brought > above else 0.0
        wait_s = min(wait_s, self._settings.busy_wait_s) if self._held else wait_s
        records = self._consumer.poll(wait_s, self._settings.records_max, gather_s)
        self._brought = len(records)
        self.counts.records += len(records)
        self._held.extend(self._intake.decoded(records, now_ms))
        for record in records:
            self._positions[Partition(record.topic, record.partition)] = record.offset + 1
        return len(records)

    def _offer(self, now_ms: int) -> None:
        while self._held:
            try:
                self._step.submit(self._held, now_ms)
            except Busy:
                if self._busy_since_ms is None:
                    self._busy_since_ms = now_ms
                return
            except Undecodable as error:
                self._refused(error, now_ms)
            else:
                for arrived in self._held:
                    partition = Partition(arrived.record.topic, arrived.record.partition)
                    self._submitted[partition] = arrived.record.offset + 1
                self._held = []

    def _refused(self, error: Undecodable, now_ms: int) -> None:
        place = (error.topic, error.partition, error.offset)
        refused = [a for a in self._held if (a.record.topic, a.record.partition, a.record.offset) == place]
        if not refused:
            raise LogError(f"a step refused a record that it was not given: {error}") from error
        self._intake.refused(refused[0].record, error, now_ms)
        self._held = [arrived for arrived in self._held if arrived is not refused[0]]

    def _pause(self) -> None:
        self._paused = True
        self.counts.pauses += 1
        self._consumer.pause(self._positions)

    def _free(self) -> None:
        self._busy_since_ms = None
        if self._paused:
            self._paused = False
            self._consumer.resume(self._positions)

    def _rewind(self) -> None:
        if not self._rewound:
            return
        wanted, self._rewound = self._rewound, {}
        ours = {partition: offset for partition, offset in wanted.items() if partition in self._positions}
        self.counts.rewinds += 1
        self._held = [a for a in self._held if Partition(a.record.topic, a.record.partition) not in ours]
        self._consumer.seek(ours)
        self._positions.update(ours)
        for partition in ours:
            self._submitted.pop(partition, None)

    def _settled(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Where to commit (rule 1)."""
        held: dict[Partition, int] = {}
        for arrived in self._held:
            held.setdefault(Partition(arrived.record.topic, arrived.record.partition), arrived.record.offset)
        settled = self._step.settled()
        offsets = {}
        for partition in partitions:
            position = self._positions.get(partition)
            if position is None:
                continue
            taken = held.get(partition, position)
            submitted = self._submitted.get(partition)
            offset = settled.get(partition)
            if submitted is None:
                # Only dead letters so far, or nothing since a rewind: there is nothing of it that the step could lose.
                offsets[partition] = taken if offset is None else min(offset, taken)
            elif offset is not None:
                offsets[partition] = taken if offset >= submitted else offset
        return offsets

    def _commit(self, now_ms: int) -> None:
        if self._consumer.commit_failed():
            self._committed.clear()
        offsets = {
            partition: offset
            for partition, offset in self._settled(self._positions).items()
            if offset != self._committed.get(partition)
        }
        if offsets:
            self._consumer.commit(offsets, wait=False)
            self._committed.update(offsets)
            self._committed_ms = now_ms
            self.counts.commits += 1

    def _commit_last(self, partitions: Iterable[Partition]) -> None:
        try:
            self._consumer.commit(self._settled(partitions), wait=True)
        except (NotAppended, Rewind):
            # Its records come again, to us or to another member; that costs work and nothing else.
            return


def run(
    log: Log,
    step: Step,
    *,
    topics: Sequence[str],
    group: str,
    stop: Flag,
    replica: int = 0,
    settings: LoopSettings = LoopSettings(),  # noqa: B008 - frozen
    on_turn: Callable[[Loop], None] = lambda _: None,
) -> None:
    """Run a loop until `stop` is set, then drain.

    Raises:
        LogError: the loop cannot go on; nothing was drained.
    """
    loop = Loop(log, step, topics=topics, group=group, replica=replica, settings=settings)
    try:
        while not stop.is_set():
            loop.turn(time.time_ns() // 1_000_000)
            on_turn(loop)
        loop.stop()
    finally:
        loop.close()
