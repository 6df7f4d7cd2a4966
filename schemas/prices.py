"""The price list: versioned entries with a time from which on they hold, by model and tier. Money is Decimal.

Rules:

1. Of the entries for a model, those of the tier go before those of all tiers; of these the one that holds since the
   latest time not after the reply's acceptance counts. What comes into force later changes nothing that was accepted.
2. Without such an entry the price of the model itself (`schemas.models`) counts.
3. A usage record carries the version of its entry, and never changes with the list.
"""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec

from schemas.models import Model, Price, wrong_amount
from schemas.values import Tier, TimeMs

UNPRICED = "unpriced"
"""The version on records of what has no price."""
CACHE_READ = Decimal("0.1")
CACHE_WRITE = Decimal("1.25")
CACHE_WRITE_LONG = Decimal(2)
"""What cached tokens cost where the entry does not say: so many times the input's price."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CURRENCY = re.compile(r"[A-Z]{3}")


class PriceEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the price list. Amounts are per million tokens, written as text: `"0.05"`."""

    version: str
    """Stands on each usage record: another one for each entry of a model and tier."""
    model: str
    tier: Tier | None = None
    """Absent: all that have no entry of their own."""
    valid_from: datetime
    """RFC 3339, with its offset."""
    currency: str = "USD"
    input: Decimal
    cached_input: Decimal | None = None
    """Absent: a tenth of the input's."""
    cache_write: Decimal | None = None
    """Absent: 1.25 times the input's."""
    cache_write_long: Decimal | None = None
    """Absent: twice the input's."""
    output: Decimal

    @property
    def price(self) -> Price:
        """What it says, with all amounts."""
        return Price(
            version=self.version,
            currency=self.currency,
            input=self.input,
            cached_input=self.input * CACHE_READ if self.cached_input is None else self.cached_input,
            cache_write=self.input * CACHE_WRITE if self.cache_write is None else self.cache_write,
            cache_write_long=self.input * CACHE_WRITE_LONG if self.cache_write_long is None else self.cache_write_long,
            output=self.output,
        )


def price_of(prices: tuple[PriceEntry, ...], model: Model, tier: Tier, accepted_at_ms: TimeMs) -> Price:
    """What a reply of this model costs an account of this tier, by when it was accepted."""
    entry = entry_of(prices, model.name, tier, accepted_at_ms)
    return model.price if entry is None else entry.price


def entry_of(prices: tuple[PriceEntry, ...], model: str, tier: Tier, accepted_at_ms: TimeMs) -> PriceEntry | None:
    """The entry that counts for a model, by its name; None: the list has none that holds."""
    at = _EPOCH + timedelta(milliseconds=accepted_at_ms)
    holding = [
        entry for entry in prices if entry.model == model and entry.tier in (tier, None) and entry.valid_from <= at
    ]
    return max(holding, key=lambda entry: (entry.tier is not None, entry.valid_from), default=None)


def parse_prices(text: str) -> tuple[PriceEntry, ...]:
    """The setting TURNLOG_PRICES: a JSON list of entries.

    Raises:
        ValueError: not such a list, a member is missing, wrong or unknown, an amount is negative, or two entries are of
            one model, tier and version or time; names the entry by its place.
    """
    try:
        entries = msgspec.json.decode(text, type=tuple[PriceEntry, ...])
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise ValueError(f"TURNLOG_PRICES: no JSON list of price entries: {error}") from error
    seen: set[tuple[object, ...]] = set()
    for place, entry in enumerate(entries, 1):
        where = f"TURNLOG_PRICES: entry {place} ({entry.model}, {entry.version})"
        if entry.version in ("", UNPRICED) or not entry.version.isprintable():
            raise ValueError(f"{where}: version must be a name on one line, other than {UNPRICED!r}")
        if entry.valid_from.tzinfo is None:
            raise ValueError(f'{where}: valid_from needs its offset: "2026-11-01T00:00:00Z"')
        if not _CURRENCY.fullmatch(entry.currency):
            raise ValueError(f"{where}: currency is {entry.currency!r}; three letters, as in ISO 4217")
        wrong = wrong_amount(entry.price)
        if wrong is not None:
            raise ValueError(f"{where}: {wrong}")
        for same in (("version", entry.version), ("valid_from", entry.valid_from)):
            identity = (entry.model, entry.tier, *same)
            if identity in seen:
                raise ValueError(f"{where}: another entry of this model and tier has this {same[0]}")
            seen.add(identity)
    return entries
