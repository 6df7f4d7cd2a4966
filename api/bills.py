"""An account's bills, from the views: those that are closed, and the others as they would be now."""

from msgspec.structs import asdict

from api.shapes import AmountView, InvoiceItem, InvoiceLineView, InvoiceView, timestamp
from api.stores import Views
from schemas.invoice import Bill, all_bills
from schemas.models import plain


async def bills_of(views: Views, account_id: str, running: str) -> tuple[Bill, ...]:
    """All bills by month; `running` is the month that is not over yet. Raises StoreDown.

    Closed ones are read first: what is closed between the two questions is shown as open once more, never twice.
    """
    closed = await views.closed_bills(account_id)
    return all_bills(closed, await views.bill_sums(account_id), running)


def item(bill: Bill) -> InvoiceItem:
    """A bill in a listing."""
    return InvoiceItem(
        period=bill.period,
        status="closed" if bill.status == "closed" else "open",
        closed_at=None if bill.closed_at_ms is None else timestamp(bill.closed_at_ms),
        totals=[AmountView(currency=currency, amount=plain(amount)) for currency, amount in bill.totals.items()],
    )


def view(bill: Bill) -> InvoiceView:
    """A bill with its lines."""
    return InvoiceView(**item(bill).model_dump(), lines=[InvoiceLineView(**asdict(line)) for line in bill.lines])
