"""What the meters tell Prometheus; read from the step when asked."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from projections.meters.rules import SKIPPED
from projections.meters.step import MetersStep


class MetersMetrics(Collector):
    """Of the meters."""

    def __init__(self, step: MetersStep) -> None:
        self._step = step

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        counts = self._step.counts
        yield CounterMetricFamily("turnlog_meters_told", "Charges that the provider took.", value=counts.told)
        yield CounterMetricFamily("turnlog_meters_known", "Charges that the provider had had.", value=counts.again)
        yield CounterMetricFamily("turnlog_meters_failures", "Tries that failed.", value=counts.failures)
        yield CounterMetricFamily("turnlog_meters_dead", "Charges that the provider refuses.", value=counts.dead)
        yield CounterMetricFamily(
            "turnlog_meters_too_old", "Charges that were not told because they are too old.", value=counts.too_old
        )
        skipped = CounterMetricFamily("turnlog_meters_skipped", "Records that are not metered.", labels=("why",))
        for why in SKIPPED:
            skipped.add_metric((why,), counts.skipped.get(why, 0))
        yield skipped
        yield GaugeMetricFamily("turnlog_meters_waiting", "Charges that wait.", value=self._step.waiting)
        yield GaugeMetricFamily("turnlog_meters_degraded", "1: nothing can be told.", value=bool(self._step.trouble))
