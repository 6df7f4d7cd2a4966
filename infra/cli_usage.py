"""`turnlog usage`: export, import and correct usage records."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from infra.cli_options import AsJson, Data
from infra.money_servers import clickhouse_of, kafka_of
from streams.log.process import database_of

usage = typer.Typer(no_args_is_help=True, help="Usage records: export, import, correct.")

AccountId = Annotated[str, typer.Argument(help="The account's id.")]
ReplyId = Annotated[str, typer.Argument(help="The reply's id (rep_…).")]
First = Annotated[str, typer.Option("--from", help="First day (UTC), YYYY-MM-DD.")]
Last = Annotated[str, typer.Option("--to", help="Last day (UTC), included.")]
OneAccount = Annotated[str | None, typer.Option("--account", help="Of this account alone.")]
Out = Annotated[Path, typer.Option(help="The file; replaced when it is there.")]
Form = Annotated[Literal["csv", "parquet", "jsonl"], typer.Option("--format", help="Of the file.")]
File = Annotated[Path, typer.Argument(help="A CSV or JSON lines file of `turnlog usage export`.")]
Amount = Annotated[str, typer.Option(help="What the charge changes by, in the reply's currency: -0.05 is a refund.")]
Reason = Annotated[str, typer.Option(help="Stands on the bill.")]
Id = Annotated[str | None, typer.Option("--id", help="The same id again is the same correction. [default: a new one]")]
EXPORT_TIMEOUT_S = 600.0


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(usage, name="usage")


@usage.command("export")
def export(
    first: First,
    last: Last,
    out: Out,
    form: Form = "csv",
    account: OneAccount = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Write the records of some days into a file, each once. Killed, the same command goes on or begins anew."""
    from infra.usage_export import Selection
    from infra.usage_export import export as write
    from projections.clickhouse.client import Database

    url, namespace = clickhouse_of(data)
    database = Database(url, database_of(namespace), timeout_s=EXPORT_TIMEOUT_S)
    done = write(database, Selection(first, last, account, form), out, _progress(as_json=as_json))
    database.close()
    if as_json:
        more = {"taken_up": done.taken_up, "begun_anew": done.begun_anew}
        typer.echo(json.dumps({"file": str(out), "rows": done.rows, "bytes": done.bytes, **more}))
    else:
        if done.begun_anew:
            typer.echo("Records have come or changed since the export that was stopped: it was begun anew.", err=True)
        typer.echo(f"{done.rows} records, {done.bytes} bytes: {out}")


@usage.command("import")
def import_(file: File, data: Data = None, as_json: AsJson = False) -> None:
    """Write exported records into the log, as they were. Those that it has had change nothing."""
    from infra.usage_import import import_records
    from infra.usage_log import UsageLog

    bootstrap, namespace = kafka_of(data)
    with UsageLog(bootstrap, namespace) as log:
        done = import_records(log, file, _progress(as_json=as_json))
    if as_json:
        typer.echo(json.dumps({"records": done.records, "accounts": done.accounts}))
    else:
        typer.echo(f"{done.records} records of {done.accounts} accounts.")


@usage.command("adjust")
def adjust(
    account: AccountId,
    reply: ReplyId,
    amount: Amount,
    reason: Reason,
    adjustment_id: Id = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Correct what a reply was charged with, by a record of its own."""
    import uuid

    from infra.adjustments import adjust as write
    from infra.usage_log import UsageLog

    chosen = adjustment_id if adjustment_id is not None else uuid.uuid4().hex
    bootstrap, namespace = kafka_of(data)
    with UsageLog(bootstrap, namespace) as log:
        done = write(log, account, reply, chosen, amount, reason, time.time_ns() // 1_000_000)
    event = done.event
    made = {
        "account_id": event.account_id,
        "reply_id": event.reply_id,
        "id": chosen,
        "usage_day": event.usage_day,
        "amount": event.cost,
        "currency": event.currency,
        "reason": event.reason,
        "new": done.new,
    }
    if as_json:
        typer.echo(json.dumps(made))
    else:
        typer.echo("\n".join(f"{name:<12}{value}" for name, value in made.items()))


def _progress(*, as_json: bool) -> Callable[[int], None]:
    if as_json or not sys.stderr.isatty():
        return lambda _: None
    return lambda records: typer.echo(f"{records} records", err=True)
