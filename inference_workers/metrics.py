"""What a worker tells Prometheus of its engine: the newest of what the engine says of itself."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

LABELS = ("pool", "model")

GAUGES: Mapping[str, tuple[str, str, float]] = {
    "active": ("turnlog_worker_running", "Generations that have a slot.", 1.0),
    "queued": ("turnlog_worker_waiting", "Generations that wait inside the engine.", 1.0),
    "kv_tokens_used": ("turnlog_worker_kv_tokens_used", "Tokens in the KV cache that generations use.", 1.0),
    "step_ms": ("turnlog_worker_step_seconds", "Duration of the engine's last iteration, where it says.", 0.001),
    "age_s": ("turnlog_worker_stats_age_seconds", "How old these numbers are.", 1.0),
}
"""Member of the engine's stats -> name, help, and what one of it is in the unit of the name."""
TOTALS: dict[str, tuple[str, str]] = {
    "prompt_tokens": ("turnlog_worker_prompt_tokens", "Prompt tokens since the engine started, cached ones included."),
    "cached_tokens": ("turnlog_worker_cached_tokens", "Of these, tokens whose work was in the cache."),
    "output_tokens": ("turnlog_worker_output_tokens", "Tokens generated since the engine started."),
    "preemptions": ("turnlog_worker_preemptions", "Times that a running generation lost its KV blocks to others."),
}
OWN: dict[str, tuple[str, str]] = {
    "unanswered_aborts": (
        "turnlog_worker_unanswered_aborts",
        "Generations whose slot the engine did not give up when it was told to.",
    ),
}
"""What the worker counts itself."""


class EngineMetrics(Collector):
    """Serves what `take` got last; nothing before the first time, and no number that the engine does not say."""

    def __init__(self, pool: str, model: str, registry: CollectorRegistry) -> None:
        self._labels = (pool, model)
        self._stats: Mapping[str, float | None] = {}
        registry.register(self)

    def take(self, stats: Mapping[str, float | None]) -> None:
        """The engine's stats and the worker's own, by the names of their members; others are ignored."""
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """The metrics now. Called from the thread that serves them."""
        stats = self._stats
        for member, (name, text, unit) in GAUGES.items():
            value = stats.get(member)
            if value is not None:
                gauge = GaugeMetricFamily(name, text, labels=LABELS)
                gauge.add_metric(self._labels, value * unit)
                yield gauge
        for member, (name, text) in (TOTALS | OWN).items():
            value = stats.get(member)
            if value is not None:
                total = CounterMetricFamily(name, text, labels=LABELS)
                total.add_metric(self._labels, value)
                yield total
