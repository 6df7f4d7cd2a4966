"""What of the topic `usage` is told to a billing provider. Pure.

1. Each charge of a reply (kind `reply`, first revision, of a tier that is metered, of more than nothing) is one meter
   event. Its identifier is the reply's id, so the provider counts it once.
2. Of what ended before usage is metered (`since_ms`) nothing is told.
3. Providers remember identifiers for a time only. A record that is older than that (`age_max_ms`, by the end of its
   reply) may have been told before, so it is not told by itself: it becomes a dead letter, for a person to decide. What
   an import wrote into the log so late was told by the deployment that it came from, and is passed over.
4. Corrections, later revisions and what was not charged are told to nobody here: bills have them.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Literal

import msgspec

from schemas.events import Event, UsageAdjusted, UsageRecorded
from schemas.invoice import amount_of
from schemas.models import plain

Measure = Literal["tokens", "output_tokens", "cost"]
MEASURES: tuple[Measure, ...] = ("tokens", "output_tokens", "cost")

SKIPPED = (
    "uncharged",
    "void",
    "tier",
    "customer",
    "nothing",
    "revision",
    "correction",
    "before",
    "imported",
    "other",
)
"""Why a record is none of a provider's business."""

IMPORT_SOURCE = "infra/turnlog"
"""`ce_source` of what `turnlog usage import` writes."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What is told, and as whose."""

    event_name: str
    measure: Measure
    tiers: frozenset[str]
    customers: Mapping[str, str]
    """Account -> the provider's customer."""
    customer_prefix: str | None
    """Of accounts that are not among those: the customer is the prefix and the account's id; None: they have none."""
    age_max_ms: int
    since_ms: int = 0
    """What ended before is not told."""


class MeterEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider is told."""

    identifier: str
    event_name: str
    customer: str
    value: str
    """A number, as text."""
    at_ms: int


class Skipped(msgspec.Struct, frozen=True):
    """Nothing is told."""

    why: str


class TooOld(msgspec.Struct, frozen=True):
    """See rule 3."""

    age_ms: int


def meter_event(event: Event, rules: Rules, now_ms: int, source: str = "") -> MeterEvent | Skipped | TooOld:
    """What a record comes to; `source` is its `ce_source`."""
    if not isinstance(event, UsageRecorded):
        return Skipped("correction" if isinstance(event, UsageAdjusted) else "other")
    if why := _no_charge(event, rules):
        return Skipped(why)
    customer, value = _customer(event.account_id, rules), _value(event, rules.measure)
    if customer is None or value <= 0:
        return Skipped("customer" if customer is None else "nothing")
    age_ms = now_ms - event.ended_at_ms
    if age_ms > rules.age_max_ms:
        return Skipped("imported") if source == IMPORT_SOURCE else TooOld(age_ms)
    return MeterEvent(
        identifier=event.reply_id,
        event_name=rules.event_name,
        customer=customer,
        value=plain(value),
        at_ms=min(event.ended_at_ms, now_ms),
    )


def _no_charge(event: UsageRecorded, rules: Rules) -> str:
    """Why it is none that is metered (rules 1 and 2); empty: it is one."""
    if event.record_kind != "reply":
        return "void"
    if event.revision != 1:
        return "revision"
    if not event.charged:
        return "uncharged"
    if event.tier not in rules.tiers:
        return "tier"
    return "" if event.ended_at_ms >= rules.since_ms else "before"


def _customer(account_id: str, rules: Rules) -> str | None:
    if account_id in rules.customers:
        return rules.customers[account_id]
    return None if rules.customer_prefix is None else f"{rules.customer_prefix}{account_id}"


def _value(event: UsageRecorded, measure: Measure) -> Decimal:
    match measure:
        case "output_tokens":
            return Decimal(event.output_tokens)
        case "cost":
            return amount_of(event.cost) or Decimal(0)
        case _:
            return Decimal(
                event.uncached_input_tokens
                + event.cache_read_input_tokens
                + event.cache_write_input_tokens
                + event.cache_write_long_input_tokens
                + event.output_tokens
            )
