"""What scheduled reconciliation tells Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from projections.reconcile.findings import Outcome


class ReconcileMetrics:
    """Of the last run that came to its end, and how many did not."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._failures = Counter("turnlog_reconcile_failures", "Runs that did not end.", registry=self.registry)

    def _set(self, name: str, said: str, value: float) -> None:
        """What no run has told yet is absent."""
        if name not in self._gauges:
            self._gauges[name] = Gauge(f"turnlog_reconcile_{name}", said, registry=self.registry)
        self._gauges[name].set(value)

    def serve(self, port: int, host: str = "127.0.0.1") -> None:
        """Serve them on a port."""
        start_http_server(port, host, self.registry)

    def done(self, outcome: Outcome, at_s: float) -> None:
        """A run has ended."""
        self._set("differences", "Differences that the last run left.", outcome.left)
        self._set("found", "Differences that the last run found, repaired ones included.", outcome.found)
        self._set("records", "Records of the log that the last run read.", outcome.records)
        self._set("behind", "Records that the projection had not come to: not judged.", outcome.behind)
        self._set("last_run_seconds", "Unix time at which the last run ended.", at_s)

    def failed(self) -> None:
        """A run did not come to its end."""
        self._failures.inc()
