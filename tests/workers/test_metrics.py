"""What a worker tells Prometheus."""

import msgspec
from msgspec.structs import asdict
from prometheus_client import CollectorRegistry

from inference_workers.engine import EngineStats
from inference_workers.metrics import GAUGES, TOTALS, EngineMetrics

STATS = EngineStats(
    active=3,
    queued=2,
    kv_tokens_used=500,
    prompt_tokens=900,
    cached_tokens=400,
    output_tokens=70,
    preemptions=1,
    step_ms=12.5,
)
LABELS = {"pool": "gpu", "model": "large"}


def test_every_number_of_an_engine_has_its_metric() -> None:
    assert {*GAUGES, *TOTALS} == set(EngineStats.__struct_fields__)


def test_the_newest_stats_are_served_with_pool_and_model() -> None:
    registry = CollectorRegistry()
    metrics = EngineMetrics("gpu", "large", registry)
    assert list(registry.collect()) == []
    metrics.take(asdict(STATS))
    metrics.take(asdict(msgspec.structs.replace(STATS, active=4)) | {"unanswered_aborts": 0})

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"turnlog_worker_{name}", LABELS)

    assert (value("running"), value("waiting"), value("kv_tokens_used")) == (4, 2, 500)
    assert (value("prompt_tokens_total"), value("cached_tokens_total"), value("output_tokens_total")) == (900, 400, 70)
    assert (value("preemptions_total"), value("step_seconds")) == (1, 0.0125)
    assert value("unanswered_aborts_total") == 0, "told from the start, so that the first one is an increase"


def test_what_an_engine_does_not_say_is_not_there() -> None:
    registry = CollectorRegistry()
    EngineMetrics("gpu", "large", registry).take(asdict(msgspec.structs.replace(STATS, step_ms=None)))
    assert registry.get_sample_value("turnlog_worker_step_seconds", LABELS) is None
