"""The billing projection in one thread: the real loop and step on the log in memory and on ClickHouse in memory.

A seed decides who goes on next and what goes wrong. Processes are killed at any moment at which they touch the log or
the tables (before, within and after each insert), stopped there while the others go on, drained; partitions move,
sessions end, offsets go back (a replay), records are appended twice and with higher revisions out of order, inserts
fail before, in the middle of and after their work, parts are merged, partitions are read late.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal

import msgspec

from projections.clickhouse.client import ClickHouseUnavailable
from projections.views.pace import Pace
from projections.views.rows import rows
from projections.views.step import Batch, ViewsStep
from projections.views.tables import TABLES, InvoiceRow, UsageRow
from schemas.events import Event, PeriodClosed, UsageAdjusted, UsageRecorded
from schemas.examples import EXAMPLES
from streams.log.encoding import decoded
from streams.log.loop import ALWAYS, Loop, LoopSettings
from streams.log.steps import LogError, NotAppended, Output, Partition
from tests.money.tables import KEYS, Key, MemoryTables, key_of, newer
from tests.simulation.log import SimulatedLog

PARTITIONS = {"usage": 3, "messages": 1}
TOPICS = ("messages", "usage")
GROUP = "views"
BEGIN_MS = 1_764_434_400_000
STEPS = 140
STEPS_OF_ONE_KILL = 25
REPLICAS = 3
CALM_TURNS = 400
replace = msgspec.structs.replace


class Crash(Exception):
    """The process in hand is killed."""


class Broken(AssertionError):
    """A read that is wrong."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


def _content(row: msgspec.Struct) -> msgspec.Struct:
    """A row but for where in the log it stands: of a record that is there twice, either will do."""
    return replace(row, log_offset=0, version=0)


class Process:
    """A replica of the projection."""

    def __init__(self, replica: int) -> None:
        self.replica = replica
        self.loop: Loop | None = None
        self.not_before_ms = 0
        self.silent_since_ms: int | None = None


class World:
    """One history. `kill_at`: the only fault is a kill at this touch of log or tables (counted from 1)."""

    def __init__(self, seed: int, *, kill_at: int | None = None, trace: Callable[[str], None] | None = None) -> None:
        self.rng = random.Random(seed)
        self.now_ms = BEGIN_MS
        self.log = SimulatedLog(PARTITIONS, lambda: self.now_ms)
        self.log.at_point = lambda point, who: self._touched(f"{point} {who}")
        self.tables = MemoryTables()
        self.tables.at = self._touched
        self.processes = [Process(number) for number in range(1 if kill_at is not None else REPLICAS)]
        self.kills = 0
        self.touches = 0
        self.reads = 0
        self._kill_at = kill_at
        self._faults = kill_at is None
        self._current: Process | None = None
        self._nested = False
        self._writer = self.log.writer("settlement")
        self._written: list[Event] = []
        self._fold: dict[str, dict[Key, msgspec.Struct]] = {table: {} for table in KEYS}
        self._history: dict[str, dict[Key, set[msgspec.Struct]]] = {table: {} for table in KEYS}
        self._told: dict[str, dict[Key, msgspec.Struct]] = {table: {} for table in KEYS}
        self._folded: dict[Partition, int] = {}
        self._folded_told: dict[Partition, int] = {}
        self._seen: dict[str, set[Key]] = {table: set() for table in KEYS}
        self._trace = trace

    # --- time ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Faults, then calm; a read after every step. Raises `Broken`."""
        for _ in range(STEPS if self._kill_at is None else STEPS_OF_ONE_KILL):
            self.now_ms += self.rng.choice((5, 50, 300, 1_500))
            self.log.tick()
            if self.rng.random() < 0.5:
                self._write()
            self._turn(self.rng.choice(self.processes))
            if self._faults:
                self._strike()
            self.read()
        self._faults, self._kill_at = False, None
        self.log.tick(release=True)
        for _ in range(CALM_TURNS):
            self.now_ms += 700
            for process in self.processes:
                process.not_before_ms = 0
                self._turn(process)
            self.read()
            if self._at_rest():
                self._check_whole()
                return
        raise Broken("everything_is_written", "not at rest after the calm")

    def _at_rest(self) -> bool:
        ends = {
            Partition(t, n): len(self.log.store.partition(Partition(t, n)).entries)
            for t in TOPICS
            for n in range(PARTITIONS[t])
        }
        committed = self.log.committed(GROUP)
        return all(committed.get(partition, 0) >= end for partition, end in ends.items())

    # --- what is written ----------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Settlement writes, now and then the same again; invoices are closed."""
        for _ in range(self.rng.choice((1, 1, 3, 10))):
            event = self._event()
            self._written.append(event)
            with contextlib.suppress(NotAppended):
                self._writer.append(Output(event=event))

    def _event(self) -> Event:
        chance = self.rng.random()
        if self._written and chance < 0.15:
            return self.rng.choice(self._written)
        recorded = [event for event in self._written if isinstance(event, UsageRecorded)]
        if recorded and chance < 0.3:
            event = self.rng.choice(recorded)
            revision = self.rng.randrange(2, 6)
            return replace(event, revision=revision, model=f"m{revision}", output_tokens=revision, cost=f"{revision}.5")
        number = len(self._written)
        account, month = f"a{self.rng.randrange(9)}", self.rng.randrange(10, 13)
        if recorded and chance < 0.35:
            adjusted = EXAMPLES[UsageAdjusted]
            return replace(adjusted, account_id=account, reply_id=f"r{number}", usage_day=f"2025-{month}-03")
        if chance < 0.38:
            return replace(EXAMPLES[PeriodClosed], account_id=account, period=f"2025-{month}")
        return replace(
            EXAMPLES[UsageRecorded],
            account_id=account,
            reply_id=f"r{number}",
            usage_day=f"2025-{month}-{1 + number % 28:02}",
            cost=f"0.{number:06}",
            output_tokens=number,
        )

    # --- what is read -------------------------------------------------------------------------------------------

    def read(self) -> None:
        """The tables hold the fold of the log up to the told progress, beyond it only records of the log."""
        self.reads += 1
        self._follow()
        for table, told in self._told.items():
            found = self.tables.parts[table].final()
            for key, row in found.items():
                if _content(row) not in self._history[table].get(key, ()):
                    raise Broken("every_row_is_a_record", f"{table} {key}")
            if gone := told.keys() - found.keys():
                raise Broken("what_is_told_is_there", f"{table} {sorted(gone)[:3]}")
            for key, row in told.items():
                if found[key].version < row.version:
                    raise Broken("the_highest_revision_counts", f"{table} {key}")
            if gone := self._seen[table] - found.keys():
                raise Broken("nothing_goes_away", f"{table} {sorted(gone)[:3]}")
            self._seen[table] = set(found)
        self._no_key_twice()

    def _no_key_twice(self) -> None:
        """The number listed is the number billed: an identity has one row, whatever its sort key says."""
        identities: set[tuple[str, str]] = set()
        for row in self.tables.parts[TABLES[UsageRow]].final().values():
            identity = (row.message_id, row.record_kind)
            if identity in identities:
                raise Broken("a_record_is_billed_once", f"{identity}")
            identities.add(identity)

    def _check_whole(self) -> None:
        for table, fold in self._fold.items():
            found = self.tables.parts[table].final()
            if found.keys() != fold.keys():
                raise Broken("at_the_end_all_is_equal", f"{table}: {sorted(fold.keys() ^ found.keys())[:3]}")
            for key, row in fold.items():
                if _content(found[key]) != _content(row):
                    raise Broken("at_the_end_all_is_equal", f"{table} {key}: {found[key]} is not {row}")
        if self._total(self.tables.parts[TABLES[UsageRow]].final()) != self._total(self._fold[TABLES[UsageRow]]):
            raise Broken("at_the_end_all_is_equal", "totals")

    def _total(self, found: Mapping[Key, msgspec.Struct]) -> Decimal:
        return sum((Decimal(row.cost) for row in found.values() if isinstance(row, UsageRow)), Decimal(0))

    def _follow(self) -> None:
        """Fold what the log has, and apart from it what the projection says it has written."""
        for number in range(PARTITIONS["usage"]):
            partition = Partition("usage", number)
            entries = self.log.store.partition(partition).entries
            told = self.tables.progress.get(("usage", number), 0)
            if told > len(entries):
                raise Broken("what_is_told_is_there", f"{partition} ends at {len(entries)}, told is {told}")
            for offset in range(self._folded.get(partition, 0), len(entries)):
                for table, row in self._rows(partition, offset):
                    key = key_of(table, row)
                    self._history[table].setdefault(key, set()).add(_content(row))
                    fold = self._fold[table]
                    fold[key] = newer(fold[key], row) if key in fold else row
            self._folded[partition] = len(entries)
            for offset in range(self._folded_told.get(partition, 0), told):
                for table, row in self._rows(partition, offset):
                    key, fold = key_of(table, row), self._told[table]
                    fold[key] = newer(fold[key], row) if key in fold else row
            self._folded_told[partition] = max(self._folded_told.get(partition, 0), told)

    def _rows(self, partition: Partition, offset: int) -> Iterator[tuple[str, msgspec.Struct]]:
        record = self.log.store.partition(partition).entries[offset].record
        if record is not None:
            for row in rows(decoded(record), partition.number, offset):
                if isinstance(row, UsageRow | InvoiceRow):
                    yield TABLES[type(row)], row

    # --- processes and faults -----------------------------------------------------------------------------------

    def _make(self, process: Process) -> Loop:
        step = ViewsStep(self.tables, Batch(rows=12, waiting_rows_max=40), Pace(burst=2.0, left=1.0))  # type: ignore[arg-type]
        settings = LoopSettings(records_max=self.rng.choice((3, 10, 50)), gather_above=ALWAYS)
        return Loop(self.log, step, topics=TOPICS, group=GROUP, replica=process.replica, settings=settings)

    def _turn(self, process: Process) -> None:
        if self.now_ms < process.not_before_ms:
            return
        process.silent_since_ms = None
        outer, self._current = self._current, process
        try:
            if process.loop is None:
                process.loop = self._make(process)
            process.loop.turn(self.now_ms, 0)
        except Crash:
            self._kill(process, "crashes")
        except LogError as error:
            self._say(f"{process.replica} exits: {error}")
            process.loop = None
        finally:
            self._current = outer

    def _kill(self, process: Process, how: str) -> None:
        self.kills += 1
        process.loop = None
        process.silent_since_ms = self.now_ms
        process.not_before_ms = self.now_ms + self.rng.choice((0, 0, 400, 4_000))
        self._say(f"{process.replica} {how}")

    def _touched(self, moment: str) -> None:
        """The process in hand touches the log or the tables: here it may die, fail, or stand still."""
        process = self._current
        if process is None:
            return
        self.touches += 1
        if self._kill_at is not None and self.touches == self._kill_at:
            raise Crash
        if not self._faults:
            return
        chance = self.rng.random()
        if chance < 0.07:
            self._say(f"{process.replica} at {moment}")
            raise Crash
        if chance < 0.13 and not moment.startswith(("append", "offsets")):
            raise ClickHouseUnavailable(moment)
        if chance < 0.16 and not self._nested:
            self._others_go_on(process, moment)

    def _others_go_on(self, process: Process, moment: str) -> None:
        """The process stands still in the middle of its turn, its session may end, the others take what it had."""
        self._nested = True
        self._say(f"{process.replica} stands still at {moment}")
        if self.rng.random() < 0.7 and not moment.startswith(("append", "offsets")):
            self.log.expire(GROUP, process.replica)
        others = [other for other in self.processes if other is not process]
        for _ in range(self.rng.choice((2, 8, 20))):
            self.now_ms += self.rng.choice((50, 600))
            if self.rng.random() < 0.3:
                outer, self._current = self._current, None
                self._write()
                self._current = outer
            self._turn(self.rng.choice(others))
            self.read()
        self._nested = False

    def _strike(self) -> None:
        """Something happens between turns."""
        chance = self.rng.random()
        process = self.rng.choice(self.processes)
        if chance < 0.06 and process.loop is not None:
            self._kill(process, "is killed")
        elif chance < 0.08:
            self.log.shake(GROUP)
        elif chance < 0.10:
            self.log.move(GROUP)
        elif chance < 0.13:
            self.log.expire(GROUP, process.replica)
        elif chance < 0.15 and process.loop is not None:
            self._stop(process)
        elif chance < 0.18:
            self._replay()
        elif chance < 0.24:
            self.tables.parts[self.rng.choice(list(KEYS))].merge(self.rng)
        elif chance < 0.28:
            place = Partition("usage", self.rng.randrange(PARTITIONS["usage"]))
            self.log.hold(place, self.now_ms + self.rng.choice((200, 3_000)))

    def _stop(self, process: Process) -> None:
        """SIGTERM."""
        outer, self._current = self._current, process
        try:
            if process.loop is not None:
                process.loop.close()
        except (Crash, LogError):
            self.kills += 1
        finally:
            self._current = outer
        process.loop = None

    def _replay(self) -> None:
        """An operator sets offsets back; whoever runs is started again by it."""
        for process in self.processes:
            if process.loop is not None:
                self._kill(process, "is stopped for a replay")
            self.log.expire(GROUP, process.replica)
        committed = self.log._groups[GROUP].committed if GROUP in self.log._groups else {}
        for partition in committed:
            committed[partition] = self.rng.randrange(committed[partition] + 1)
        self._say(f"replay from {committed}")

    def _say(self, what: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.now_ms - BEGIN_MS:>8} {what}")
