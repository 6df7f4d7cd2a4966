"""`turnlog report`: usage and latency out of the views, in the terminal or as a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli_options import DAYS_MAX, AsJson, Data
from infra.errors import StackError

if TYPE_CHECKING:
    from infra.analytics import Name, Report, Rows, Section, Wanted

DAYS = 30

reports = typer.Typer(no_args_is_help=True, help="What was used, and how long it took.")

From = Annotated[
    str | None, typer.Option("--from", help="First day, YYYY-MM-DD (UTC).  [default: 29 days before the last]")
]
To = Annotated[str | None, typer.Option("--to", help="Last day, YYYY-MM-DD (UTC).  [default: today]")]
Account = Annotated[str | None, typer.Option(help="Of one account only.")]
ModelName = Annotated[str | None, typer.Option("--model", help="Of one model only.")]
Html = Annotated[Path | None, typer.Option(help="Write one page with plots to this file.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(reports, name="report")


@reports.command()
def usage(
    first: From = None,
    last: To = None,
    account: Account = None,
    model: ModelName = None,
    html: Html = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Replies, tokens and cost by day, model and account; how replies ended; what was not charged."""
    _report("usage", wanted(first, last, account, model, _today()), html, data, as_json=as_json)


@reports.command()
def latency(
    first: From = None,
    last: To = None,
    account: Account = None,
    model: ModelName = None,
    html: Html = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Waiting, time to the first token and between tokens, by time, model, pool and tier; failures and stops."""
    _report("latency", wanted(first, last, account, model, _today()), html, data, as_json=as_json)


def wanted(first: str | None, last: str | None, account: str | None, model: str | None, today: date) -> Wanted:
    """The days that were asked for. Raises BadParameter."""
    from infra.analytics import Wanted

    to = _day("--to", last) if last else today
    begin = _day("--from", first) if first else to - timedelta(days=min(DAYS - 1, to.toordinal() - 1))
    if begin > to:
        raise typer.BadParameter(f"the first day, {begin}, is after the last, {to}")
    if (to - begin).days >= DAYS_MAX:
        raise typer.BadParameter(f"{begin} to {to} is more than {DAYS_MAX} days")
    return Wanted(first=begin, last=to, account=account or None, model=model or None)


def _day(option: str, given: str) -> date:
    try:
        found = date.fromisoformat(given)
    except ValueError:
        found = None
    if found is None or found.isoformat() != given or not date(1970, 1, 1) <= found <= date(2148, 12, 31):
        raise typer.BadParameter(f"{option} is {given!r}: a day is written YYYY-MM-DD, from 1970 to 2148")
    return found


def _today() -> date:
    return datetime.now(UTC).date()


def _report(name: Name, asked: Wanted, html: Path | None, data: Path | None, *, as_json: bool) -> None:
    from infra.analytics import as_object, report

    made = report(name, asked, _asking(data), datetime.now(UTC))
    if html is not None:
        from infra.analytics_page import page

        try:
            html.write_text(page(made), encoding="utf-8")
        except OSError as failure:
            raise StackError(f"{html} cannot be written: {failure.strerror}.") from failure
    if as_json:
        typer.echo(json.dumps(as_object(made)))
    elif html is not None:
        typer.echo(f"Written: {html}")
    else:
        _show(made)


def _asking(data: Path | None) -> Any:
    """Asks the ClickHouse that the environment names, else that of the stack on the data folder."""
    from infra.money_servers import clickhouse_of
    from projections.clickhouse.client import ClickHouseError, Database
    from streams.log.process import database_of

    url, namespace = clickhouse_of(data)
    database = Database(url if "://" in url else f"http://{url}", database_of(namespace), timeout_s=120.0)

    def ask(question: str, parameters: Mapping[str, Any]) -> Rows:
        try:
            return database.query(question, parameters)
        except ClickHouseError as failure:
            sentence = str(failure).strip().splitlines()[0][:300]
            raise StackError(
                f"ClickHouse did not answer: {sentence} (is it up, and did `turnlog provision` make the views?)"
            ) from failure

    return ask


def _show(made: Report) -> None:
    from infra.analytics_page import about, figures

    typer.echo(f"{made.title}: {about(made.wanted)}")
    if made.empty:
        typer.echo("\nNothing ended in these days.")
        return
    if totals := figures(made):
        typer.echo("  ".join(f"{value} {name}" for name, value in totals))
    for section in made.sections:
        if section.rows:
            unit = ", times in ms" if any(column.unit == "ms" for column in section.columns) else ""
            typer.echo(f"\n{section.title}{unit}\n{table(section)}")


def table(section: Section) -> str:
    """A section's table for a terminal: words to the left, numbers to the right."""
    from infra.analytics import text

    columns = section.columns
    heads = [column.name for column in columns]
    rows = [[text(value, column.unit) for column, value in zip(columns, row, strict=True)] for row in section.rows]
    widths = [max(len(row[place]) for row in [heads, *rows]) for place in range(len(columns))]
    left = [column.unit in ("text", "day", "hour") for column in columns]
    lines = [
        "  "
        + "  ".join(
            cell.ljust(width) if to_left else cell.rjust(width)
            for cell, width, to_left in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in [heads, *rows]
    ]
    return "\n".join([*lines, *(["  … and more"] if section.more else [])])
