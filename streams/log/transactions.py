"""The transactional loop. The rules of its steps are in `steps`; these are its own:

1. A partition number is ours when that number of every input topic is. All of them come and go together.
2. New numbers are restored before anything of them is decided: the state topic is read, committed records only, up
   to the end that it had after the group had given us the number, so that no transaction of the last owner is missed.
3. One transaction holds the decisions of one turn, over all numbers that had records or whose tick was due. It always
   carries offsets, also when only time has passed, for these are what fences an owner that was replaced.
4. An abort drops the decisions and moves the consumer back to the records of this turn; they are decided again.
5. A decision with nothing to write is taken over at once (rule 5 in `steps`).
6. `written` is told in order of the commits, as acknowledgements arrive.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Event as Flag

import msgspec

from streams.log.afterwards import Afterwards
from streams.log.catchup import read_all
from streams.log.deadletters import Intake
from streams.log.flow import Flow, advance
from streams.log.log import Aborted, Consumer, Expired, Log
from streams.log.steps import (
    Arrived,
    Decision,
    LogError,
    LogFull,
    NotAppended,
    Output,
    Partition,
    Record,
    TransactionalStep,
)

LOGGER = logging.getLogger("turnlog.loop")


class TransactionalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a transactional loop goes. Times are in the unit of their names."""

    tick_ms: int = 100
    """Numbers without records are decided this often."""
    records_max: int = 500
    """Records of one transaction."""
    offsets_ms: int = 1_000
    """How long offsets wait for a transaction before they are committed without one."""
    restore_s: float = 300.0
    before_s: float = 5.0
    """How long `before` may take to be acknowledged: less than brokers let a transaction stay open."""
    after_s: float = 30.0
    """The same of `after`, when the loop stops."""
    expired: Expired = "stop"


class TransactionalCounts(msgspec.Struct):
    """What a loop has done since it began, for metrics."""

    turns: int = 0
    records: int = 0
    transactions: int = 0
    aborted: int = 0
    rebalances: int = 0
    restored: int = 0


class TransactionalLoop:
    """The loop as an object that is turned: by `run`, or step by step by a simulation."""

    def __init__(
        self,
        log: Log,
        step: TransactionalStep,
        *,
        topics: Sequence[str],
        state_topic: str,
        group: str,
        replica: int = 0,
        settings: TransactionalSettings = TransactionalSettings(),  # noqa: B008 - frozen
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        counts = {topic: log.partitions(topic) for topic in (*topics, state_topic)}
        if len(set(counts.values())) != 1:
            raise LogError(f"topics of one transactional loop need the same number of partitions: {counts}")
        self._log = log
        self._step = step
        self._topics = tuple(topics)
        self._state_topic = state_topic
        self._settings = settings
        self._on_progress = on_progress
        self._writer = log.writer(f"streams/{group}")
        self._intake = Intake(self._writer, group)
        self._after = Afterwards(self._writer, step)
        self._positions: dict[Partition, int] = {}
        self._uncommitted: dict[Partition, int] = {}
        self._offsets_ms = 0
        self._restored: set[int] = set()
        self._decided_ms: dict[int, int] = {}
        self._flow = Flow()
        self.counts = TransactionalCounts()
        self._transactions = log.transactions(f"{group}-{replica}", f"streams/{group}")
        self._consumer: Consumer = log.consumer(
            group, topics, self, replica=replica, assignment="together", expired=settings.expired
        )

    def turn(self, now_ms: int, wait_s: float | None = None) -> int:
        """One turn: poll, restore, decide, commit. How many records arrived.

        Args:
            now_ms: the wall clock.
            wait_s: how long to wait for a record, instead of the tick.

        Raises:
            LogError: the process must end; see its kinds in `steps`.
        """
        self.counts.turns += 1
        tick_s = self._settings.tick_ms / 1000
        records = self._consumer.poll(tick_s if wait_s is None else wait_s, self._settings.records_max)
        self._flow = advance(self._flow, now_ms, reachable=self._consumer.reachable())
        self._after.tell()
        self._restore(now_ms)
        self.counts.records += len(records)
        self._decide(records, now_ms)
        if now_ms - self._offsets_ms >= self._settings.offsets_ms or now_ms < self._offsets_ms:
            self._commit_offsets(now_ms)
        return len(records)

    def stop(self) -> None:
        """End in order: what was committed is also written, and the offsets are committed."""
        self._after.finish(self._settings.after_s)
        self.close()

    def close(self) -> None:
        """Leave at once. What stands in `after` is written by the next life."""
        self._consumer.close()
        self._transactions.close()
        self._writer.close()

    def lag(self) -> int | None:
        """Records that are in the log and not decided yet; None: not known."""
        return self._consumer.lag(self._positions)

    def numbers(self) -> frozenset[int]:
        """The partition numbers that are ours and restored."""
        return frozenset(self._restored)

    @property
    def flow_ms(self) -> int:
        """The flow clock (rule 6 in `steps`)."""
        return self._flow.flow_ms

    def on_assigned(self, starts: Mapping[Partition, int]) -> None:
        """Of the consumer's listener."""
        self.counts.rebalances += 1
        self._positions.update(starts)
        self._restored.difference_update(partition.number for partition in starts)

    def on_revoked(self, partitions: Sequence[Partition], *, lost: bool) -> None:
        """Of the consumer's listener."""
        self.counts.rebalances += 1
        if not lost and self._uncommitted:
            try:
                self._consumer.commit(self._uncommitted, wait=True)
            except NotAppended:
                self._uncommitted.clear()  # those records are decided again, by whoever gets them
        for partition in partitions:
            self._positions.pop(partition, None)
            self._uncommitted.pop(partition, None)
        gone = {partition.number for partition in partitions}
        self._after.forget(gone)
        for number in sorted(gone):
            self._decided_ms.pop(number, None)
            if number in self._restored:
                self._restored.discard(number)
                self._step.revoked(number)

    def _numbers(self) -> set[int]:
        numbers = {partition.number for partition in self._positions}
        for number in numbers:
            missing = [topic for topic in self._topics if Partition(topic, number) not in self._positions]
            if missing:
                raise LogError(f"number {number} was assigned without its partitions of {missing}")
        return numbers

    def _restore(self, now_ms: int) -> None:
        new = sorted(self._numbers() - self._restored)
        if not new:
            return
        partitions = [Partition(self._state_topic, number) for number in new]
        found = read_all(self._log, partitions, timeout_s=self._settings.restore_s, on_progress=self._on_progress)
        for (_, number), records in found.items():
            self._step.restore(number, records, now_ms, self._flow.flow_ms)
            self._restored.add(number)
            self.counts.restored += len(records)

    def _decide(self, records: Sequence[Record], now_ms: int) -> None:
        batches: dict[int, list[Arrived]] = {record.partition: [] for record in records}
        for arrived in self._intake.decoded(records, now_ms):
            batches[arrived.record.partition].append(arrived)
        due = (n for n in self._restored if not 0 <= now_ms - self._decided_ms.get(n, 0) < self._settings.tick_ms)
        for number in due:
            batches.setdefault(number, [])
        before = dict(self._positions)
        for record in records:
            self._positions[Partition(record.topic, record.partition)] = record.offset + 1
        moved = {p: offset for p, offset in self._positions.items() if before[p] != offset}
        decisions = {
            number: self._step.decide(number, batch, now_ms, self._flow.flow_ms) for number, batch in batches.items()
        }
        written = {number: decision for number, decision in decisions.items() if decision.writes}
        try:
            if written:
                self._commit(written, self._uncommitted | moved)
        except (Aborted, NotAppended) as failure:
            LOGGER.warning("transaction aborted: %s", failure)
            self.counts.aborted += 1
            back = {partition: before[partition] for partition in moved if partition in self._positions}
            self._positions.update(back)
            self._consumer.seek(back)
            return
        self._uncommitted = {} if written else self._uncommitted | moved
        for number, decision in decisions.items():
            self._decided_ms[number] = now_ms
            self._step.committed(number, decision)
            if decision.writes:
                self._after.write(number, decision)
            for report in decision.reports:
                self._report(report)
        self._after.tell()

    def _report(self, report: Output) -> None:
        try:
            self._writer.append(report, lambda _: None)
        except (LogFull, NotAppended):
            LOGGER.warning("not reported: %s", type(report.event).__name__)

    def _commit(self, decisions: Mapping[int, Decision], offsets: dict[Partition, int]) -> None:
        awaited = [output for decision in decisions.values() for output in decision.before]
        for output in awaited:
            self._writer.append(output)
        for number in decisions:
            if all(partition.number != number for partition in offsets):
                partition = Partition(self._topics[0], number)
                offsets[partition] = self._positions[partition]
        self._transactions.commit(
            [output for decision in decisions.values() for output in decision.outputs],
            [
                (Partition(self._state_topic, n), state)
                for n, decision in decisions.items()
                for state in decision.states
            ],
            offsets,
            self._consumer,
            condition=lambda: self._writer.flush(self._settings.before_s) if awaited else None,
        )
        self.counts.transactions += 1

    def _commit_offsets(self, now_ms: int) -> None:
        self._offsets_ms = now_ms
        if self._consumer.commit_failed():
            self._uncommitted = dict(self._positions)
        if self._uncommitted:
            self._consumer.commit(self._uncommitted, wait=False)
            self._uncommitted = {}


def run(
    log: Log,
    step: TransactionalStep,
    *,
    topics: Sequence[str],
    state_topic: str,
    group: str,
    stop: Flag,
    replica: int = 0,
    settings: TransactionalSettings = TransactionalSettings(),  # noqa: B008 - frozen
    on_turn: Callable[[TransactionalLoop], None] = lambda _: None,
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Run a transactional loop until `stop` is set.

    Args:
        topics: the input topics, with the same number of partitions.
        state_topic: the compacted topic with the step's state, with as many.
        group: name of the group and, with the replica, of the transactions.
        replica: which of the processes this is; the same again after a restart.
        on_turn: called after each turn.
        on_progress: called now and then while state is restored.

    Raises:
        LogError: the process must end and be started anew.
    """
    loop = TransactionalLoop(
        log,
        step,
        topics=topics,
        state_topic=state_topic,
        group=group,
        replica=replica,
        settings=settings,
        on_progress=on_progress,
    )
    try:
        while not stop.is_set():
            loop.turn(time.time_ns() // 1_000_000)
            on_turn(loop)
        loop.stop()
    finally:
        loop.close()
