"""Forecast of one series of windows: level, trend, what is usual at this time of the day, and headroom.

1. Level and trend are exponential smoothing (Holt's linear method) of what the time of the day does not explain:

       foreseen = level + trend + usual(now) - usual(before)
       level'   = alpha * value + (1 - alpha) * foreseen
       trend'   = beta * (level' - level - (usual(now) - usual(before))) + (1 - beta) * trend
       forecast = max(0, level' + trend' + usual(then) - usual(now)) * headroom

   That is Holt-Winters' additive method with the season told as differences, so that it begins without a jump once a
   time of the day is known. See Hyndman and Athanasopoulos, Forecasting: Principles and Practice, sections 8.2, 8.3.
2. What is usual in a slot of the day (UTC) is the median of its means on the last `days` days, and between the middles
   of slots a line. A median and not a weighted sum, so that odd days change nothing while they are fewer than half:
   two of five, a weekend. See Gelper, Fried and Croux, Robust forecasting with exponential and Holt-Winters smoothing
   (2010), for why outliers must be kept out of the season. Older days are forgotten.
3. A window that was not heard is no zero: nothing is smoothed for it, and it has no part in the mean of its slot, which
   counts only when a quarter of its windows were heard. After a gap the trend is forgotten; after one that is longer
   than a slot the level too.
4. Memory is bounded: `slots * days` numbers a series, 144 * 5 for slots of 10 minutes.

Values in, values out.
"""

from math import floor
from statistics import median

import msgspec
from msgspec.structs import replace

DAY_MS = 86_400_000
HEARD_SHARE = 4
"""A slot's mean counts when one in so many of its windows was heard."""

Season = tuple[tuple[float, ...], ...]
"""Per slot of the day its means on the last days, oldest first; () before the first slot has ended."""


class Smoothing(msgspec.Struct, frozen=True, kw_only=True):
    """How fast it follows, what a day is divided into, and how much more than expected is provided for."""

    window_ms: int = 10_000
    alpha: float = 0.2
    beta: float = 0.05
    headroom: float = 1.25
    slot_ms: int = 600_000
    """Of the season; at least a window."""
    days: int = 5

    @property
    def slots(self) -> int:
        """Of a day."""
        return -(-DAY_MS // self.slot_ms)


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The state after the window that began at `at_ms`: level and trend per window, and the season."""

    at_ms: int
    level: float
    trend: float = 0.0
    slot_sum: float = 0.0
    """Of the slot that is not over."""
    slot_windows: int = 0
    season: Season = ()


class Foreseen(msgspec.Struct, frozen=True):
    """What to provide for; never negative. `seasonal`: the time of the day is known."""

    value: float
    seasonal: bool


def observe(expected: Expected | None, value: float, at_ms: int, smoothing: Smoothing) -> Expected:
    """After one more window; the first one sets the level. One that is not newer than the last changes nothing."""
    if expected is None:
        return Expected(at_ms=at_ms, level=value, slot_sum=value, slot_windows=1)
    gap_ms = at_ms - expected.at_ms
    if gap_ms <= 0:
        return expected
    level, trend = value, 0.0
    if gap_ms <= smoothing.slot_ms:
        rise = _rise(expected, gap_ms, smoothing) or 0.0
        before = expected.trend if gap_ms <= smoothing.window_ms else 0.0
        level = smoothing.alpha * value + (1 - smoothing.alpha) * max(0.0, expected.level + before + rise)
        trend = smoothing.beta * (level - expected.level - rise) + (1 - smoothing.beta) * before
    return _learnt(replace(expected, level=level, trend=trend), value, at_ms, smoothing)


def forecast(expected: Expected, ahead_ms: int, smoothing: Smoothing) -> Foreseen:
    """Of the window that begins `ahead_ms` after the last one: the trend of one window, the season of the whole time.

    The trend is not drawn out, for it is mostly noise; so beyond the next window only the season says more.
    """
    rise = _rise(expected, ahead_ms, smoothing)
    value = max(0.0, expected.level + expected.trend + (rise or 0.0)) * smoothing.headroom
    return Foreseen(value, rise is not None)


def usual(season: Season, at_ms: int, smoothing: Smoothing) -> float | None:
    """What is usual at this time of the day; None: not known."""
    if not season:
        return None
    place = (at_ms + smoothing.window_ms / 2) % DAY_MS / smoothing.slot_ms - 0.5
    slot = floor(place)
    one, other = season[slot % smoothing.slots], season[(slot + 1) % smoothing.slots]
    if not one or not other:
        return None
    share = place - slot
    return (1 - share) * median(one) + share * median(other)


def _rise(expected: Expected, ahead_ms: int, smoothing: Smoothing) -> float | None:
    now = usual(expected.season, expected.at_ms, smoothing)
    then = usual(expected.season, expected.at_ms + ahead_ms, smoothing)
    return None if now is None or then is None else then - now


def _learnt(expected: Expected, value: float, at_ms: int, smoothing: Smoothing) -> Expected:
    if _slot(at_ms, smoothing) == _slot(expected.at_ms, smoothing) and at_ms - expected.at_ms < smoothing.slot_ms:
        total, windows = expected.slot_sum + value, expected.slot_windows + 1
        return replace(expected, at_ms=at_ms, slot_sum=total, slot_windows=windows)
    season = expected.season
    if expected.slot_windows * HEARD_SHARE * smoothing.window_ms >= smoothing.slot_ms:
        season = season or ((),) * smoothing.slots
        slot = _slot(expected.at_ms, smoothing)
        means = (*season[slot], expected.slot_sum / expected.slot_windows)[-smoothing.days :]
        season = (*season[:slot], means, *season[slot + 1 :])
    return replace(expected, at_ms=at_ms, slot_sum=value, slot_windows=1, season=season)


def _slot(at_ms: int, smoothing: Smoothing) -> int:
    return at_ms % DAY_MS // smoothing.slot_ms
