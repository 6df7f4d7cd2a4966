"""Closing a month: every account's bill is cut, then said, each as an event of the account's own partition.

1. The cut (`PeriodEnded`) is appended first; its place in the log divides what is on the bill from what is late.
2. The bill (`PeriodClosed`) is computed from what stands before the cut, and appended. Whoever computes it, whenever,
   gets the same lines: so a run that is killed is finished by the next one, and two at a time do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal

from infra.errors import StackError
from infra.usage_log import UsageLog
from schemas.events import PeriodClosed, PeriodEnded
from schemas.invoice import PERIOD, Bill, Late

ACCOUNTS_AT_ONCE = 1_000
"""So many accounts' events are appended before they are waited for."""


@dataclass(frozen=True)
class Closed:
    """One bill that this run has said."""

    account_id: str
    bill: Bill


@dataclass
class Closing:
    """What a run has done."""

    bills: list[Closed] = field(default_factory=list)
    accounts: int = 0
    records: int = 0
    unreadable: int = 0

    @property
    def totals(self) -> Mapping[str, Decimal]:
        """Of all bills, by currency."""
        found: dict[str, Decimal] = {}
        for closed in self.bills:
            for currency, amount in closed.bill.totals.items():
                found[currency] = found.get(currency, Decimal(0)) + amount
        return dict(sorted(found.items()))


def running_period(now_ms: int) -> str:
    """The month (UTC) that is not over."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m")


def check_period(period: str) -> str:
    """The period, if it is one. Raises StackError."""
    if not PERIOD.fullmatch(period):
        raise StackError(f'"{period}" is no period: write a month as YYYY-MM, such as 2026-11.')
    return period


def close(
    usage: UsageLog,
    period: str,
    now_ms: int,
    account_id: str | None = None,
    tell: Callable[[int], None] = lambda _: None,
) -> Closing:
    """Close a month, and what is open before it, for all accounts or one. Raises StackError."""
    running = running_period(now_ms)
    if check_period(period) >= running:
        raise StackError(f"The month {period} is not over (it is {running} now, UTC): close it when it is.")
    done = Closing()
    for number in usage.partitions(account_id):
        folded = usage.read(number, account_id, tell)
        try:
            cuts = [
                PeriodEnded(account_id=account, period=due, ended_at_ms=now_ms)
                for account, ledger in folded.ledgers.items()
                for due in ledger.due(period)
            ]
            _in_parts(usage, cuts)
            if cuts:
                folded.catch_up()
            said = [
                Closed(account, bill)
                for account, ledger in folded.ledgers.items()
                for bill in ledger.bills()
                if bill.status == "ended"
            ]
            _in_parts(usage, [_event(one, now_ms) for one in said])
        finally:
            folded.close()
        done.bills += said
        done.accounts += len(folded.ledgers)
        done.records += folded.records
        done.unreadable += folded.unreadable
    return done


@dataclass(frozen=True)
class Shown:
    """What the log says of a month's bill."""

    bill: Bill | None
    whole: bool
    """All that is on the bill was in the log: nothing was removed from it, or the bill itself is there, closed."""
    reaches_to: str
    """Since when the log has records of the account's partition; empty: always, or it has none."""


def show(usage: UsageLog, account_id: str, period: str, now_ms: int) -> Shown:
    """The bill of an account and month, as it is or as it would be now. Raises StackError."""
    check_period(period)
    [number] = usage.partitions(account_id)
    folded = usage.read(number, account_id)
    folded.close()
    ledger = folded.ledgers.get(account_id)
    bill = ledger.bill(period, running_period(now_ms)) if ledger is not None else None
    since = datetime.fromtimestamp(folded.begins_ms / 1000, UTC) if folded.begins and folded.begins_ms else None
    return Shown(
        bill=bill,
        whole=not folded.begins or (bill is not None and bill.status == "closed"),
        reaches_to="" if since is None else since.strftime("%Y-%m-%d %H:%M"),
    )


def late(usage: UsageLog, account_id: str | None = None) -> list[tuple[str, Late]]:
    """All records that came behind the cut of their month, with their account."""
    found: list[tuple[str, Late]] = []
    for number in usage.partitions(account_id):
        folded = usage.read(number, account_id)
        folded.close()
        found += [(account, one) for account in sorted(folded.ledgers) for one in folded.ledgers[account].late()]
    return found


def _event(closed: Closed, now_ms: int) -> PeriodClosed:
    return PeriodClosed(
        account_id=closed.account_id, period=closed.bill.period, lines=closed.bill.lines, closed_at_ms=now_ms
    )


def _in_parts(usage: UsageLog, events: list[PeriodEnded] | list[PeriodClosed]) -> None:
    for first in range(0, len(events), ACCOUNTS_AT_ONCE):
        usage.append(events[first : first + ACCOUNTS_AT_ONCE])
