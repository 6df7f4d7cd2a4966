"""What an account has spent in a calendar month (UTC), by its bill, against what it may.

It is asked of ClickHouse and kept for `FRESH_S`. After that what was known last counts once more, and it is asked again
meanwhile; only the first send of a month waits for an answer, for `ASK_S` at most. So the cap is as exact as the bill
is new: what is used by replies that run, or have ended since it was asked (and within the bill's delay, a second or
two), comes on top. That is bounded by the account's token bucket. While ClickHouse is away, what was known last counts,
and an account of which nothing is known is let in. That there was no answer is kept for `FRESH_S` too, so nobody waits
for it again before.
"""

import asyncio
import calendar
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import structlog

from api.metrics import Metrics
from api.stores import StoreDown, UsageQuery, Views
from schemas.tiers import TierRules

log = structlog.get_logger()

FRESH_S = 5.0
ASK_S = 1.0
ACCOUNTS_MAX = 20_000


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What was billed in a month so far. `amount` is the largest, where there are several currencies."""

    amount: Decimal
    currency: str


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """When it was asked last, and what is known; None: there was no answer yet."""

    month: str
    at_s: float
    spent: Spent | None


class Spending:
    """Keeps what accounts have spent."""

    def __init__(self, views: Views, metrics: Metrics, now_ms: Callable[[], int], now_s: Callable[[], float]) -> None:
        self._views = views
        self._metrics = metrics
        self._now_ms = now_ms
        self._now_s = now_s
        self._asked: dict[str, _Asked] = {}
        self._asking: dict[tuple[str, str], asyncio.Task[Spent | None]] = {}

    async def spent(self, account_id: str) -> Spent | None:
        """In this month; None where it is not known. Raises nothing."""
        month = month_of(self._now_ms())
        asked = self._asked.get(account_id)
        if asked is not None and asked.month != month:
            asked = None
        if asked is not None and self._now_s() - asked.at_s < FRESH_S:
            return asked.spent
        asking = self._asking.get((account_id, month))
        if asking is None:
            asking = self._asking[account_id, month] = asyncio.ensure_future(self._ask(account_id, month))
            asking.add_done_callback(lambda _: self._asking.pop((account_id, month), None))
        if asked is not None and asked.spent is not None:
            return asked.spent
        return await asyncio.shield(asking)

    async def _ask(self, account_id: str, month: str) -> Spent | None:
        days = calendar.monthrange(int(month[:4]), int(month[5:]))[1]
        query = UsageQuery(from_day=f"{month}-01", to_day=f"{month}-{days}")
        try:
            async with asyncio.timeout(ASK_S):
                rows = await self._views.usage_totals(account_id, query)
        except (StoreDown, TimeoutError) as error:
            self._metrics.spend_unknown.inc()
            log.warning("what an account has spent cannot be read", account_id=account_id, reason=str(error))
            before = self._asked.get(account_id)
            spent = before.spent if before is not None and before.month == month else None
        else:
            amounts = ((Decimal(row["cost"]), str(row["currency"])) for row in rows)
            amount, currency = max(amounts, default=(Decimal(0), ""))
            spent = Spent(amount=amount, currency=currency)
        self._asked.pop(account_id, None)
        self._asked[account_id] = _Asked(month=month, at_s=self._now_s(), spent=spent)
        if len(self._asked) > ACCOUNTS_MAX:
            del self._asked[next(iter(self._asked))]
        return spent


def month_of(now_ms: int) -> str:
    """YYYY-MM, UTC."""
    return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y-%m}"


def until_next_month_s(now_ms: int) -> float:
    """When the next one begins."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    year, month = (now.year + 1, 1) if now.month == 12 else (now.year, now.month + 1)
    return (datetime(year, month, 1, tzinfo=UTC) - now).total_seconds()


def is_capped(rules: TierRules) -> bool:
    """Whether it matters what the account has spent."""
    return rules.spend_soft is not None or rules.spend_hard is not None


def said(spent: Spent, rules: TierRules) -> str:
    """For the header: `spent=81.2, soft=80, hard=100, currency=USD`."""
    caps = (("soft", rules.spend_soft), ("hard", rules.spend_hard))
    words = [f"spent={spent.amount:f}", *(f"{name}={cap:f}" for name, cap in caps if cap is not None)]
    return ", ".join([*words, f"currency={spent.currency}"] if spent.currency else words)
