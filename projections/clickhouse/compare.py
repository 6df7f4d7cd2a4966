"""Comparing two tables of one definition: counts and digests by group first, then the rows of the groups that differ.

A digest does not depend on the order of the rows: it is the sum of their hashes. Tables are read as their readers see
them: each key once (FINAL), or, of an aggregating table, each key with its states merged.

A group is looked at in parts of about `ROWS_AT_ONCE` rows at most. So memory, here and in ClickHouse, does not grow
with the number of rows that differ. What people said is told by its length and a hash, not shown.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from projections.clickhouse.beside import Column, Table
from projections.clickhouse.client import Database

_SIMPLE = re.compile(r"SimpleAggregateFunction\((\w+), ")
_STATE = re.compile(r"AggregateFunction\((?:\d+, )?(\w+)")
MERGED = re.compile(r"Aggregat")
NOWHERE = -1
ROWS_AT_ONCE = 20_000
SAID = frozenset({"content", "title", "system", "text", "event", "value", "first_title", "renamed_to"})
"""Columns that hold what people, or models, said."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared: rows of `key`, which are equal when `columns` are."""

    key: tuple[str, ...]
    columns: tuple[Column, ...]
    group: str = "0"
    """SQL of what rows are grouped by, such as a day."""
    merged: bool = False
    """An aggregating table."""
    logged: bool = True
    """Rows know their place in the log."""


class Part(msgspec.Struct, frozen=True):
    """The rows of a group whose keys' hash leaves `number` when it is divided by `of`."""

    group: str
    number: int
    of: int


class Digest(msgspec.Struct, frozen=True):
    """Of a group's rows."""

    rows: int
    total: int


class Change(msgspec.Struct, frozen=True):
    """A column that differs: what it is on either side, as text; of `SAID`, its length and hash."""

    column: str
    live: str
    right: str


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A key whose rows differ, or are on one side only. A place (partition, offset) of `NOWHERE`: no row there."""

    key: tuple[str, ...]
    live_at: tuple[int, int]
    right_at: tuple[int, int]
    live_here: bool
    right_here: bool
    live_hash: int
    changes: tuple[Change, ...] = ()


_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def shape_of(table: Table, group: str, ignored: Sequence[str] = ()) -> Shape:
    """The shape of a table's rows, but for the columns that are ignored.

    Keys are the columns that it is sorted by, also through an expression.
    """
    names = {column.name for column in table.columns}
    found = (_IDENTIFIER.findall(part) for part in table.sort_key)
    return Shape(
        key=tuple(dict.fromkeys(name for part in found for name in part if name in names)),
        columns=tuple(column for column in table.columns if column.name not in ignored),
        group=group,
        merged=table.engine.endswith("AggregatingMergeTree"),
        logged=any(column.name == "log_offset" for column in table.columns),
    )


def row_hash(columns: Sequence[Column]) -> str:
    """SQL of a row's hash."""
    return f"cityHash64({', '.join(part for column in columns for part in column.hashed)})"


def digests(database: Database, table: str, shape: Shape, where: str = "1") -> dict[str, Digest]:
    """Count and digest of each group. Raises `ClickHouseError`."""
    found = database.query(
        f"SELECT toString({shape.group}) AS g, count(), sum({row_hash(_plain(shape))}) "  # noqa: S608 - ours
        f"FROM {_source(table, shape, where)} GROUP BY g"
    )
    return {group: Digest(int(rows), int(total)) for group, rows, total in found}


def parts(live: Mapping[str, Digest], right: Mapping[str, Digest]) -> Iterator[Part]:
    """The groups that are not the same on both sides, each in as many parts as it takes."""
    for group in sorted(live.keys() | right.keys()):
        found = live.get(group), right.get(group)
        if found[0] != found[1]:
            of = max(digest.rows for digest in found if digest is not None) // ROWS_AT_ONCE + 1
            yield from (Part(group, number, of) for number in range(of))


def pairs(database: Database, live: str, right: str, shape: Shape, part: Part) -> list[Pair]:
    """The keys of a part of a group whose rows differ; its whole content is looked at. Raises `ClickHouseError`."""
    keys = ", ".join(f"`{name}`" for name in shape.key)
    within = f"{shape.group} = %(group)s AND modulo(cityHash64({keys}), {part.of}) = {part.number}"
    columns = _plain(shape)
    hashed = row_hash(columns)
    place = (
        "toInt64(log_partition) AS at_partition, toInt64(log_offset) AS at_offset"
        if shape.logged
        else ("toInt64(0) AS at_partition, toInt64(0) AS at_offset")
    )
    names = ", ".join(f"`{column.name}`" for column in columns)
    side = f"SELECT {names}, {hashed} AS row_hash, {place}, 1 AS here FROM {{source}}"  # noqa: S608 - names are ours
    on = " AND ".join(f"l.`{name}` = r.`{name}`" for name in shape.key)
    key = ", ".join(f"if(l.here = 1, toString(l.`{name}`), toString(r.`{name}`))" for name in shape.key)
    changed = ", ".join(
        f"('{column.name}', {_told('l', column)}, {_told('r', column)})"
        for column in columns
        if column.name not in shape.key
    )
    found = database.query(
        f"SELECT [{key}], l.at_partition, l.at_offset, r.at_partition, r.at_offset, l.here, r.here, l.row_hash, "  # noqa: S608
        f"if(l.here + r.here < 2, [], arrayFilter(c -> c.2 != c.3, [{changed}])) "
        f"FROM ({side.format(source=_source(live, shape, within))}) AS l "
        f"FULL OUTER JOIN ({side.format(source=_source(right, shape, within))}) AS r ON {on} "
        "WHERE l.here != r.here OR l.row_hash != r.row_hash ORDER BY 1 SETTINGS join_use_nulls = 0",
        {"group": part.group},
    )
    return [_pair(row) for row in found]


def _told(side: str, column: Column) -> str:
    value = f"{side}.`{column.name}`"
    if column.name == "event":
        return f"concat(JSONExtractString({value}, 'type'), ' ', hex(cityHash64({value})))"
    if column.name in SAID:
        return f"concat(toString(lengthUTF8(toString({value}))), ' characters, ', hex(cityHash64({value})))"
    return f"ifNull(toString({value}), 'NULL')"


def _pair(row: tuple[Any, ...]) -> Pair:
    key, lp, lo, rp, ro, live_here, right_here, live_hash, changes = row
    return Pair(
        key=tuple(key),
        live_at=(lp, lo) if live_here else (NOWHERE, NOWHERE),
        right_at=(rp, ro) if right_here else (NOWHERE, NOWHERE),
        live_here=bool(live_here),
        right_here=bool(right_here),
        live_hash=int(live_hash),
        changes=tuple(Change(*change) for change in changes),
    )


def _source(table: str, shape: Shape, where: str) -> str:
    if not shape.merged:
        return f"(SELECT * FROM {table} FINAL WHERE {where})"  # noqa: S608 - names are ours
    columns = ", ".join(_merging(column, shape.key) for column in shape.columns)
    key = ", ".join(f"`{name}`" for name in shape.key)
    return f"(SELECT {columns} FROM {table} GROUP BY {key} HAVING {where})"  # noqa: S608 - names are ours


def _merging(column: Column, key: Sequence[str]) -> str:
    if column.name in key:
        return f"`{column.name}`"
    if found := _SIMPLE.match(column.type):
        return f"{found[1]}(`{column.name}`) AS `{column.name}`"
    if found := _STATE.match(column.type):
        return f"{found[1]}Merge(`{column.name}`) AS `{column.name}`"
    return f"any(`{column.name}`) AS `{column.name}`"


def _plain(shape: Shape) -> tuple[Column, ...]:
    """The columns as `_source` gives them: of states, their values."""
    if not shape.merged:
        return shape.columns
    return tuple(
        Column(column.name, "Array" if column.type.startswith("Aggregate") else column.type) for column in shape.columns
    )
