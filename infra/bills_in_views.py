"""An account's bills as ClickHouse has them, which the log does not any more: what `GET /v1/invoices` shows."""

from __future__ import annotations

from pathlib import Path

from api.bill_queries import LINES, SUMS
from api.bill_rows import closed_bills, sums
from infra.errors import StackError
from infra.money_servers import clickhouse_of
from projections.clickhouse.client import ClickHouseError, Database
from schemas.invoice import Bill, all_bills
from streams.log.process import database_of


def bill_in_views(data: Path | None, account_id: str, period: str, running: str) -> Bill | None:
    """The bill of a month; `running` is the month that is not over. Raises StackError."""
    url, namespace = clickhouse_of(data)
    database = Database(url, database_of(namespace))
    own = {"account": account_id}
    try:
        closed = closed_bills(database.query(LINES, own))
        records = sums(database.query(SUMS, own))
    except ClickHouseError as failure:
        raise StackError(f"ClickHouse cannot be read: {failure}.") from failure
    finally:
        database.close()
    bills = all_bills(closed, records, running)
    return next((bill for bill in bills if bill.period == period), None)
