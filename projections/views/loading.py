"""Writes the rows of a history into tables: what the views' step does, for many records at once and no followers.

1. Where a partition stands is told (`durable`) after all rows of the records below it are durable, so whoever is
   stopped goes on from what was told last, and rows that come twice replace themselves.
2. One batch is inserted while the next one is read and decoded.
3. A record that no reader can make sense of, or that no column can hold, gives no rows, as in the views: it is counted.
4. What deleted conversations said is erased by `erase`, which is to be called at the end.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from projections.clickhouse.client import Block, Database, block_of
from projections.views.columns import Unstorable
from projections.views.rows import rows
from projections.views.tables import TABLES, Row
from schemas.codec import Undecodable
from streams.log.encoding import decoded
from streams.log.steps import Partition, Record

BATCH_ROWS = 100_000
BATCH_BYTES = 64_000_000
"""Of the records' values, about."""

Durable = Callable[[Mapping[Partition, int]], None]


class Loaded(msgspec.Struct):
    """How much was read and written."""

    records: int = 0
    rows: int = 0
    unreadable: int = 0


class Loading:
    """Loads into tables that stand for the live ones: `names` from those to these; others are left out."""

    def __init__(
        self,
        database: Database,
        names: Mapping[str, str],
        durable: Durable,
        wanted: Callable[[Row], bool] | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        self._database = database
        self._tables = {row: names[table] for row, table in TABLES.items() if table in names}
        self._durable = durable
        self._wanted = wanted
        self._batch_rows = batch_rows
        self._rows: dict[type[Row], list[Row]] = {row: [] for row in self._tables}
        self._size = 0
        self._held = 0
        self._reached: dict[Partition, int] = {}
        self._thread = ThreadPoolExecutor(1, "inserting")
        self._writing: Future[None] | None = None
        self.counts = Loaded()
        self.read: dict[Partition, int] = {}
        """Of each partition, the offset behind its last record that could be read: how far a projection can tell."""

    def take(self, records: Sequence[Record], reached: Mapping[Partition, int]) -> None:
        """Take these records, with which their partitions have been read up to there.

        Raises:
            ClickHouseError: of this batch or of the one before.
        """
        self._make(records)
        self._reached.update(reached)
        if self._held >= self._batch_rows or self._size >= BATCH_BYTES:
            self._write()

    def flush(self) -> None:
        """All that was taken is durable, and told, when this returns. Raises `ClickHouseError`."""
        self._write()
        self._wait()

    def close(self) -> None:
        """Drop what is not durable."""
        self._thread.shutdown(cancel_futures=True)

    def _make(self, records: Sequence[Record]) -> None:
        kept, wanted = self._rows, self._wanted
        held = size = 0
        last: dict[tuple[str, int], int] = {}
        for record in records:
            try:
                found = rows(decoded(record), record.partition, record.offset)
            except (Undecodable, Unstorable):
                self.counts.unreadable += 1
                continue
            last[record.topic, record.partition] = record.offset
            for row in found:
                of_table = kept.get(type(row))
                if of_table is not None and (wanted is None or wanted(row)):
                    of_table.append(row)
                    held += 1
                    size += len(record.value or b"")
        self.read.update((Partition(*place), offset + 1) for place, offset in last.items())
        self._held += held
        self._size += size
        self.counts.records += len(records)

    def _write(self) -> None:
        blocks = [(self._tables[kind], block_of(found)) for kind, found in self._rows.items() if found]
        reached, self._reached = self._reached, {}
        self.counts.rows += self._held
        self._rows = {row: [] for row in self._tables}
        self._held = self._size = 0
        self._wait()
        if blocks or reached:
            self._writing = self._thread.submit(self._insert, blocks, reached)

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _insert(self, blocks: Sequence[tuple[str, Block]], reached: Mapping[Partition, int]) -> None:
        for table, block in blocks:
            self._database.insert_block(table, block)
        self._durable(reached)


_PAIRS = "(account_id, conversation_id)"


def erase(database: Database, names: Mapping[str, str], derived: Sequence[str]) -> int:
    """Erase from tables (`names`: the live name to theirs) what deleted conversations said; in how many tables.

    The rows that say that they were deleted stay, and what hangs on the tables is told of them again. Raises
    `ClickHouseError`.
    """
    changes = names.get("conversation_rows")
    if changes is None:
        return 0
    deleted = f"{_PAIRS} IN (SELECT account_id, conversation_id FROM {changes} WHERE kind = 'deleted')"  # noqa: S608
    targets = [
        (names[table], condition)
        for table, condition in (("message_rows", "1"), ("reply_rows", "1"), ("conversation_rows", "kind != 'deleted'"))
        if table in names
    ]
    left = [
        (table, condition)
        for table, condition in targets
        if database.query(f"SELECT 1 FROM {table} WHERE {condition} AND {deleted} LIMIT 1")  # noqa: S608
    ]
    if not left:
        return 0
    for table, condition in (*left, *((table, "1") for table in derived)):
        database.erase(table, f"{condition} AND {deleted}")
    database.command(f"INSERT INTO {changes} SELECT * FROM {changes} FINAL WHERE kind = 'deleted'")  # noqa: S608
    return len(left)
