"""Exported usage records back into the log, with their identities: who has seen them before drops them.

The whole file is read and checked before anything is written.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import StackError
from infra.usage_log import UsageLog
from infra.usage_rows import MEMBERS, event_of
from schemas.events import UsageAdjusted, UsageRecorded
from schemas.invoice import held_of

AT_ONCE = 2_000
LINE_CHARS_MAX = 65_536


@dataclass(frozen=True)
class Imported:
    """What was written."""

    records: int
    accounts: int


def import_records(usage: UsageLog, path: Path, tell: Callable[[int], None] = lambda _: None) -> Imported:
    """Append each record of a file of `turnlog usage export`. Raises StackError; before the first record if it can."""
    accounts = {event.account_id for event in _events(path)}
    waiting: list[UsageRecorded | UsageAdjusted] = []
    written = 0
    for event in _events(path):
        waiting.append(event)
        if len(waiting) >= AT_ONCE:
            usage.append(waiting)
            written += len(waiting)
            waiting = []
            tell(written)
    usage.append(waiting)
    return Imported(records=written + len(waiting), accounts=len(accounts))


def _events(path: Path) -> Iterator[UsageRecorded | UsageAdjusted]:
    for number, row, strict in _rows(path):
        try:
            event = event_of(row, strict=strict)
        except ValueError as wrong:
            raise StackError(f"{path}, record {number}: {wrong}. Nothing of the file was written.") from wrong
        if held_of(event) is None:
            raise StackError(
                f"{path}, record {number}: a day, a count or an amount is not one. Nothing of the file was written."
            )
        yield event


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any], bool]]:
    """(Number from 1, members, whether values have their types)."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            first = file.read(1)
            file.seek(0)
            if first == "{":
                for number, line in enumerate(file, 1):
                    yield number, _object(path, number, line), True
            elif first == MEMBERS[0][0]:
                reader = csv.DictReader(file)
                for number, row in enumerate(reader, 1):
                    yield number, {str(name): value for name, value in row.items()}, False
            elif first:
                raise StackError(
                    f"{path} is neither CSV nor JSON lines of `turnlog usage export` (Parquet is not read)."
                )
    except UnicodeDecodeError as failure:
        raise StackError(f"{path} is no text: give CSV or JSON lines of `turnlog usage export`.") from failure
    except (OSError, csv.Error) as failure:
        raise StackError(f"{path} cannot be read: {failure}") from failure


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line) if len(line) <= LINE_CHARS_MAX else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise StackError(f"{path}, record {number}: no JSON object. Nothing of the file was written.")
    return found
