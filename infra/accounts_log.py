"""Where an operator's commands find the accounts: the topic, on the broker that is named or that runs here."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from infra.cli_options import settings_from
from infra.errors import StackError
from infra.known_accounts import read_accounts
from infra.settings import StackSettings
from schemas.account import Accounts
from schemas.events import Event
from schemas.ids import is_account_id

AccountId = Annotated[str, typer.Argument(help="The account's id.")]


@dataclass(frozen=True)
class AccountsLog:
    """The topic `accounts` of a deployment."""

    bootstrap: str
    namespace: str

    def known(self) -> Accounts:
        """The accounts now. Raises StackError."""
        return read_accounts(self.bootstrap, self.namespace)

    def append(self, events: Sequence[Event]) -> None:
        """Add to them; durable when it returns. Raises StackError."""
        from infra.log_append import append

        append(self.bootstrap, self.namespace, events)


def accounts_log(data: Path | None) -> AccountsLog:
    """On the broker named by the environment, else on the one of the stack that runs on the data folder."""
    from infra.data_folder import DataFolder
    from infra.stack import read_snapshot

    settings = settings_from(StackSettings, {"data": data})
    bootstrap = settings.kafka_bootstrap
    if bootstrap is None:
        folder = DataFolder(settings.data.absolute())
        snapshot = read_snapshot(folder.snapshot)
        parts = snapshot["parts"] if snapshot else []
        bootstrap = next((part["address"] for part in parts if part["name"] == "kafka"), None)
        if bootstrap is None:
            raise StackError(
                f"No stack runs on {folder.path}: start `turnlog up`, name another folder with --data, or set "
                "TURNLOG_KAFKA_BOOTSTRAP."
            )
    return AccountsLog(bootstrap, settings.namespace)


def account_id_of(name: str) -> str:
    """The name, which can be an account's id. Leaves with 2."""
    if not is_account_id(name):
        raise typer.BadParameter(f"{name!r} is no account name: lower-case letters, digits, - and _, at most 64.")
    return name


_YEAR_10000_MS = 253_402_300_800_000
_SPAN = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
_SPAN_S = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def expiry_of(text: str, now_ms: int) -> int:
    """When something expires, ms: a date, a time (RFC 3339) or a span from now (90d, 12h). Leaves with 2."""
    span = _SPAN.fullmatch(text)
    at_ms = _moment_of(text) if span is None else now_ms + int(span[1]) * _SPAN_S[span[2]] * 1000
    if at_ms is None:
        raise typer.BadParameter(
            f"{text!r} is no expiry: give a day (2027-06-30, its beginning in UTC), a time with its zone "
            "(2027-06-30T12:00:00Z), or a span from now (90d, 12h, 30m, 4w)."
        )
    if not now_ms < at_ms < _YEAR_10000_MS:
        raise typer.BadParameter(f"{text!r} does not lie ahead, before the year 10000.")
    return at_ms


def _moment_of(text: str) -> int | None:
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        if len(text) > len("2027-06-30"):
            return None
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def time_of(at_ms: int | None) -> str | None:
    """RFC 3339, UTC."""
    from datetime import UTC, datetime

    if at_ms is None:
        return None
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def now_ms() -> int:
    """Wall clock, ms since the epoch."""
    return int(time.time() * 1000)


def show(made: Mapping[str, Any], *, as_json: bool) -> None:
    """One thing: a line a member, without those that are not set."""
    if as_json:
        typer.echo(json.dumps(made))
        return
    width = max(map(len, made))
    for name, value in made.items():
        if value is not None:
            typer.echo(f"{name:<{width}}  {_plain(value)}")


def show_all(what: str, rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """A table, or `{what: […]}`."""
    if as_json:
        typer.echo(json.dumps({what: list(rows)}))
    elif not rows:
        typer.echo(f"No {what}.")
    else:
        lines = [list(rows[0]), *([_plain(value) for value in row.values()] for row in rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        for line in lines:
            typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _plain(value: Any) -> str:
    if value is None:
        return "-"
    return (", ".join(value) or "none") if isinstance(value, list | tuple) else str(value)
