"""The caller's own bills."""

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from api.bills import bills_of, item, view
from api.context import Service, TheCaller, TheService, answer
from api.limits_spend import month_of
from api.openapi import problems
from api.problems import not_found, unavailable
from api.shapes import InvoicesView, InvoiceView
from api.stores import StoreDown
from schemas.invoice import PERIOD, Bill

router = APIRouter(prefix="/v1/invoices", tags=["account"])

Period = Annotated[str, Path(pattern=f"^{PERIOD.pattern}$", description="A month (UTC), YYYY-MM.")]


@router.get("", summary="Bills", response_model=InvoicesView, responses=problems(400, 401, 503))
async def invoices(the: TheService, caller: TheCaller) -> Response:
    """The caller's bills by month, the newest first: closed ones, and open ones as they would be now."""
    bills = await _bills(the, caller.account_id)
    return answer(InvoicesView(data=[item(bill) for bill in reversed(bills)]))


@router.get("/{period}", summary="Bill of a month", response_model=InvoiceView, responses=problems(400, 401, 404, 503))
async def invoice(period: Period, the: TheService, caller: TheCaller) -> Response:
    """Line by line; the sum of the lines is the total. What came too late for its month is on the next bill."""
    bills = await _bills(the, caller.account_id)
    found = next((bill for bill in bills if bill.period == period), None)
    if found is None:
        raise not_found("bill")
    return answer(view(found))


async def _bills(the: Service, account_id: str) -> tuple[Bill, ...]:
    try:
        return await bills_of(the.views, account_id, month_of(the.now_ms()))
    except StoreDown as down:
        raise unavailable("clickhouse", "Bills are read from ClickHouse, which does not answer.") from down
