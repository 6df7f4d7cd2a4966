"""Forecast of the next window: exponential smoothing with trend (Holt's linear method), and headroom.

    level' = alpha * value + (1 - alpha) * (level + trend)
    trend' = beta * (level' - level) + (1 - beta) * trend
    forecast = max(0, level' + trend') * headroom

Values in, values out. See Hyndman and Athanasopoulos, Forecasting: Principles and Practice, section 8.2.
"""

import msgspec


class Smoothing(msgspec.Struct, frozen=True, kw_only=True):
    """How fast it follows, and how much more than expected is provided for."""

    alpha: float = 0.5
    beta: float = 0.2
    headroom: float = 1.25


class Expected(msgspec.Struct, frozen=True):
    """The state: level and trend per window."""

    level: float
    trend: float = 0.0


def observe(expected: Expected | None, value: float, smoothing: Smoothing) -> Expected:
    """After one more window; the first one sets the level."""
    if expected is None:
        return Expected(value)
    level = smoothing.alpha * value + (1 - smoothing.alpha) * (expected.level + expected.trend)
    trend = smoothing.beta * (level - expected.level) + (1 - smoothing.beta) * expected.trend
    return Expected(level, trend)


def forecast(expected: Expected, smoothing: Smoothing) -> float:
    """What to provide for in the next window; never negative."""
    return max(0.0, expected.level + expected.trend) * smoothing.headroom
