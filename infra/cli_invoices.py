"""`turnlog invoices`: bills by month, from the log."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from infra.cli_options import AsJson, Data
from infra.errors import StackError
from infra.known_accounts import read_accounts, the_account
from infra.money_servers import kafka_of
from schemas.invoice import Bill
from schemas.models import plain

if TYPE_CHECKING:
    from infra.invoices import Shown

invoices = typer.Typer(no_args_is_help=True, help="Bills by month: close, show, what came too late.")

Period = Annotated[str, typer.Argument(help="A month (UTC), YYYY-MM.")]
AccountId = Annotated[str, typer.Argument(help="The account's id.")]
OneAccount = Annotated[str | None, typer.Option("--account", help="This account alone.")]
TELL_EVERY = 200_000


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(invoices, name="invoices")


@invoices.command("close")
def close(period: Period, account: OneAccount = None, data: Data = None, as_json: AsJson = False) -> None:
    """Close a month for ever: what comes for it later is on the next bill. Repeated, nothing new is said."""
    from infra.invoices import close as close_all
    from infra.usage_log import UsageLog

    bootstrap, namespace = kafka_of(data)
    with UsageLog(bootstrap, namespace) as usage:
        done = close_all(usage, period, _now_ms(), account, _progress(as_json=as_json))
    if done.unreadable:
        typer.echo(f"Warning: {done.unreadable} records cannot be read and are on no bill.", err=True)
    if as_json:
        bills = [{"account_id": one.account_id, **_object(one.bill)} for one in done.bills]
        typer.echo(json.dumps({"period": period, "closed": bills, "accounts": done.accounts, "records": done.records}))
        return
    for one in done.bills:
        typer.echo(f"{one.account_id:<32}{one.bill.period:<10}{_totals(one.bill.totals)}")
    if not done.bills:
        typer.echo(f"Nothing to close in {period}: it has no usage, or its bills are closed.")
        return
    typer.echo(f"{len(done.bills)} bills closed, {done.accounts} accounts with usage. {_totals(done.totals)}")


@invoices.command("show")
def show(account: AccountId, period: Period, data: Data = None, as_json: AsJson = False) -> None:
    """An account's bill of a month, line by line; one that is not closed as it would be now."""
    from infra.invoices import show as find
    from infra.usage_log import UsageLog

    bootstrap, namespace = kafka_of(data)
    with UsageLog(bootstrap, namespace) as usage:
        found = find(usage, account, period, _now_ms())
    bill = found.bill
    if bill is None or not found.whole:
        bill = _from_views(data, account, period, found)
    if bill is None:
        the_account(read_accounts(bootstrap, namespace), account)
        raise StackError(f'The account "{account}" has used nothing in {period}, and no late record is on its bill.')
    if as_json:
        typer.echo(json.dumps({"account_id": account, **_object(bill)}))
        return
    typer.echo(f"{account}, {bill.period}, {bill.status}")
    for line in bill.lines:
        what = " ".join(part for part in (line.usage_period, line.model, line.tier, line.price_version) if part)
        typer.echo(f"  {line.description:<24}{what:<56}{line.records:>9}{line.amount:>22} {line.currency}")
    typer.echo(f"  {'total':<24}{_totals(bill.totals)}")


def _from_views(data: Path | None, account: str, period: str, found: Shown) -> Bill | None:
    """The bill of a month of which the log may not have all. Raises StackError where nobody can tell."""
    from infra.bills_in_views import bill_in_views
    from infra.invoices import running_period

    back = f"reaches back to {found.reaches_to} UTC only" if found.reaches_to else "has nothing left of the account"
    try:
        bill = bill_in_views(data, account, period, running_period(_now_ms()))
    except StackError as failure:
        if found.whole:
            return found.bill
        if found.bill is not None and found.reaches_to[:7] < period:
            typer.echo(f"From the log, which {back}; ClickHouse was not read: {failure}", err=True)
            return found.bill
        raise StackError(
            f"The log {back}; the bill of {period} is in ClickHouse (the view invoice_lines, "
            f"GET /v1/invoices/{period}), which was not read: {failure}"
        ) from failure
    if bill is not None:
        typer.echo(f"From ClickHouse: the log {'does not have it' if found.whole else back}.", err=True)
    elif not found.whole:
        raise StackError(
            f'The account "{account}" has no bill of {period} in ClickHouse, and the log {back}: what was used before '
            "that, and is in neither of them, is not known."
        )
    return bill


@invoices.command("late")
def late(account: OneAccount = None, data: Data = None, as_json: AsJson = False) -> None:
    """The records that came, or changed, behind the close of their month, and the bill that they are on."""
    from infra.invoices import late as find
    from infra.usage_log import UsageLog

    bootstrap, namespace = kafka_of(data)
    with UsageLog(bootstrap, namespace) as usage:
        found = find(usage, account)
    if as_json:
        rows = [{"account_id": one, **msgspec.to_builtins(record)} for one, record in found]
        typer.echo(json.dumps({"late": [{**row, "amount": plain(Decimal(row["amount"]))} for row in rows]}))
        return
    for one, record in found:
        typer.echo(
            f"{one:<24}{record.usage_day}  {record.reply_id} {record.record_kind} r{record.revision}  "
            f"{plain(record.amount)} {record.currency}  on {record.bill or 'the next bill'}"
        )
    typer.echo(f"{len(found)} late records.")


def _object(bill: Bill) -> dict[str, Any]:
    """As `GET /v1/invoices/{period}` has it."""
    from api.bills import view

    return view(bill).model_dump()


def _totals(totals: Mapping[str, Decimal]) -> str:
    return ", ".join(f"{plain(amount)} {currency}" for currency, amount in totals.items()) or "nothing"


def _progress(*, as_json: bool) -> Callable[[int], None]:
    told = 0

    def tell(records: int) -> None:
        nonlocal told
        if records // TELL_EVERY > told:
            told = records // TELL_EVERY
            typer.echo(f"{records} records read", err=True)

    return (lambda _: None) if as_json or not sys.stderr.isatty() else tell


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
