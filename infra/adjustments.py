"""Corrections of charges, by an operator: looked up and written in the account's partition of `usage`."""

from __future__ import annotations

from dataclasses import dataclass

from infra.errors import StackError
from infra.usage_log import UsageLog
from schemas.events import UsageAdjusted
from schemas.invoice import adjustment, adjustment_kind, held_of


@dataclass(frozen=True)
class Adjusted:
    """A correction, and whether this call has made it."""

    event: UsageAdjusted
    new: bool


def adjust(
    usage: UsageLog, account_id: str, reply_id: str, adjustment_id: str, amount: str, reason: str, now_ms: int
) -> Adjusted:
    """Correct a reply's charge; the same id again changes nothing. Raises StackError."""
    [number] = usage.partitions(account_id)
    folded = usage.read(number, account_id)
    folded.close()
    ledger = folded.ledgers.get(account_id)
    charge = ledger.record(reply_id, "reply") if ledger is not None else None
    if ledger is None or charge is None:
        raise StackError(
            f'The account "{account_id}" has no usage record of a reply "{reply_id}": give the id (rep_…) that '
            "`GET /v1/usage/records` or `turnlog usage export` shows."
        )
    day, held = charge
    try:
        event = adjustment(
            account_id=account_id,
            reply_id=reply_id,
            usage_day=day,
            currency=held.heading.currency,
            adjustment_id=adjustment_id,
            amount=amount,
            reason=reason,
            now_ms=now_ms,
        )
    except ValueError as wrong:
        field, why = wrong.args
        raise StackError(f"--{field} {why}.") from wrong
    before = ledger.record(reply_id, adjustment_kind(adjustment_id))
    if before is None:
        usage.append([event])
        return Adjusted(event, new=True)
    if before[1] != held_of(event):
        raise StackError(
            f'The reply has another correction with the id "{adjustment_id}" '
            f"({before[1].amounts.amount} {before[1].heading.currency}, {before[1].heading.why}): give a new --id."
        )
    return Adjusted(event, new=False)
