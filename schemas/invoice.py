"""The fold of an account's records in the topic `usage` to its bills.

Rules, applied to the events of one account in the order of their partition:

1. A record is known by its day, reply and kind. Its highest revision counts; of equal ones the first. So a record that
   comes again changes nothing.
2. `PeriodEnded` cuts: the month, and all before it, take no more. Only a later month than the last one cuts; anything
   else has no effect, so one that comes again has none.
3. A cut's bill has what the records of these months have become since the bills before: of a month that was not closed
   yet, their usage; of one that was, what came too late for its own bill. A revision counts with its difference. So the
   bills together are, at every moment, the records that stand before the last cut, each once.
4. Records of later months wait for a cut of theirs.
5. `PeriodClosed` says a bill for ever; the first one counts. Without a cut before it, it is one.

A line has what is of one month, model, tier, price and currency. Corrections stand by themselves, under their reason,
and so does what was not charged. What no column of the views can hold counts for nothing here either.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from schemas.events import Event, PeriodClosed, PeriodEnded, UsageAdjusted, UsageRecorded
from schemas.models import plain
from schemas.values import InvoiceLine

USAGE, LATE, UNCHARGED, CORRECTION = "usage", "late", "not charged", "correction"
RESERVED = frozenset({"", USAGE, LATE, UNCHARGED})
"""No correction may be called so; one that is, is called `correction`."""
_RESERVED_WORDS = ", ".join(f"`{word}`" for word in (USAGE, LATE, UNCHARGED))
REASON_CHARS_MAX = 200

ADJUSTMENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PERIOD = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
_EXACT = Context(prec=60, traps=[Inexact, InvalidOperation])
_AMOUNT_MAX = Decimal(10) ** 26
_AMOUNT_STEP = Decimal(1).scaleb(-12)
_COUNT_MAX = 2**63 - 1
_ATTEMPTS_MAX = 2**32 - 1
TIME_MAX_MS = 9_000_000_000_000
"""The latest time that a column holds."""
REVISION_MAX = 2**20 - 1
_DAYS = (date(1970, 1, 1), date(2148, 12, 31))

Status = Literal["open", "ended", "closed"]


class Heading(NamedTuple):
    """What the records of a line have in common."""

    usage_period: str
    why: str
    """Empty: usage that is charged. Else what the line is called, whenever it comes."""
    model: str
    tier: str
    price_version: str
    currency: str


class Amounts(NamedTuple):
    """What they add up to."""

    records: int
    uncached_input_tokens: int
    cache_read_input_tokens: int
    cache_write_input_tokens: int
    cache_write_long_input_tokens: int
    output_tokens: int
    amount: Decimal


NOTHING = Amounts(0, 0, 0, 0, 0, 0, Decimal(0))

Sums = dict[Heading, Amounts]


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """A month's bill. `open`: as it would be now; `ended`: cut, and not said yet; `closed`: for ever."""

    period: str
    status: Status
    lines: tuple[InvoiceLine, ...]
    closed_at_ms: int | None = None

    @property
    def totals(self) -> Mapping[str, Decimal]:
        """The sum of the lines, by currency."""
        found: dict[str, Decimal] = {}
        for line in self.lines:
            found[line.currency] = _EXACT.add(found.get(line.currency, Decimal(0)), Decimal(line.amount))
        return dict(sorted(found.items()))


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """A record that came, or changed, behind the cut of its month."""

    usage_day: str
    reply_id: str
    record_kind: str
    revision: int
    currency: str
    amount: Decimal
    """What it adds to what was billed of it."""
    bill: str | None
    """The month on whose bill it is; None: on the next one."""


Identity = tuple[str, str, str]
"""Day, reply and kind."""


class Held(NamedTuple):
    """A record as it counts now."""

    revision: int
    heading: Heading
    amounts: Amounts


class Ledger:
    """The fold of one account."""

    def __init__(self) -> None:
        self.closed_through = ""
        """The latest month that was cut; empty: none."""
        self._records: dict[Identity, Held] = {}
        self._pending: dict[Identity, Held | None] = {}
        """What was billed of those that have changed since."""
        self._bills: dict[str, Bill] = {}
        self._late: list[Late] = []
        self._headings: dict[Heading, Heading] = {}

    def apply(self, event: Event) -> None:
        """The account's next event; those that are no records and no bills have no effect."""
        match event:
            case UsageRecorded() | UsageAdjusted():
                self._take(event)
            case PeriodEnded():
                self._cut(event.period)
            case PeriodClosed():
                self._close(event)
            case _:
                return

    def bill(self, period: str, running: str) -> Bill | None:
        """The bill of a month; None where it has none. `running` is the month that is not over yet."""
        if period in self._bills:
            return self._bills[period]
        return next((bill for bill in self.open_bills(running) if bill.period == period), None)

    def bills(self) -> tuple[Bill, ...]:
        """Those that were cut, by month."""
        return tuple(self._bills[period] for period in sorted(self._bills))

    def open_bills(self, running: str) -> tuple[Bill, ...]:
        """Those that were not, as they would be now. What is late stands on the first of them."""
        return open_bills(self._changes(), self.closed_through, running)

    def due(self, period: str) -> tuple[str, ...]:
        """The months to cut, in this order, so that no month up to this one is open and nothing late waits."""
        months = {day[:7] for day, _, _ in self._pending}
        still_open = sorted(month for month in months if self.closed_through < month <= period)
        if not still_open and period > self.closed_through and any(month <= self.closed_through for month in months):
            return (period,)
        return tuple(still_open)

    def late(self) -> tuple[Late, ...]:
        """What came behind the cut of its month, in the order of bills, then by day."""
        waiting = (self._lateness(identity, None) for identity in sorted(self._pending))
        return (*self._late, *(one for one in waiting if one.usage_day[:7] <= self.closed_through))

    def record(self, reply_id: str, record_kind: str) -> tuple[str, Held] | None:
        """A record by its reply and kind: its day, and what it is now."""
        for (day, reply, kind), held in self._records.items():
            if reply == reply_id and kind == record_kind:
                return day, held
        return None

    def records(self) -> Iterator[tuple[Identity, Held]]:
        """All of them."""
        return iter(self._records.items())

    def _take(self, event: UsageRecorded | UsageAdjusted) -> None:
        held = held_of(event)
        if held is None:
            return
        identity = (sys.intern(event.usage_day), event.reply_id, sys.intern(event.record_kind))
        before = self._records.get(identity)
        if before is not None and held.revision <= before.revision:
            return
        self._pending.setdefault(identity, before)
        heading = self._headings.setdefault(held.heading, held.heading)
        self._records[identity] = Held(held.revision, heading, held.amounts)

    def _cut(self, period: str) -> None:
        if not PERIOD.fullmatch(period) or period <= self.closed_through:
            return
        taken = sorted(identity for identity in self._pending if identity[0][:7] <= period)
        lines = lines_of(self._changes(period), self.closed_through)
        self._late += [self._lateness(one, period) for one in taken if one[0][:7] <= self.closed_through]
        for identity in taken:
            del self._pending[identity]
        self._bills[period] = Bill(period=period, status="ended", lines=lines)
        self.closed_through = period

    def _close(self, event: PeriodClosed) -> None:
        if event.period not in self._bills:
            self._cut(event.period)
        bill = self._bills.get(event.period)
        if bill is not None and bill.status == "ended":
            self._bills[event.period] = Bill(
                period=event.period, status="closed", lines=event.lines, closed_at_ms=event.closed_at_ms
            )

    def _changes(self, upto: str = "9999-12") -> Sums:
        sums: Sums = {}
        for identity, before in self._pending.items():
            if identity[0][:7] <= upto:
                now = self._records[identity]
                add(sums, now.heading, now.amounts)
                if before is not None:
                    add(sums, before.heading, before.amounts, -1)
        return sums

    def _lateness(self, identity: Identity, bill: str | None) -> Late:
        now, before = self._records[identity], self._pending[identity]
        billed = before.amounts.amount if before is not None else Decimal(0)
        day, reply_id, record_kind = identity
        return Late(
            usage_day=day,
            reply_id=reply_id,
            record_kind=record_kind,
            revision=now.revision,
            currency=now.heading.currency,
            amount=_EXACT.subtract(now.amounts.amount, billed),
            bill=bill,
        )


def held_of(event: UsageRecorded | UsageAdjusted) -> Held | None:
    """What a record says; None where it cannot be stored."""
    amount = amount_of(event.cost)
    at_ms = event.adjusted_at_ms if isinstance(event, UsageAdjusted) else event.ended_at_ms
    if amount is None or not is_day(event.usage_day) or not 0 <= event.revision <= REVISION_MAX:
        return None
    if not 0 <= at_ms <= TIME_MAX_MS:
        return None
    period = sys.intern(event.usage_day[:7])
    if isinstance(event, UsageAdjusted):
        why = CORRECTION if event.reason in RESERVED else event.reason
        heading = Heading(period, why, "", "", "", event.currency)
        return Held(event.revision, heading, Amounts(1, 0, 0, 0, 0, 0, amount))
    counts = (
        event.uncached_input_tokens,
        event.cache_read_input_tokens,
        event.cache_write_input_tokens,
        event.cache_write_long_input_tokens,
        event.output_tokens,
    )
    others = (event.reasoning_tokens, event.queued_ms or 0, event.gpu_ms or 0)
    if not all(0 <= count <= _COUNT_MAX for count in (*counts, *others)) or not 0 <= event.attempts <= _ATTEMPTS_MAX:
        return None
    why = "" if event.charged else UNCHARGED
    heading = Heading(period, why, event.model, event.tier, event.price_version, event.currency)
    return Held(event.revision, heading, Amounts(1, *counts, amount))


def add(sums: Sums, heading: Heading, amounts: Amounts, times: int = 1) -> None:
    """Add to the sum of a heading, or take away from it."""
    before = sums.get(heading, NOTHING)
    sums[heading] = Amounts(
        records=before.records + times * amounts.records,
        uncached_input_tokens=before.uncached_input_tokens + times * amounts.uncached_input_tokens,
        cache_read_input_tokens=before.cache_read_input_tokens + times * amounts.cache_read_input_tokens,
        cache_write_input_tokens=before.cache_write_input_tokens + times * amounts.cache_write_input_tokens,
        cache_write_long_input_tokens=before.cache_write_long_input_tokens
        + times * amounts.cache_write_long_input_tokens,
        output_tokens=before.output_tokens + times * amounts.output_tokens,
        amount=_EXACT.add(before.amount, _EXACT.multiply(amounts.amount, Decimal(times))),
    )


def lines_of(sums: Mapping[Heading, Amounts], closed_through: str) -> tuple[InvoiceLine, ...]:
    """The lines of a bill in their order; what adds up to nothing is none."""
    lines = (_line(heading, amounts, closed_through) for heading, amounts in sums.items() if any(amounts))
    return tuple(sorted(lines, key=_order))


def sums_of(lines: Iterable[InvoiceLine]) -> Sums:
    """What lines say, by what their records have in common."""
    sums: Sums = {}
    for line in lines:
        why = "" if line.description in {USAGE, LATE} else line.description
        heading = Heading(line.usage_period, why, line.model, line.tier, line.price_version, line.currency)
        amounts = Amounts(
            line.records,
            line.uncached_input_tokens,
            line.cache_read_input_tokens,
            line.cache_write_input_tokens,
            line.cache_write_long_input_tokens,
            line.output_tokens,
            Decimal(line.amount),
        )
        add(sums, heading, amounts)
    return sums


def unbilled(records: Mapping[Heading, Amounts], billed: Iterable[InvoiceLine]) -> Sums:
    """What the records have that no bill has: the same as the fold's changes, from views alone."""
    sums = dict(records)
    for heading, amounts in sums_of(billed).items():
        add(sums, heading, amounts, -1)
    return sums


def all_bills(closed: Sequence[Bill], records: Mapping[Heading, Amounts], running: str) -> tuple[Bill, ...]:
    """An account's bills from views alone: the closed ones, and the others as they would be now.

    Args:
        closed: by month.
        records: the sums of all its records.
        running: the month that is not over yet.
    """
    changes = unbilled(records, (line for bill in closed for line in bill.lines))
    through = max((bill.period for bill in closed), default="")
    return (*closed, *open_bills(changes, through, running))


def open_bills(changes: Mapping[Heading, Amounts], closed_through: str, running: str) -> tuple[Bill, ...]:
    """The bills that are not closed, by month, as they would be now: what is late stands on the first of them."""
    changed = {heading: amounts for heading, amounts in changes.items() if any(amounts)}
    late = {heading: amounts for heading, amounts in changed.items() if heading.usage_period <= closed_through}
    months = {heading.usage_period for heading in changed} - {heading.usage_period for heading in late}
    if late and not months:
        months = {max(running, next_period(closed_through))}
    bills = []
    for month in sorted(months):
        own = {heading: amounts for heading, amounts in changed.items() if heading.usage_period == month}
        bills.append(Bill(period=month, status="open", lines=lines_of({**own, **late}, closed_through)))
        late = {}
    return tuple(bills)


def next_period(period: str) -> str:
    """The month after a month."""
    year, month = int(period[:4]), int(period[5:])
    return f"{year + month // 12:04d}-{month % 12 + 1:02d}"


def adjustment(
    *,
    account_id: str,
    reply_id: str,
    usage_day: str,
    currency: str,
    adjustment_id: str,
    amount: str,
    reason: str,
    now_ms: int,
) -> UsageAdjusted:
    """A correction of a reply's charge, of the reply's own day. The same id is the same correction at any time.

    Raises:
        ValueError: (field, reason) of what is wrong.
    """
    if not ADJUSTMENT_ID.fullmatch(adjustment_id):
        raise ValueError("id", "must be 1 to 64 letters, digits, `.`, `_`, `-`")
    value = amount_of(amount)
    if value is None or value == 0:
        raise ValueError("amount", "must be an amount other than 0, with at most 12 digits behind the point")
    reason = reason.strip()
    if reason in RESERVED or len(reason) > REASON_CHARS_MAX or not reason.isprintable():
        raise ValueError(
            "reason", f"must be one line of 1 to {REASON_CHARS_MAX} characters, and not one of {_RESERVED_WORDS}"
        )
    return UsageAdjusted(
        account_id=account_id,
        reply_id=reply_id,
        record_kind=adjustment_kind(adjustment_id),
        revision=1,
        usage_day=usage_day,
        cost=plain(value),
        currency=currency,
        reason=reason,
        adjusted_at_ms=now_ms,
    )


def adjustment_kind(adjustment_id: str) -> str:
    """The kind of the record of a correction."""
    return f"adjustment-{adjustment_id}"


@lru_cache(maxsize=4_096)
def is_day(text: str) -> bool:
    """Whether this is a day that the views can hold, as YYYY-MM-DD."""
    try:
        found = date.fromisoformat(text)
    except ValueError:
        return False
    return found.isoformat() == text and _DAYS[0] <= found <= _DAYS[1]


def amount_of(text: str) -> Decimal | None:
    """An amount of money of at most 26 digits before the point and 12 behind it; None for any other text."""
    try:
        value = Decimal(text)
        if not value.is_finite() or abs(value) >= _AMOUNT_MAX:
            return None
        return value if value == value.quantize(_AMOUNT_STEP, context=_EXACT) else None
    except (InvalidOperation, Inexact):
        return None


def _line(heading: Heading, amounts: Amounts, closed_through: str) -> InvoiceLine:
    return InvoiceLine(
        description=heading.why or (LATE if heading.usage_period <= closed_through else USAGE),
        usage_period=heading.usage_period,
        model=heading.model,
        tier=heading.tier,
        price_version=heading.price_version,
        currency=heading.currency,
        records=amounts.records,
        uncached_input_tokens=amounts.uncached_input_tokens,
        cache_read_input_tokens=amounts.cache_read_input_tokens,
        cache_write_input_tokens=amounts.cache_write_input_tokens,
        cache_write_long_input_tokens=amounts.cache_write_long_input_tokens,
        output_tokens=amounts.output_tokens,
        amount=plain(amounts.amount),
    )


def _order(line: InvoiceLine) -> tuple[object, ...]:
    place = {USAGE: 0, LATE: 1, UNCHARGED: 2}.get(line.description, 3)
    return (
        place,
        line.usage_period,
        line.currency,
        line.model,
        line.tier,
        line.price_version,
        line.description,
    )
