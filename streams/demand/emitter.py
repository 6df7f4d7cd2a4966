"""What is said about each closed window of the pools: demand, and forecast of the next. Pure but for its memory."""

from collections.abc import Callable

from schemas.events import DemandForecast
from schemas.values import Tier
from streams.demand.forecast import Expected, Smoothing, forecast, observe
from streams.demand.windows import TIERS, Demand, Window

POOLS_MAX = 1_000
"""Pools whose forecasts are remembered; the one that was silent longest is forgotten."""


class Emitter:
    """Says each window of each pool once, in order of time."""

    def __init__(self, window_ms: int, smoothing: Smoothing) -> None:
        self._window_ms = window_ms
        self._smoothing = smoothing
        self._said: dict[str, int] = {}
        self._expected: dict[tuple[str, Tier, str], Expected] = {}

    def hear(self, pool: str, window_start_ms: int) -> None:
        """Something was heard of the pool in this window."""
        if pool not in self._said:
            self._said[pool] = window_start_ms - self._window_ms
            if len(self._said) > POOLS_MAX:
                self._forget(next(iter(self._said)))

    def say(self, until_ms: int, read: Callable[[str, int], Window | None]) -> list[DemandForecast]:
        """The windows up to the one that begins at `until_ms`, of those that exist.

        Args:
            until_ms: start of the newest closed window.
            read: the window of a pool that begins at a time, None when nothing was heard.
        """
        said: list[DemandForecast] = []
        for pool, last_ms in list(self._said.items()):
            oldest_ms = max(last_ms + self._window_ms, until_ms - 2 * self._window_ms)
            for start_ms in range(oldest_ms, until_ms + 1, self._window_ms):
                window = read(pool, start_ms)
                if window is not None:
                    said.extend(self._forecast(pool, tier, start_ms, window.demand(tier)) for tier in TIERS)
            if until_ms > last_ms:
                self._said[pool] = until_ms
        return said

    def _forecast(self, pool: str, tier: Tier, start_ms: int, demand: Demand) -> DemandForecast:
        return DemandForecast(
            pool=pool,
            tier=tier,
            window_start_ms=start_ms,
            window_ms=self._window_ms,
            arrivals=demand.arrivals,
            input_tokens=demand.input_tokens,
            output_tokens=demand.output_tokens,
            queue_ms_mean=round(demand.queue_ms_mean, 3),
            forecast_arrivals=self._next(pool, tier, "arrivals", demand.arrivals),
            forecast_output_tokens=self._next(pool, tier, "output_tokens", demand.output_tokens),
        )

    def _next(self, pool: str, tier: Tier, what: str, value: float) -> float:
        key = (pool, tier, what)
        self._expected[key] = observe(self._expected.get(key), value, self._smoothing)
        return round(forecast(self._expected[key], self._smoothing), 3)

    def _forget(self, pool: str) -> None:
        del self._said[pool]
        self._expected = {key: value for key, value in self._expected.items() if key[0] != pool}
