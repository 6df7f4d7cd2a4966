"""The log's rows of one topic, loaded into tables beside the live ones by the code that the projection has."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from projections.archive.history import History
from projections.clickhouse.beside import Table, catalogue, copy_statement
from projections.clickhouse.client import Database
from projections.reconcile.places import Read
from projections.views.loading import Loaded, Loading
from projections.views.tables import ConversationRow, InvoiceRow, MessageRow, Row, UsageRow
from streams.log.log import Log, since
from streams.log.steps import Partition

BESIDE = "__log_"
STALE = "1 DAY"
MARGIN_MS = 3_600_000
"""So much earlier than its day a record may have been written, by another machine's clock."""
POLL_S = 0.2

Connect = Callable[[], Database]


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a topic."""

    archive: Path | None = None
    day: str = ""
    """Only rows of days (UTC) from this one on; empty: all that can be read."""

    @property
    def began_ms(self) -> int:
        """When the day began."""
        return int(datetime.fromisoformat(f"{self.day}T00:00:00").replace(tzinfo=UTC).timestamp() * 1000)

    def wants(self) -> Callable[[Row], bool] | None:
        """Which rows; None: all."""
        if not self.day:
            return None
        day, began_s = self.day, self.began_ms / 1000

        def wanted(row: Row) -> bool:
            match row:
                case UsageRow():
                    return row.usage_day >= day
                case MessageRow():
                    return float(row.submitted_at) >= began_s
                case ConversationRow():
                    return float(row.at) >= began_s
                case InvoiceRow():
                    return False
                case _:
                    return float(getattr(row, "ended_at", "0")) >= began_s

        return wanted


class Beside:
    """One topic's tables beside the live ones, and up to where they are the log."""

    def __init__(self, log: Log, database: Database, topic: str, live: Mapping[str, Table], run: str) -> None:
        self.topic = topic
        self.live = live
        self.names = {name: f"{name}{BESIDE}{run}" for name in live}
        self.partitions = [Partition(topic, number) for number in range(log.partitions(topic))]
        self.ends: dict[Partition, int] = {}
        """Of what was read."""
        self.due: dict[Partition, int] = {}
        """How far the projection must be to have it. Behind the last record of a partition that can be read it says
        nothing: dead letters never reach it."""
        self.told: dict[Partition, int] = {}
        """How far the projection was, at least, when the rows were looked at."""
        self.loaded = Loaded()
        self._log = log
        self._database = database
        self._begins: dict[Partition, int] = {}
        self._ends = History(log, self.partitions, None, database)

    def load(self, connect: Connect, span: Span) -> None:
        """Raises `Missing`, `ArchiveBroken`, `LogError`, `ClickHouseError`."""
        writing, converting = connect(), connect()
        history = History(self._log, self.partitions, span.archive, converting)
        loading = Loading(writing, self.names, lambda _: None, wanted=span.wants())
        try:
            if span.day:
                self._begins = self._since(span.began_ms - MARGIN_MS)
            else:
                self._begins = {partition: history.first(partition) for partition in self.partitions}
            self.ends = history.ends()
            for records, reached in history.read(self._begins, self.ends):
                loading.take(records, reached)
            loading.flush()
            self.loaded = loading.counts
            self.due = {**self._begins, **loading.read}
        finally:
            loading.close()
            history.close()
            writing.close()
            converting.close()

    def wait(self, wait_s: float) -> int:
        """Wait until the projection has come to what was read, but not for ever; how many records it is behind."""
        until = time.monotonic() + wait_s
        while True:
            self.told = told(self._database)
            behind = sum(max(end - self.told.get(partition, 0), 0) for partition, end in self.due.items())
            if not behind or time.monotonic() > until:
                return behind
            time.sleep(POLL_S)

    def read(self) -> Read:
        """What was read, with where the log ends now: to be asked after rows were looked at."""
        return Read(
            begins=_numbers(self._begins),
            ends=_numbers(self.ends),
            told=_numbers({p: offset for p, offset in self.told.items() if p.topic == self.topic}),
            now=_numbers(self._ends.ends()),
        )

    def close(self) -> None:
        """Leave the log, and remove the tables; what fills one before it."""
        self._ends.close()
        for name in sorted(self.names, key=lambda one: self.live[one].engine != "MaterializedView"):
            self._database.command(f"DROP TABLE IF EXISTS {self.names[name]} SYNC")

    def make(self) -> None:
        """Raises `ClickHouseError`."""
        for name in sorted(self.live, key=lambda one: self.live[one].engine in {"MaterializedView", "View"}):
            self._database.command(copy_statement(self.live[name], self.names))

    def _since(self, time_ms: int) -> dict[Partition, int]:
        reader = self._log.reader(self.partitions, since(time_ms))
        try:
            return reader.positions()
        finally:
            reader.close()


@contextmanager
def beside(log: Log, database: Database, topic: str, tables: Sequence[str]) -> Iterator[Beside]:
    """Tables beside these, empty; they are gone at the end."""
    found = catalogue(database)
    made = Beside(log, database, topic, {name: found[name] for name in tables}, uuid.uuid4().hex[:8])
    try:
        made.make()
        yield made
    finally:
        made.close()


def told(database: Database) -> dict[Partition, int]:
    """How far the projection says that it is."""
    found = database.query("SELECT topic, log_partition, toInt64(max(next_offset)) FROM progress GROUP BY ALL")
    return {Partition(topic, number): offset for topic, number, offset in found}


def drop_stale(database: Database) -> None:
    """Tables of runs that were killed, what fills one before it."""
    stale = database.query(
        f"SELECT name FROM system.tables WHERE database = currentDatabase() AND position(name, '{BESIDE}') > 0 "  # noqa: S608
        f"AND metadata_modification_time < now() - INTERVAL {STALE} ORDER BY engine != 'MaterializedView'"
    )
    for (name,) in stale:
        database.command(f"DROP TABLE IF EXISTS {name} SYNC")


def _numbers(offsets: Mapping[Partition, int]) -> dict[int, int]:
    return {partition.number: offset for partition, offset in offsets.items()}
