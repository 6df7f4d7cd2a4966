"""Numbers of the running step, for Prometheus. Gauges are refreshed at most once a second, by the loop's own thread."""

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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


class Series(Collector):
    """Gauges with labels, read when they are asked for: what is not read then is not there, also when it was before."""

    def __init__(
        self,
        names: Mapping[str, tuple[str, tuple[str, ...]]],
        read: Callable[[], Mapping[str, Mapping[tuple[str, ...], float]]],
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        """Serve the gauges.

        Args:
            names: of the gauges, with their help and the names of their labels.
            read: their values, by name and the values of their labels. Called from the thread that serves.
            registry: where they are served from.
        """
        self._names = names
        self._read = read
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The gauges as they are now."""
        now = self._read()
        for name, (text, labels) in self._names.items():
            family = GaugeMetricFamily(name, text, labels=labels)
            for values, number in now.get(name, {}).items():
                family.add_metric(values, number)
            yield family


class Alarms:
    """Counts alarms by code."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._counter = Counter("turnlog_alarms", "What must not happen and did, by code", ["code"], registry=registry)

    def raised(self, alarm: Alarm) -> None:
        """One more."""
        self._counter.labels(alarm.code).inc()
