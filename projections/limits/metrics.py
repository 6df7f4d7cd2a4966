"""What the limits' projection tells Prometheus; read from the step when asked."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from projections.limits.step import LimitsStep


class LimitsMetrics(Collector):
    """Of the limits."""

    def __init__(self, step: LimitsStep) -> None:
        self._step = step

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        counts = self._step.counts
        yield CounterMetricFamily("turnlog_limits_settled", "Replies settled.", value=counts.settled)
        yield CounterMetricFamily(
            "turnlog_limits_late", "Of them, those whose reservation was gone.", value=counts.late
        )
        yield CounterMetricFamily(
            "turnlog_limits_repeated", "Records that were settled before, or are too old.", value=counts.repeated
        )
        yield CounterMetricFamily("turnlog_limits_tokens_back", "Tokens given back.", value=counts.tokens_back)
        yield CounterMetricFamily(
            "turnlog_limits_tokens_more", "Tokens charged beyond what was reserved.", value=counts.tokens_more
        )
        yield CounterMetricFamily(
            "turnlog_limits_rebuilds", "Partitions read again after a loss of Redis.", value=counts.rebuilds
        )
        yield CounterMetricFamily("turnlog_limits_failures", "Writes that were put off.", value=counts.failures)
        yield GaugeMetricFamily(
            "turnlog_limits_degraded", "1: Redis cannot be written.", value=bool(self._step.trouble)
        )
        yield GaugeMetricFamily(
            "turnlog_limits_whole", "1: the buckets hold all that was taken.", value=self._step.whole
        )
