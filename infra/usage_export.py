"""Usage records into a file: each once, in the order of their keys, the same bytes whenever they are the same records.

1. Everything is written beside the file, under its name with `.part`, and moved there when it is whole and durable. So
   the file is never half; what was there before is replaced in one step.
2. CSV and JSON lines are read page by page. After each page `.part.json` says how far the part is good, what is in it
   (the sum of its rows' hashes), and where to go on: a run that was killed is taken up there by the next one with the
   same selection, if the records up to there are still those. Otherwise it is begun anew.
3. Parquet is one stream, begun anew after a kill; it counts as whole when its end is there.
4. One page is in memory at a time, whatever the size of the export.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from infra.errors import StackError
from infra.usage_rows import ADJUSTED, MEMBERS, RECORDED
from projections.clickhouse.client import ClickHouseError, Database

Format = Literal["csv", "jsonl", "parquet"]
PAGE_ROWS = 50_000
PARQUET_MAGIC = b"PAR1"

_KEY = "account_id, usage_day, message_id, record_kind"
_OWN = "usage_day >= toDate({from:String}) AND usage_day <= toDate({to:String})"
_AFTER = (
    f"""({_KEY}) > ({{a:String}}, toDate({{d:String}}), {{m:String}}, {{k:String}}) AND account_id >= {{a:String}}"""
)
_UP_TO = (
    f"""({_KEY}) <= ({{a:String}}, toDate({{d:String}}), {{m:String}}, {{k:String}}) AND account_id <= {{a:String}}"""
)
_RENAMED = {
    "usage_day": "toString(usage_day)",
    "reply_id": "message_id",
    "record": f"if(status = '', '{ADJUSTED}', '{RECORDED}')",
    "counted": "toBool(counted)",
    "charged": "toBool(charged)",
    "cost": "toString(cost)",
    "ended_at_ms": "toInt64(toUnixTimestamp64Milli(ended_at))",
}
_HASH = f"""toString(cityHash64({", ".join(f"ifNull(toString({name}), 'NULL')" for name in MEMBERS)})) AS row_hash"""
_TYPED = _RENAMED | {"usage_day": "usage_day", "cost": "cost"}
_JSON = {"output_format_json_quote_64bit_integers": "0", "output_format_json_escape_forward_slashes": "0"}
_PARQUET = {
    "max_threads": "1",
    "output_format_parquet_row_group_size": str(PAGE_ROWS),
    "output_format_parquet_parallel_encoding": "0",
    "output_format_parallel_formatting": "0",
}


@dataclass(frozen=True)
class Selection:
    """Which records: days from `first` to `last`, both included, UTC; of one account, or all."""

    first: str
    last: str
    account_id: str | None
    format: Format


@dataclass(frozen=True)
class Exported:
    """What the file has now."""

    rows: int
    bytes: int
    taken_up: bool
    """A run that was killed had begun it."""
    begun_anew: bool = False
    """One had, and records of its part have come or changed since."""


@dataclass(frozen=True)
class _Mark:
    """How far a part is good."""

    selection: dict[str, Any]
    rows: int
    bytes: int
    after: list[str]
    hashes: int = 0
    """Sum of its rows' hashes, modulo 2^64."""


def export(
    database: Database,
    selection: Selection,
    out: Path,
    tell: Callable[[int], None] = lambda _: None,
    page_rows: int = PAGE_ROWS,
) -> Exported:
    """Write the file. Raises StackError."""
    _check(selection, out)
    part = out.with_name(f"{out.name}.part")
    mark_path = out.with_name(f"{out.name}.part.json")
    try:
        with _alone(part) as file:
            if selection.format == "parquet":
                done = _stream(database, selection, file)
            else:
                done = _pages(database, selection, file, mark_path, tell, page_rows)
            file.flush()
            os.fsync(file.fileno())
            part.replace(out)
            mark_path.unlink(missing_ok=True)
            mark_path.with_name(f"{mark_path.name}.new").unlink(missing_ok=True)
            _sync_folder(out.parent)
    except ClickHouseError as failure:
        raise StackError(f"ClickHouse did not give the records: {failure}. Run the same again to go on.") from failure
    except OSError as failure:
        raise StackError(f"{out} cannot be written: {failure.strerror or failure}") from failure
    return done


def _check(selection: Selection, out: Path) -> None:
    days = []
    for name, text in (("--from", selection.first), ("--to", selection.last)):
        try:
            days.append(date.fromisoformat(text))
        except ValueError as error:
            raise StackError(f"{name} is {text!r}: write a day as YYYY-MM-DD.") from error
    if days[0] > days[1]:
        raise StackError(f"--from {selection.first} is after --to {selection.last}.")
    if out.is_dir() or not out.parent.is_dir():
        raise StackError(f"{out} is no place for a file: name one in a folder that exists.")


@contextmanager
def _alone(part: Path) -> Iterator[IO[bytes]]:
    """The part, opened for this process alone."""
    with part.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StackError(f"Another export writes {part}.") from error
        yield file


def _stream(database: Database, selection: Selection, file: IO[bytes]) -> Exported:
    file.truncate(0)
    end = b""
    size = 0
    count = f"SELECT toInt64(count()) FROM usage_records FINAL WHERE {_where(selection)}"  # noqa: S608 - constants
    rows = database.query(count, _names(selection))
    statement = _statement(selection, _TYPED, "", "")
    for chunk in database.stream(statement, _names(selection), "Parquet", _PARQUET):
        file.write(chunk)
        size += len(chunk)
        end = (end + chunk)[-4:]
    if end != PARQUET_MAGIC:
        raise StackError("ClickHouse broke off in the middle of the records. Run the same again.")
    return Exported(rows=int(rows[0][0]), bytes=size, taken_up=False)


def _pages(
    database: Database,
    selection: Selection,
    file: IO[bytes],
    mark_path: Path,
    tell: Callable[[int], None],
    page_rows: int,
) -> Exported:
    begun = _begun(mark_path, selection, file)
    taken_up = begun is not None and _still_there(database, selection, begun)
    mark = begun if begun is not None and taken_up else _Mark(asdict(selection), 0, 0, [])
    file.truncate(mark.bytes)
    if not taken_up and selection.format == "csv":
        file.write(_csv([MEMBERS]))
    while True:
        limit = f"LIMIT {page_rows}"
        statement = _statement(selection, _RENAMED, f" AND {_AFTER}" if mark.after else "", limit, f", {_HASH}")
        lines = database.raw(statement, {**_names(selection), **_place(mark)}, "JSONCompactEachRow", _JSON)
        found = msgspec.json.decode(b"[" + b",".join(lines.splitlines()) + b"]", type=list[list[Any]])
        hashes = sum(int(row.pop()) for row in found)
        if found:
            file.write(_csv(found) if selection.format == "csv" else _jsonl(found))
            file.flush()
            os.fsync(file.fileno())
            last = [str(value) for value in found[-1][:4]]
            size = file.seek(0, os.SEEK_END)
            mark = _Mark(mark.selection, mark.rows + len(found), size, last, (mark.hashes + hashes) % 2**64)
            _note(mark_path, mark)
            tell(mark.rows)
        if len(found) < page_rows:
            size = file.seek(0, os.SEEK_END)
            anew = begun is not None and not taken_up
            return Exported(rows=mark.rows, bytes=size, taken_up=taken_up, begun_anew=anew)


def _still_there(database: Database, selection: Selection, mark: _Mark) -> bool:
    """Whether the records up to where the mark stands are those that are in the part."""
    records = _statement(selection, _RENAMED, f" AND {_UP_TO}", "", f", {_HASH}")
    statement = f"SELECT toInt64(count()), sum(toUInt64(row_hash)) FROM ({records})"  # noqa: S608 - as above
    found = database.query(statement, {**_names(selection), **_place(mark)})
    return (int(found[0][0]), int(found[0][1])) == (mark.rows, mark.hashes)


def _place(mark: _Mark) -> dict[str, str]:
    return dict(zip("admk", mark.after, strict=False))


def _begun(mark_path: Path, selection: Selection, file: IO[bytes]) -> _Mark | None:
    """What an earlier run has left, where it is of this selection and whole."""
    try:
        mark = msgspec.json.decode(mark_path.read_bytes(), type=_Mark)
    except (OSError, msgspec.DecodeError):
        return None
    size = file.seek(0, os.SEEK_END)
    return mark if mark.selection == asdict(selection) and size >= mark.bytes >= 0 and len(mark.after) == 4 else None


def _note(path: Path, mark: _Mark) -> None:
    new = path.with_name(f"{path.name}.new")
    with new.open("w") as file:
        json.dump(asdict(mark), file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _statement(selection: Selection, shown: dict[str, str], condition: str, limit: str, more: str = "") -> str:
    columns = ", ".join(f"{shown[name]} AS {name}" if name in shown else name for name in MEMBERS)
    return (
        f"SELECT {columns}{more} FROM (SELECT * FROM usage_records FINAL "  # noqa: S608 - constants of this module
        f"WHERE {_where(selection)}{condition} ORDER BY {_KEY} {limit})"
    )


def _where(selection: Selection) -> str:
    return f"{_OWN} AND account_id = {{account:String}}" if selection.account_id is not None else _OWN


def _names(selection: Selection) -> dict[str, str]:
    own = {} if selection.account_id is None else {"account": selection.account_id}
    return {"from": selection.first, "to": selection.last, **own}


def _csv(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow([{True: "true", False: "false"}[cell] if isinstance(cell, bool) else cell for cell in row])
    return text.getvalue().encode()


def _jsonl(rows: Sequence[Sequence[Any]]) -> bytes:
    return b"".join(msgspec.json.encode(dict(zip(MEMBERS, row, strict=True))) + b"\n" for row in rows)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
