"""What the streams tell Prometheus."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from schemas.values import STAGES, Usage
from streams.dispatch.limits import Limits
from streams.dispatch.load import Thresholds
from streams.dispatch.numbers import NUMBERS
from streams.dispatch.step import Dispatch
from streams.metrics import Numbers
from tests.streams.driver import NUMBER, Driver
from tests.streams.events import MODEL, admitted, finished, gen_cancelled, leased, registered, released


def test_numbers_with_labels_and_without_are_served_together_and_leave_with_what_they_were_of() -> None:
    registry = CollectorRegistry()
    values: dict[str, Any] = {"plain": 3, "held": {("a",): 1.5, ("b",): 2}, "done_total": {("x", "y"): 7}}
    names = {"plain": "Help", "held": ("Help", ("pool",)), "done_total": ("Help", ("pool", "code"))}
    numbers = Numbers(names, lambda: dict(values), registry)
    assert registry.get_sample_value("plain") is None
    numbers.refresh()
    assert registry.get_sample_value("plain") == 3
    assert registry.get_sample_value("held", {"pool": "b"}) == 2
    assert registry.get_sample_value("done_total", {"pool": "x", "code": "y"}) == 7
    assert b"# TYPE done_total counter" in generate_latest(registry)
    values["held"] = {("a",): 4}
    numbers.refresh()
    assert registry.get_sample_value("held", {"pool": "a"}) == 1.5, "at most once a second"
    numbers._read_s -= 2
    numbers.refresh()
    assert registry.get_sample_value("held", {"pool": "a"}) == 4
    assert registry.get_sample_value("held", {"pool": "b"}) is None


STAGED = Limits(thresholds=Thresholds(shorten_ms=1_000, smaller_ms=2_000, refuse_ms=3_000))


class Served:
    """One dispatch process and what it serves."""

    def __init__(self, limits: Limits) -> None:
        self.drive = Driver(lambda: Dispatch(frozenset({"default"}), limits))
        self.registry = CollectorRegistry()
        self._numbers = Numbers(NUMBERS, self.dispatch.numbers, self.registry)

    @property
    def dispatch(self) -> Dispatch:
        step = self.drive.step
        assert isinstance(step, Dispatch)
        return step

    def value(self, name: str, **labels: str) -> float | None:
        self._numbers._read_s -= 2
        self._numbers.refresh()
        return self.registry.get_sample_value(f"turnlog_dispatch_{name}", {"pool": "default", **labels})

    def in_model(self, name: str, tier: str | None = None) -> float | None:
        return self.value(name, model=MODEL, **({"tier": tier} if tier else {}))


def test_what_waits_and_runs_is_told_by_pool_model_and_tier() -> None:
    served = Served(Limits())
    served.drive.take(
        registered(slots=2, kv_tokens=1_000), admitted(1), admitted(2, tier="paid"), admitted(3, tier="paid")
    )
    served.drive.take(admitted(4))
    served.drive.pass_time(1_000)
    assert (served.in_model("given", "paid"), served.in_model("given", "free")) == (2, 0)
    assert (served.in_model("waiting", "paid"), served.in_model("waiting", "free")) == (0, 2)
    assert (served.in_model("workers"), served.in_model("slots_left")) == (1, 0)
    assert served.in_model("kv_held_share") == pytest.approx(0.22)
    assert served.in_model("service_seconds") is None
    served.drive.pass_time(500)
    served.drive.take(finished(2, usage=Usage(input_tokens=9, output_tokens=5)))
    assert served.in_model("service_seconds") == pytest.approx(1.5)


def test_stages_and_forecasts_are_those_that_were_told_last() -> None:
    served = Served(STAGED)
    served.drive.take(registered(slots=2))
    served.drive.pass_time(1_000)
    assert (served.in_model("stage", "free"), served.in_model("wait_seconds", "free")) == (0, 0)
    served.drive.take(leased(), *(admitted(n) for n in range(3)))
    served.drive.pass_time(1_000)
    assert STAGES[int(served.in_model("stage", "free") or 0)] == "refuse"
    assert served.in_model("stage", "paid") == 0
    assert (served.in_model("wait_seconds", "free") or 0) > 3
    served.drive.pass_time(4_000)
    assert served.in_model("workers") == 0
    assert served.in_model("wait_seconds", "free") is None, "no worker: nobody can say"


def test_lost_attempts_ends_and_notices_are_counted() -> None:
    served = Served(Limits(attempts_max=2, no_worker_ms=0))
    served.drive.take(registered(), admitted(1))
    served.drive.pass_time(3_500)
    assert served.value("attempts_lost_total", reason="worker_lost") == 1
    served.drive.take(admitted(2))
    assert served.value("notices_total", code="no_worker") == 1
    served.drive.take(gen_cancelled(2))
    assert served.value("ends_total", code="cancelled") == 1
    served.dispatch.revoked(NUMBER)
    assert served.value("ends_total", code="cancelled") is None
    assert served.in_model("stage", "free") is None


def test_workers_that_leave_are_counted_by_reason_and_those_that_engines_let_down_from_zero_on() -> None:
    served = Served(Limits())
    served.drive.take(registered(0), registered(1), registered(2), admitted(1))
    assert served.value("workers_left_total", reason="engine_stuck") == 0
    served.drive.take(released(0, reason="engine_stuck"), released(1, epoch=1, reason="drained"))
    served.drive.take(released(2, epoch=0, reason="engine_stuck"))
    assert served.value("workers_left_total", reason="engine_stuck") == 1, "an older lease says nothing"
    assert served.value("workers_left_total", reason="drained") == 1


def test_a_worker_whose_engine_died_is_counted_also_when_its_replies_said_so_before() -> None:
    served = Served(Limits())
    served.drive.take(registered(0), admitted(1))
    served.drive.take(finished(1, status=None, returned=True, reason="engine_dead"), released(0, reason="engine_dead"))
    assert served.value("workers_left_total", reason="engine_dead") == 1
