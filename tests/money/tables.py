"""ClickHouse in memory, as far as the billing projection needs it: parts, merges, and failures at every moment.

A ReplacingMergeTree: an insert makes a part for each month; a merge, at any time, keeps of each key the row with the
highest version, of equal ones the last inserted; a reader with FINAL sees the same before and after it.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from projections.views.tables import PROGRESS, TABLES, InvoiceRow, Progress, UsageRow

Key = tuple[str, ...]

KEYS: Mapping[str, tuple[str, ...]] = {
    TABLES[UsageRow]: ("account_id", "usage_day", "message_id", "record_kind"),
    TABLES[InvoiceRow]: ("account_id", "period", "line"),
}


def key_of(table: str, row: Any) -> Key:
    """A row's place in the sort key."""
    return tuple(getattr(row, name) for name in KEYS[table])


def newer(before: Any, row: Any) -> Any:
    """Which of two rows of a key stays, the second one inserted later."""
    return row if row.version >= before.version else before


class Parts:
    """A table's parts, oldest first."""

    def __init__(self, table: str) -> None:
        self.table = table
        self._parts: list[list[Any]] = []

    def add(self, rows: Sequence[Any]) -> None:
        self._parts.append(list(rows))

    def merge(self, rng: random.Random) -> None:
        """Two neighbours become one."""
        if len(self._parts) > 1:
            at = rng.randrange(len(self._parts) - 1)
            first, second = self._parts[at : at + 2]
            self._parts[at : at + 2] = [list(self._deduplicated([*first, *second]).values())]

    def final(self) -> dict[Key, Any]:
        """Each key once."""
        return self._deduplicated(row for part in self._parts for row in part)

    def drop(self, key: Key) -> None:
        """Somebody deletes a row by hand."""
        self._parts = [[row for row in part if key_of(self.table, row) != key] for part in self._parts]

    def _deduplicated(self, rows: Iterable[Any]) -> dict[Key, Any]:
        found: dict[Key, Any] = {}
        for row in rows:
            key = key_of(self.table, row)
            found[key] = newer(found[key], row) if key in found else row
        return found


def _nothing(_: str) -> None:
    return


class MemoryTables:
    """What the projection's step is given for a database.

    `at(moment)` is called before, in the middle of and after each write; what it raises happens there.
    """

    def __init__(self) -> None:
        self.parts = {table: Parts(table) for table in KEYS}
        self.progress: dict[tuple[str, int], int] = {}
        self.at: Callable[[str], None] = _nothing

    def insert(self, table: str, rows: Sequence[msgspec.Struct]) -> None:
        if not rows:
            return
        self.at(f"before {table}")
        if table == PROGRESS:
            for row in rows:
                self._tell(row)
        else:
            for place, part in enumerate(_by_month(table, rows)):
                if place:
                    self.at(f"within {table}")
                self.parts[table].add(part)
        self.at(f"after {table}")

    def query(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """No conversation was ever deleted here."""
        return []

    def delete(self, table: str, pairs: Iterable[tuple[str, str]], condition: str = "1") -> None:
        raise AssertionError("nothing is to be erased")

    def _tell(self, row: Any) -> None:
        assert isinstance(row, Progress)
        place = (row.topic, row.log_partition)
        self.progress[place] = max(self.progress.get(place, 0), row.next_offset)


def _by_month(table: str, rows: Sequence[Any]) -> list[list[Any]]:
    """As an insert is split by the partition key; the parts of one insert do not come together."""
    months: dict[str, list[Any]] = {}
    for row in rows:
        months.setdefault(row.usage_day[:7] if table == TABLES[UsageRow] else "", []).append(row)
    return list(months.values())
