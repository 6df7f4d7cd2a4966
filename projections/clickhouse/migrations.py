"""Numbered migrations of the tables: `projections/migrations/NNNN_name.sql`, applied in order, each once, recorded.

A file that was applied is never edited (its digest is recorded and compared); a change is a new file. Statements are
idempotent, so a migration that stopped half-way, or two that run at once, end the same.
"""

import hashlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from projections.clickhouse.client import ClickHouseError, Database

FOLDER = Path(__file__).parent.parent / "migrations"
_DATABASE = re.compile(r"[A-Za-z0-9_]+")
_NAME = re.compile(r"(\d{4})_\w+\.sql")

RECORDS = """
CREATE TABLE IF NOT EXISTS schema_migrations
(number UInt32, name String, digest String, applied_at DateTime64(3, 'UTC'))
ENGINE = ReplacingMergeTree ORDER BY number
COMMENT 'Migrations that were applied'
"""


class MigrationChanged(ClickHouseError):
    """A migration that was applied has another text now."""


class Migration(msgspec.Struct, frozen=True):
    """A file of statements."""

    number: int
    name: str
    text: str

    @property
    def digest(self) -> str:
        """SHA-256 of its text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def statements(self) -> Iterator[str]:
        """Its statements: they end with a semicolon at the end of a line."""
        lines = [line for line in self.text.splitlines() if not line.startswith("--")]
        for statement in re.split(r";\s*(?:\n|$)", "\n".join(lines)):
            if statement.strip():
                yield statement.strip()


class Applied(msgspec.Struct, frozen=True, array_like=True):
    """A row of `schema_migrations`."""

    number: int
    name: str
    digest: str
    applied_at: str


def migrations(folder: Path = FOLDER) -> tuple[Migration, ...]:
    """All migrations, in order. Numbers are dense from 1."""
    found: list[Migration] = []
    for file in sorted(folder.glob("*.sql")):
        match = _NAME.fullmatch(file.name)
        if match is None or int(match[1]) != len(found) + 1:
            raise ValueError(f"{file.name}: expected {len(found) + 1:04}_<name>.sql")
        found.append(Migration(int(match[1]), file.stem, file.read_text(encoding="utf-8")))
    return tuple(found)


def apply(url: str, database: str) -> tuple[str, ...]:
    """Bring a database up to date, creating it where it is not there; the names of what was applied.

    Raises:
        ClickHouseError: the server cannot be reached, or refuses.
        MigrationChanged: see there.
    """
    if not _DATABASE.fullmatch(database):
        raise ClickHouseError(f"not a name for a database: {database!r}")
    server = Database(url, "system", timeout_s=60.0)
    target = Database(url, database, timeout_s=60.0)
    try:
        server.command(f"CREATE DATABASE IF NOT EXISTS `{database}` ENGINE = Atomic")
        target.command(RECORDS)
        recorded = dict(target.query("SELECT number, digest FROM schema_migrations FINAL"))
        applied = []
        for migration in migrations():
            before = recorded.get(migration.number)
            if before is None:
                _apply(target, migration)
                applied.append(migration.name)
            elif before != migration.digest:
                raise MigrationChanged(f"{migration.name} was applied to {database} with another text")
        return tuple(applied)
    finally:
        server.close()
        target.close()


def _apply(target: Database, migration: Migration) -> None:
    for statement in migration.statements():
        target.command(statement)
    now = f"{time.time():.3f}"
    target.insert("schema_migrations", [Applied(migration.number, migration.name, migration.digest, now)])
