"""Workers desired: Little's law, bounds, pace; and a working day that is served by those who obey."""

from math import sqrt
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from streams.demand.fleet import Rules
from streams.demand.scaling import Asked, Replicas, Scaling, decide, slots_needed, wish
from streams.demand.windows import Demand, Window
from tests.streams.events import admitted
from tests.streams.told import WINDOW_MS, Told, busy, counted, desired, measured


def test_slots_are_arrivals_times_service_time_and_the_backlogs_share() -> None:
    asked = [Asked(arrivals_per_s=3, service_ms=2_000), Asked(arrivals_per_s=1, service_ms=500)]
    assert slots_needed(asked, 0, 2_000, Scaling()) == 6.5
    assert slots_needed(asked, 60, 2_000, Scaling(backlog_s=30)) == 10.5


def test_workers_are_as_many_as_leave_the_slots_used_to_the_target() -> None:
    assert wish(9.5, 4, Scaling(target_utilisation=0.8), something=True) == 3
    assert wish(8.0, 4, Scaling(target_utilisation=1.0), something=True) == 2
    assert wish(1e9, 4, Scaling(replicas_max=7), something=True) == 7
    assert wish(0, 4, Scaling(replicas_min=2), something=False) == 2


def test_where_anything_is_asked_for_one_worker_is_wanted_though_nothing_is_known_of_any() -> None:
    assert wish(0, 0, Scaling(replicas_min=0), something=True) == 1
    assert wish(0, 0, Scaling(replicas_min=0), something=False) == 0


def test_more_workers_at_once_and_fewer_after_a_while() -> None:
    scaling = Scaling(scale_down_windows=3)
    state: Replicas | None = None
    wanted = []
    for wished in (2, 5, 1, 3, 2, 2, 4, 1, 1, 1):
        state = decide(state, wished, scaling)
        wanted.append(state.desired)
    assert wanted == [2, 5, 5, 5, 3, 3, 4, 4, 4, 1]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(1, 8))
def test_no_fewer_are_desired_than_any_of_the_last_windows_wished_for(wishes: list[int], windows: int) -> None:
    scaling = Scaling(scale_down_windows=windows, replicas_max=20)
    state: Replicas | None = None
    for number, wished in enumerate(wishes):
        state = decide(state, wished, scaling)
        recent = wishes[max(0, number - windows + 1) : number + 1]
        assert wished <= state.desired <= max(wishes[: number + 1])
        assert state.desired >= max(recent) or number + 1 > windows


def test_desired_are_never_more_than_allowed_by_now() -> None:
    assert decide(Replicas(10), 4, Scaling(replicas_max=4)) == Replicas(4)


def test_demand_wishes_for_the_workers_that_it_needs() -> None:
    told = Told()
    [event] = desired(told.of(busy(60)))
    # 6 a second, 2 s each: 12 slots of workers with 4
    assert (event.workers, event.slots_per_worker, event.slots_needed, event.replicas) == (1, 4, 12, 3)


def test_what_waits_wishes_for_workers_though_nothing_else_is_heard() -> None:
    told = Told()
    told.emitter.measured(measured(3, at_ms=1_000))
    assert [event.replicas for event in desired(told.of(None))] == [1]
    told.emitter.measured(measured(0, at_ms=11_000))
    assert told.of(None, start_ms=WINDOW_MS) == []


def test_a_backlog_wishes_for_more() -> None:
    told = Told()
    told.emitter.measured(measured(40, at_ms=1_000))
    [event] = desired(told.of(busy(60)))
    assert event.slots_needed == 12 + 40 * 2 / 10


def test_what_was_measured_before_the_window_does_not_count() -> None:
    told = Told()
    told.emitter.measured(measured(40, at_ms=1_000))
    before, after_it = desired(told.of(busy(60), busy(60)))
    assert (before.slots_needed, after_it.slots_needed) == (20, 12)


def test_without_workers_the_slots_of_the_last_ones_are_taken() -> None:
    _, last = desired(Told().of(busy(60), counted(*(admitted(n, tier="paid") for n in range(60)))))
    assert (last.workers, last.slots_per_worker, last.replicas) == (0, 4, 3)


SERVICE_S, SLOTS, DAY = 8.0, 4, 8_640
START_WINDOWS = 30
"""A worker serves five minutes after it was desired."""


def office(window: int) -> float:
    """Arrivals a second: 0.2 at night, 3 by day, twenty minutes from one to the other at eight and at six."""
    hour = window % DAY / 360
    return 0.2 + 2.8 * (min(1.0, max(0.0, (hour - 8) * 3)) - min(1.0, max(0.0, (hour - 18) * 3)))


def served(rules: Rules, days: int) -> list[float]:
    """Slots that serve, over those that the load takes, in each window of the last day. Arrivals are noisy."""
    told, random, wished, ratios = Told(rules=rules), Random(3), [1], []
    for window in range(days * DAY):
        mean = office(window) * WINDOW_MS / 1000
        arrivals = max(0, round(random.gauss(mean, sqrt(mean))))
        serving = max(1, min(wished[-START_WINDOWS:]))
        asked = Demand(arrivals=arrivals, started=arrivals, ran=arrivals, ran_ms=round(arrivals * SERVICE_S * 1000))
        heard = Window(tiers={"paid": asked}, workers={f"w{n}": SLOTS for n in range(serving)})
        wished.extend(event.replicas for event in desired(told.of(heard, start_ms=window * WINDOW_MS)))
        ratios.append(serving * SLOTS / (office(window) * SERVICE_S))
    return ratios[-DAY:]


def test_whoever_obeys_has_the_slots_for_the_second_day_before_it_begins() -> None:
    ratios = served(Rules(), days=2)
    assert min(ratios) >= 1
    assert sum(ratios) / DAY < 2.6
