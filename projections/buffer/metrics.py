"""What the stream buffer tells Prometheus; read from the step when asked."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from projections.buffer.step import BufferStep


class BufferMetrics(Collector):
    """Of the stream buffer."""

    def __init__(self, step: BufferStep) -> None:
        self._step = step

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        counts = self._step.counts
        yield CounterMetricFamily("turnlog_buffer_frames", "Frames written.", value=counts.frames)
        yield CounterMetricFamily("turnlog_buffer_calls", "Function calls sent.", value=counts.calls)
        yield CounterMetricFamily(
            "turnlog_buffer_rewinds", "Losses of Redis that were made good.", value=counts.rewinds
        )
        yield CounterMetricFamily("turnlog_buffer_failures", "Writes that were put off.", value=counts.failures)
        yield GaugeMetricFamily("turnlog_buffer_replies_held", "Replies held.", value=self._step.open_replies())
        yield GaugeMetricFamily(
            "turnlog_buffer_degraded", "1: Redis cannot be written.", value=bool(self._step.trouble)
        )
