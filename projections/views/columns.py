"""What columns can hold, and how it is written. Pure.

Times are text of Unix seconds, which ClickHouse reads the same under every time zone.
"""

import re
from decimal import Context, Decimal
from functools import lru_cache

from schemas.invoice import TIME_MAX_MS, amount_of, is_day

INT_MAX = 2**63 - 1
SMALL_MAX = 2**32 - 1
_COST_STEP = Decimal(1).scaleb(-12)
_EXACT = Context(prec=60)
_PLAIN_COST = re.compile(r"-?[0-9]{1,26}(\.[0-9]{1,12})?")


class Unstorable(Exception):
    """A value that its column cannot hold."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


def time_text(field: str, at_ms: int) -> str:
    """Milliseconds since the epoch, as Unix seconds with three decimals. Raises `Unstorable`."""
    if not 0 <= at_ms <= TIME_MAX_MS:
        raise Unstorable(field, f"not a time: {at_ms}")
    seconds, rest = divmod(at_ms, 1000)
    return "%d.%03d" % (seconds, rest)  # noqa: UP031 - twice as fast here


@lru_cache(maxsize=4_096)
def day(text: str) -> str:
    """A day as it is, YYYY-MM-DD. Raises `Unstorable`."""
    if not is_day(text):
        raise Unstorable("usage_day", f"not a day: {text[:40]!r}")
    return text


def cost(text: str) -> str:
    """An amount of money that `Decimal(38, 12)` holds exactly. Raises `Unstorable`."""
    if _PLAIN_COST.fullmatch(text):
        return text
    value = amount_of(text)
    if value is None:
        raise Unstorable("cost", f"not an amount with at most 26 and 12 digits: {text[:60]!r}")
    return f"{value.quantize(_COST_STEP, context=_EXACT):f}"


def count(field: str, value: int, most: int = INT_MAX) -> int:
    """A number of things. Raises `Unstorable`."""
    if not 0 <= value <= most:
        raise Unstorable(field, f"not a count: {value}")
    return value


def span(field: str, value: int | None) -> int | None:
    """A number of milliseconds, or none. Raises `Unstorable`."""
    if value is not None and not -INT_MAX <= value <= INT_MAX:
        raise Unstorable(field, f"out of range: {value}")
    return value
