"""Numbers of the running step, for Prometheus. Refreshed at most once a second, by the loop's own thread."""

import time
from collections.abc import Callable, Mapping

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from streams.settlement.rules import Alarm

EVERY_S = 1.0


class Numbers:
    """Gauges by name, refreshed together from one function."""

    def __init__(
        self, names: Mapping[str, str], read: Callable[[], Mapping[str, float]], registry: CollectorRegistry = REGISTRY
    ) -> None:
        """Make the gauges.

        Args:
            names: of the gauges, with their help.
            read: their values.
            registry: where they are served from.
        """
        self._gauges = {name: Gauge(name, text, registry=registry) for name, text in names.items()}
        self._read = read
        self._read_s = 0.0

    def refresh(self) -> None:
        """Take the values, if the last ones are old enough."""
        now_s = time.monotonic()
        if now_s - self._read_s < EVERY_S:
            return
        self._read_s = now_s
        for name, value in self._read().items():
            self._gauges[name].set(value)


class Alarms:
    """Counts alarms by code."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._counter = Counter("turnlog_alarms", "What must not happen and did, by code", ["code"], registry=registry)

    def raised(self, alarm: Alarm) -> None:
        """One more."""
        self._counter.labels(alarm.code).inc()
