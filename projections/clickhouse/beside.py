"""Tables beside the live ones, with the definitions that those have now; what hangs on what is read from the database.

Names that we add have two underscores, so they never meet a name of a migration.
"""

import re
from collections.abc import Iterable, Mapping

import msgspec

from projections.clickhouse.client import Database

_TARGET = re.compile(r"\bTO (?:`?\w+`?\.)?`?(\w+)`?")
_QUALIFIED = re.compile(r"`?(\w+)`?\.`?(\w+)`?")
_COMPLEX = ("Array", "Tuple", "Map", "Nested", "JSON")


class Column(msgspec.Struct, frozen=True):
    """A column that rows have. `type` as ClickHouse writes it."""

    name: str
    type: str

    @property
    def hashed(self) -> tuple[str, ...]:
        """What of it goes into a row's hash, as SQL."""
        if self.type.startswith(("Nullable", "LowCardinality(Nullable")):
            return (f"isNull(`{self.name}`)", f"ifNull(toString(`{self.name}`), '')")
        if self.type.startswith(_COMPLEX):
            return (f"toString(`{self.name}`)",)
        return (f"`{self.name}`",)


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table or view as it is now."""

    database: str
    name: str
    engine: str
    uuid: str
    create: str
    """The statement that makes it, names with their database."""
    sort_key: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()

    @property
    def is_view(self) -> bool:
        """Nothing is stored in it."""
        return self.engine == "View"

    @property
    def feeds(self) -> str | None:
        """The table that it writes into at each insert: of a materialised view that does not refresh by itself."""
        if self.engine != "MaterializedView" or self.refreshes:
            return None
        return self._target()

    @property
    def refills(self) -> str | None:
        """The table that it computes anew from time to time."""
        return self._target() if self.engine == "MaterializedView" and self.refreshes else None

    @property
    def refreshes(self) -> bool:
        """Whether it is computed anew from time to time."""
        return re.search(r"\bREFRESH (EVERY|AFTER)\b", self.create) is not None

    def reads(self, names: Iterable[str]) -> set[str]:
        """Which of these tables and views its SELECT reads. (ClickHouse keeps their names with their database.)"""
        _, _, select = self.create.partition(" AS ")
        found = {name for database, name in _QUALIFIED.findall(select) if database == self.database}
        return found & set(names)

    def _target(self) -> str | None:
        head, _, _ = self.create.partition(" AS ")
        found = _TARGET.search(head)
        return found[1] if found else None


_TABLES = """
SELECT database, name, engine, toString(uuid), create_table_query, sorting_key
FROM system.tables WHERE database = currentDatabase()
"""
_COLUMNS = """
SELECT table, name, type FROM system.columns
WHERE database = currentDatabase() AND default_kind IN ('', 'DEFAULT') ORDER BY table, position
"""


def catalogue(database: Database) -> dict[str, Table]:
    """All tables and views of the database, by name. Raises `ClickHouseError`."""
    columns: dict[str, list[Column]] = {}
    for table, name, kind in database.query(_COLUMNS):
        columns.setdefault(table, []).append(Column(name, kind))
    return {
        name: Table(
            database=owner,
            name=name,
            engine=engine,
            uuid=uuid,
            create=create,
            sort_key=tuple(part.strip() for part in sort_key.split(",") if part.strip()),
            columns=tuple(columns.get(name, ())),
        )
        for owner, name, engine, uuid, create, sort_key in database.query(_TABLES)
    }


def renamed(create: str, database: str, names: Mapping[str, str]) -> str:
    """The statement with these names instead of those."""

    def one(found: re.Match[str]) -> str:
        return f"{found[1]}{names.get(found[2], found[2])}{found[3]}"

    return re.sub(rf"(\b`?{re.escape(database)}`?\.`?)(\w+)(`?)", one, create)


def copy_statement(table: Table, names: Mapping[str, str]) -> str:
    """Makes a table or materialised view of the same definition under another name, where it is not there yet."""
    return re.sub(
        r"^CREATE (TABLE|MATERIALIZED VIEW) ",
        r"CREATE \1 IF NOT EXISTS ",
        renamed(table.create, table.database, names),
        count=1,
    )


def same_definition(table: Table, copy: Table, names: Mapping[str, str]) -> bool:
    """Whether the copy is what the table is now."""
    return renamed(table.create, table.database, names) == copy.create


def listed(columns: Iterable[Column]) -> str:
    """Column names for a statement."""
    return ", ".join(f"`{column.name}`" for column in columns)
