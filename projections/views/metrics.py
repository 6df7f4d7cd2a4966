"""What the views tell Prometheus; read from the step when asked."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from projections.views.step import ViewsStep


class ViewsMetrics(Collector):
    """Of the views."""

    def __init__(self, step: ViewsStep) -> None:
        self._step = step

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        counts = self._step.counts
        yield CounterMetricFamily("turnlog_views_rows", "Rows inserted.", value=counts.rows)
        yield CounterMetricFamily("turnlog_views_inserts", "Inserts.", value=counts.inserts)
        yield CounterMetricFamily("turnlog_views_failures", "Inserts that were put off.", value=counts.failures)
        yield CounterMetricFamily("turnlog_views_erased", "Conversations erased.", value=counts.erased)
        yield GaugeMetricFamily(
            "turnlog_views_degraded", "1: ClickHouse cannot be written.", value=bool(self._step.trouble)
        )
