"""What the API process counts, for Prometheus. One registry per process, passed as a value."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCY_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """The instruments. `route` is the path's template, so its values are few."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "turnlog_api_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self.latency_s = Histogram(
            "turnlog_api_request_seconds",
            "Time until the answer began.",
            ("method", "route"),
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self.streams_open = Gauge("turnlog_api_streams_open", "Open event streams.", registry=self.registry)
        self.streams_cut_off = Counter(
            "turnlog_api_streams_cut_off", "Streams whose client took nothing for too long.", registry=self.registry
        )
        self.subscriptions = Gauge(
            "turnlog_api_subscriptions", "Replies that are followed live.", registry=self.registry
        )
        self.store_failures = Counter(
            "turnlog_api_store_failures", "Calls that a store did not answer.", ("store",), registry=self.registry
        )
        self.degraded_sends = Counter(
            "turnlog_api_degraded_sends", "Sends accepted while Redis was away.", registry=self.registry
        )
        self.repeated_sends = Counter(
            "turnlog_api_repeated_sends", "Sends that were known already.", registry=self.registry
        )
        self.refused_sends = Counter(
            "turnlog_api_refused_sends",
            "Sends and regenerations refused at the door, before anything was written.",
            ("code",),
            registry=self.registry,
        )

        self.issuer_fetches = Counter(
            "turnlog_api_issuer_fetches",
            "Fetches of the keys of an issuer of tokens.",
            ("issuer", "outcome"),
            registry=self.registry,
        )
        self.sends_without_limits = Counter(
            "turnlog_api_sends_without_limits",
            "Sends decided by this process alone, because Redis was away or had lost the buckets.",
            ("mode",),
            registry=self.registry,
        )
        self.spend_warned = Counter(
            "turnlog_api_spend_warned", "Sends of accounts that have spent their soft cap.", registry=self.registry
        )
        self.spend_unknown = Counter(
            "turnlog_api_spend_unknown",
            "Questions for what an account has spent that were not answered.",
            registry=self.registry,
        )

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)
