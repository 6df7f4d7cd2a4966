"""Numbers of the running step, for Prometheus. Gauges are refreshed at most once a second, by the loop's own thread."""

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import REGISTRY, CollectorRegistry, Counter
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streams.settlement.rules import Alarm

EVERY_S = 1.0


Labelled = tuple[str, tuple[str, ...]]
"""The help of a metric, and the names of its labels."""
Values = Mapping[tuple[str, ...], float]
"""By the values of the labels."""


class Series(Collector):
    """Gauges with labels, read when they are asked for: what is not read then is not there, also when it was before.

    Those whose names end in `_total` are counters.
    """

    def __init__(
        self,
        names: Mapping[str, Labelled],
        read: Callable[[], Mapping[str, Values]],
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
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(name, text, labels=labels)
            for values, number in now.get(name, {}).items():
                family.add_metric(values, number)
            yield family


class Numbers:
    """Gauges and totals, refreshed together from one function by the thread that owns what it reads."""

    def __init__(
        self,
        names: Mapping[str, str | Labelled],
        read: Callable[[], Mapping[str, float | Values]],
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        """Serve the numbers; before the first refresh there are none.

        Args:
            names: with their help and, where they have labels, the names of these.
            read: their values; of those with labels by the values of their labels.
            registry: where they are served from.
        """
        self._read = read
        self._read_s = -EVERY_S
        self._newest: Mapping[str, Values] = {}
        labelled = {name: (text, ()) if isinstance(text, str) else text for name, text in names.items()}
        Series(labelled, lambda: self._newest, registry)

    def refresh(self) -> None:
        """Take the values, if the last ones are old enough."""
        now_s = time.monotonic()
        if now_s - self._read_s < EVERY_S:
            return
        self._read_s = now_s
        self._newest = {
            name: value if isinstance(value, Mapping) else {(): value} for name, value in self._read().items()
        }


class Alarms:
    """Counts alarms by code."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._counter = Counter("turnlog_alarms", "What must not happen and did, by code", ["code"], registry=registry)

    def raised(self, alarm: Alarm) -> None:
        """One more."""
        self._counter.labels(alarm.code).inc()
