"""Rows of the questions in `api.bill_queries`, as the values of bills. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from schemas.invoice import Amounts, Bill, Heading
from schemas.models import plain
from schemas.values import InvoiceLine


def closed_bills(rows: Iterable[Sequence[Any]]) -> tuple[Bill, ...]:
    """The bills of rows (period, closed at, and the members of a line), which are in the order of periods."""
    found: dict[tuple[str, int], list[InvoiceLine]] = {}
    names = InvoiceLine.__struct_fields__
    for period, closed_at_ms, *members in rows:
        line = dict(zip(names, members, strict=True))
        line["amount"] = plain(Decimal(line["amount"]))
        lines = found.setdefault((period, closed_at_ms), [])
        if line["description"]:  # without one the row says only that the bill is closed
            lines.append(InvoiceLine(**line))
    return tuple(
        Bill(period=period, status="closed", lines=tuple(lines), closed_at_ms=at_ms)
        for (period, at_ms), lines in found.items()
    )


def sums(rows: Iterable[Sequence[Any]]) -> Mapping[Heading, Amounts]:
    """The sums of rows: a heading, then amounts."""
    width = len(Heading._fields)
    return {Heading(*row[:width]): Amounts._make((*row[width:-1], Decimal(row[-1]))) for row in rows}
