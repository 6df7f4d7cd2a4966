"""The newest that was said of each fleet, as numbers for whoever scales the workers.

A fleet of which nothing was heard for `SILENT_WINDOWS` windows has no numbers: no news must not look like the last
news, nor like no demand.
"""

from collections.abc import Iterable, Mapping

from schemas.events import DemandForecast
from streams.demand.fleet import Said

SILENT_WINDOWS = 2
SAID_WITHIN_MS = 5_000
"""A window that was heard is said so soon after its end."""

_TIER = ("pool", "model", "tier")
_FLEET = ("pool", "model")

NUMBERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "turnlog_demand_arrivals_per_s": ("Requests for the model, in the last window", _TIER),
    "turnlog_demand_forecast_arrivals_per_s": ("Forecast of the next window, headroom included", _TIER),
    "turnlog_demand_output_tokens_per_s": ("Output tokens of generations that finished in the last window", _TIER),
    "turnlog_demand_forecast_output_tokens_per_s": ("Forecast of the next window, headroom included", _TIER),
    "turnlog_demand_queue_ms_mean": ("Wait of generations that finished in the last window; 0 without any", _TIER),
    "turnlog_demand_service_ms_mean": ("Time in a slot of those; 0 without any", _TIER),
    "turnlog_workers": ("Workers that renewed their lease in the last window", _FLEET),
    "turnlog_desired_replicas": ("Workers of the model that the pool should have", _FLEET),
}
"""Names, help, labels."""


class Latest:
    """Told by one thread; others may read at any time."""

    def __init__(self) -> None:
        self._said: Mapping[str, Said] = {}

    def said(self, events: Iterable[Said]) -> None:
        """These are the newest; of fleets that are silent meanwhile nothing is kept."""
        told = {event.key(): event for event in events}
        if told:
            newest_ms = max(event.window_start_ms for event in told.values())
            kept = {key: event for key, event in self._said.items() if not _silent(event, newest_ms)}
            self._said = {**kept, **told}

    def numbers(self, now_ms: int) -> Mapping[str, Mapping[tuple[str, ...], float]]:
        """By name, then by the values of its labels."""
        numbers: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in NUMBERS}
        for event in self._said.values():
            if not _silent(event, now_ms):
                labels, values = _of(event)
                for name, value in values.items():
                    numbers[name][labels] = value
        return numbers


def _silent(event: Said, now_ms: int) -> bool:
    return now_ms >= event.window_start_ms + (1 + SILENT_WINDOWS) * event.window_ms + SAID_WITHIN_MS


def _of(event: Said) -> tuple[tuple[str, ...], Mapping[str, float]]:
    if not isinstance(event, DemandForecast):
        return (event.pool, event.model), {"turnlog_workers": event.workers, "turnlog_desired_replicas": event.replicas}
    window_s = event.window_ms / 1000
    return (event.pool, event.model, event.tier), {
        "turnlog_demand_arrivals_per_s": event.arrivals / window_s,
        "turnlog_demand_forecast_arrivals_per_s": event.forecast_arrivals / window_s,
        "turnlog_demand_output_tokens_per_s": event.output_tokens / window_s,
        "turnlog_demand_forecast_output_tokens_per_s": event.forecast_output_tokens / window_s,
        "turnlog_demand_queue_ms_mean": event.queue_ms_mean,
        "turnlog_demand_service_ms_mean": event.service_ms_mean,
    }
