"""Demand: windows, what is said when, what outlives a restart, and the numbers that are served."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from schemas.values import Usage
from streams.demand.emitter import FLEETS_MAX, Emitter
from streams.demand.fleet import Fleet, Rules, Said
from streams.demand.forecast import Smoothing
from streams.demand.kept import take_over
from streams.demand.latest import NUMBERS, Latest
from streams.demand.windows import Window, after, last_closed
from streams.metrics import Series
from tests.streams.events import MODEL, admitted, finished, leased, registered
from tests.streams.told import FLEET, RULES, WINDOW_MS, Counting, Told, busy, counted, desired, measured, paid, reader

# --- windows ---


def test_a_window_counts_per_tier() -> None:
    usage = Usage(input_tokens=1, output_tokens=7)
    window = counted(
        admitted(1, prompt_tokens_estimate=5),
        admitted(2, tier="paid", prompt_tokens_estimate=6),
        finished(1, usage=usage, queued_ms=10, ran_ms=100),
        finished(2, usage=usage, queued_ms=30, ran_ms=300),
    )
    assert (window.demand("free").arrivals, window.demand("free").input_tokens) == (1, 5)
    of = window.demand("paid")
    assert (of.arrivals, of.input_tokens, of.output_tokens, of.queue_ms_mean) == (1, 6, 14, 20.0)
    assert of.service_ms_mean == 200.0


def test_a_finish_that_does_not_say_how_long_it_ran_changes_no_service_time() -> None:
    window = counted(finished(1, ran_ms=100), finished(2))
    assert (window.demand("paid").started, window.demand("paid").service_ms_mean) == (2, 100.0)


def test_what_is_handed_back_did_not_finish() -> None:
    assert counted(finished(1, returned=True, status=None)) == Window()


def test_a_finish_of_an_unknown_tier_is_not_counted() -> None:
    assert after(None, finished(1), None) == Window()


def test_slots_of_a_worker_are_those_registered_or_the_most_that_a_lease_shows() -> None:
    assert counted(registered(0, slots=8), leased(0, free_slots=2, running=1)).workers == {"i0": 8}
    assert counted(leased(1, free_slots=3, running=1), leased(1, free_slots=0, running=2)).workers == {"i1": 4}
    assert counted(leased(2, free_slots=0, running=2, waiting=5)).workers == {"i2": 2}
    assert counted(leased(3, free_slots=0, running=2, draining=True)).workers == {"i3": 0}


def test_only_windows_that_are_over_are_closed() -> None:
    assert last_closed(29_999, 10_000, 0) == 10_000
    assert last_closed(31_999, 10_000, 2_000) == 10_000
    assert last_closed(32_000, 10_000, 2_000) == 20_000


# --- what is said ---


def test_no_traffic_is_zero_demand_and_no_news_is_none() -> None:
    told = Told()
    assert [event.arrivals for event in paid(told.of(counted(leased())))] == [0]
    assert told.of(None, start_ms=WINDOW_MS) == []
    assert [event.arrivals for event in paid(told.of(busy(1), start_ms=2 * WINDOW_MS))] == [1]


def test_windows_that_were_missed_are_said_in_order_but_no_old_ones() -> None:
    emitter = Emitter(RULES, {})
    emitter.hear(FLEET, 0)
    said = emitter.say(10 * WINDOW_MS, lambda _, __: counted(leased()))
    assert [one.window_start_ms for one in paid(said)] == [8 * WINDOW_MS, 9 * WINDOW_MS, 10 * WINDOW_MS]


def test_a_window_whose_records_came_late_is_said_with_the_next_one() -> None:
    told = Told()
    told.of(busy(1))
    windows = {WINDOW_MS: busy(2), 2 * WINDOW_MS: busy(3)}
    assert told.emitter.say(WINDOW_MS, reader({})) == []
    said = told.emitter.say(2 * WINDOW_MS, reader(windows))
    assert [event.arrivals for event in paid(said)] == [2, 3]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.booleans()), max_size=40))
def test_no_window_is_said_twice_and_all_in_order_also_over_restarts(steps: list[tuple[bool, int, bool]]) -> None:
    told = Told()
    said: list[Said] = []
    until = 0
    for heard, further, restart in steps:
        until += further
        if restart:
            told = Told(told.kept)
        if heard:
            told.emitter.hear(FLEET, until * WINDOW_MS)
        said.extend(told.emitter.say(until * WINDOW_MS, lambda _, start: busy(start // WINDOW_MS % 3)))
    starts = [event.window_start_ms for event in paid(said)]
    assert starts == sorted(set(starts))
    assert len({event.identity() for event in said}) == len(said)


def test_a_restart_loses_nothing_of_what_was_learnt() -> None:
    hour = Rules(smoothing=Smoothing(window_ms=WINDOW_MS, slot_ms=2 * WINDOW_MS), scaling=RULES.scaling)
    first = Told(rules=hour)
    first.of(*(busy(n % 7) for n in range(20)))
    second = Told(dict(first.kept), rules=hour)
    following = [busy(n % 5) for n in range(20)]
    assert second.of(*following, start_ms=200_000) == first.of(*following, start_ms=200_000)


def test_what_was_learnt_in_windows_of_another_length_is_not_used() -> None:
    first = Told()
    first.of(busy(9))
    longer = Rules(smoothing=Smoothing(headroom=1.0, window_ms=2 * WINDOW_MS))
    [event] = paid(Told(first.kept, longer).of(busy(1), start_ms=2 * WINDOW_MS))
    assert event.forecast_arrivals == 1


def test_the_fleet_that_was_silent_longest_is_forgotten() -> None:
    told = Told()
    for number in range(FLEETS_MAX + 1):
        told.of(busy(1), start_ms=number * WINDOW_MS, fleet=Fleet("default", f"m{number}"))
    assert "numbers:default/m0" not in told.kept
    assert {"numbers:default/m1", f"numbers:default/m{FLEETS_MAX}"} <= told.kept.keys()


# --- several models in one pool ---

LARGE, SMALL = Fleet("default", "large"), Fleet("default", "small")


def two_models(counting: Counting, rounds: int = 1) -> None:
    """Two workers of the large model and one of the small one; six arrivals of the one, two of the other."""
    for inbox, model, slots in ((0, "large", 2), (1, "large", 2), (2, "small", 8)):
        counting.take(registered(inbox, model=model, slots=slots), offset=10 + inbox)
    for number in range(8 * rounds):
        model, inbox, ran_ms = ("small", 2, 1_000) if number % 4 == 0 else ("large", number % 2, 10_000)
        counting.take(admitted(number, model=model, tier="paid"))
        counting.take(finished(number, inbox=inbox, epoch=10 + inbox, ran_ms=ran_ms))


def test_models_of_one_pool_have_numbers_of_their_own() -> None:
    counting, told = Counting(), Told()
    two_models(counting)
    of = {fleet: told.of(window, fleet=fleet) for fleet, window in counting.windows.items()}
    assert of.keys() == {LARGE, SMALL}
    [large], [small] = desired(of[LARGE]), desired(of[SMALL])
    # 0.6 a second of 10 s each, on workers with 2 slots; 0.2 a second of 1 s, on one with 8
    assert (large.model, large.workers, large.slots_per_worker, large.slots_needed, large.replicas) == (
        "large", 2, 2, 6, 3,
    )  # fmt: skip
    assert (small.model, small.workers, small.slots_per_worker, small.slots_needed, small.replicas) == (
        "small", 1, 8, 0.2, 1,
    )  # fmt: skip
    assert [(one.model, one.arrivals, one.service_ms_mean) for one in paid(of[LARGE] + of[SMALL])] == [
        ("large", 6, 10_000),
        ("small", 2, 1_000),
    ]


def test_what_waits_for_one_model_wishes_for_workers_of_it_alone() -> None:
    counting, told = Counting(), Told()
    two_models(counting)
    told.emitter.hear(LARGE, 0)
    told.emitter.hear(SMALL, 0)
    told.emitter.measured(measured(40, at_ms=1_000, model="small"))
    said = told.emitter.say(0, lambda fleet, _: counting.windows[fleet])
    assert [(one.model, one.slots_needed) for one in desired(said)] == [("large", 6), ("small", 0.2 + 40 * 1 / 10)]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=5))
def test_with_one_model_in_a_pool_its_numbers_are_the_pools(arrivals: list[int]) -> None:
    """Admissions, leases and finishes of one model are one window, however they name it."""
    for each in arrivals:
        counting = Counting()
        counting.take(registered(slots=4), offset=7)
        for number in range(each):
            counting.take(admitted(number, tier="paid"))
            counting.take(finished(number, epoch=7, ran_ms=2_000))
        counting.take(leased(epoch=7))
        asked = (admitted(number, tier="paid") for number in range(each))
        done = (finished(number, ran_ms=2_000) for number in range(each))
        assert counting.windows == {FLEET: counted(registered(slots=4), *asked, *done)}


def test_a_reply_that_went_to_the_smaller_model_is_an_arrival_of_both() -> None:
    counting = Counting()
    counting.take(registered(2, model="small", slots=8), offset=12)
    counting.take(admitted(1, model="large", tier="paid", prompt_tokens_estimate=5))
    usage = Usage(input_tokens=4, output_tokens=3)
    assert counting.take(finished(1, inbox=2, epoch=12, ran_ms=500, usage=usage)) == SMALL
    large, small = (counting.windows[one].demand("paid") for one in (LARGE, SMALL))
    assert (large.arrivals, large.ran, small.arrivals, small.input_tokens, small.ran_ms) == (1, 0, 1, 4, 500)


def test_a_finish_of_a_worker_that_is_not_known_is_of_the_model_that_was_asked_for() -> None:
    counting = Counting()
    counting.take(admitted(1, model="large", tier="paid"))
    assert counting.take(finished(1, inbox=2, epoch=12)) == LARGE
    assert counting.windows[LARGE].demand("paid").arrivals == 1
    assert counting.take(finished(2, inbox=2, epoch=12)) is None
    assert counting.take(leased(2, epoch=12)) is None


def test_the_models_of_workers_outlive_a_restart() -> None:
    kept: dict[str, bytes] = {}
    two_models(Counting(kept))
    again = Counting(dict(kept))
    assert [again.take(leased(inbox, epoch=10 + inbox)) for inbox in range(3)] == [LARGE, LARGE, SMALL]
    again.take(registered(0, model="small", instance="next"), offset=20)
    assert again.take(registered(0, model="large"), offset=10) == LARGE
    assert (again.take(leased(0, epoch=10)), again.take(leased(0, epoch=20))) == (None, SMALL)


def test_of_workers_that_registered_before_anybody_listened_dispatch_tells() -> None:
    told = Told()
    told.emitter.measured(measured(0, at_ms=1_000, model="large", workers=3, slots=6))
    [event] = desired(told.of(counted(*(admitted(n, tier="paid", model="large") for n in range(20))), fleet=LARGE))
    assert (event.workers, event.slots_per_worker) == (3, 2)


OLD_NUMBERS = (
    b'{"window_ms":10000,"slot_ms":600000,"pool":{"said_ms":20000,"expected":{"paid/arrivals":'
    b'{"at_ms":20000,"level":9.0,"trend":0.5,"slot_sum":27,"slot_windows":3,"season":[]}},'
    b'"service":{"paid":{"total_ms":5705.0,"ran":2.8525},"free":{"total_ms":0.0,"ran":0.0}},"workers":{"i0":4},'
    b'"slots_per_worker":4.0,"replicas":{"desired":5,"lower":0,"highest":0}}}'
)
OLD_SEASON = b'{"paid/arrivals":[' + b",".join([b"[9.0]"] * 144) + b"]}"


def test_what_was_learnt_of_a_pool_with_one_model_is_that_models() -> None:
    kept = {"default": OLD_NUMBERS, "default/season": OLD_SEASON}
    take_over(kept, [FLEET, Fleet("other", MODEL)])
    assert kept.keys() == {f"numbers:default/{MODEL}", f"season:default/{MODEL}"}
    said = Told(kept).of(counted(leased(free_slots=0)), start_ms=3 * WINDOW_MS)
    # Nothing is asked for now: as many as before stay desired for a while.
    assert [(event.replicas, event.slots_per_worker) for event in desired(said)] == [(5, 4)]
    assert [event.seasonal for event in paid(said)] == [True]


def test_what_was_learnt_of_a_pool_with_several_models_is_of_none() -> None:
    kept = {"default": OLD_NUMBERS, "default/season": OLD_SEASON}
    take_over(kept, [LARGE, SMALL])
    assert kept == {}


def test_what_a_model_has_learnt_itself_is_not_taken_from_its_pool() -> None:
    told = Told()
    told.of(busy(1))
    own = dict(told.kept)
    told.kept["default"] = OLD_NUMBERS
    take_over(told.kept, [FLEET])
    assert told.kept == own


# --- numbers ---


def test_the_newest_window_is_served_per_second() -> None:
    latest = Latest()
    latest.said(Told().of(busy(60)))
    numbers = latest.numbers(WINDOW_MS + 1)
    assert numbers.keys() == NUMBERS.keys()
    of_paid = {name: values.get((*FLEET, "paid")) for name, values in numbers.items()}
    assert of_paid["turnlog_demand_arrivals_per_s"] == 6
    assert of_paid["turnlog_demand_forecast_arrivals_per_s"] == 6
    assert of_paid["turnlog_demand_output_tokens_per_s"] == 2
    assert of_paid["turnlog_demand_service_ms_mean"] == 2_000
    assert numbers["turnlog_demand_arrivals_per_s"][(*FLEET, "free")] == 0
    assert numbers["turnlog_workers"] == {FLEET: 1}
    assert numbers["turnlog_desired_replicas"] == {FLEET: 3}


def test_no_traffic_is_served_as_zero_and_no_news_not_at_all() -> None:
    registry, now_ms = CollectorRegistry(), WINDOW_MS + 3_000
    latest = Latest()

    def served() -> str:
        return generate_latest(registry).decode()

    Series(NUMBERS, lambda: latest.numbers(now_ms), registry)
    latest.said(Told().of(counted(leased())))
    labels = f'model="{MODEL}",pool="default"'
    assert f'turnlog_demand_arrivals_per_s{{{labels},tier="paid"}} 0.0' in served()
    assert f"turnlog_workers{{{labels}}} 1.0" in served()
    now_ms = 4 * WINDOW_MS
    assert "default" not in served()
    assert "# HELP turnlog_workers" in served()


def test_of_a_silent_fleet_nothing_is_kept() -> None:
    told, latest = Told(), Latest()
    latest.said(told.of(busy(1), fleet=Fleet("default", "gone")))
    latest.said(told.of(busy(1), start_ms=9 * WINDOW_MS))
    assert latest.numbers(0)["turnlog_workers"] == {FLEET: 1}


@pytest.mark.parametrize("member", ["arrivals", "forecast_arrivals"])
def test_said_again_counts_once(member: str) -> None:
    latest, said = Latest(), Told().of(busy(2))
    latest.said(said)
    latest.said([replace(one) for one in said])
    assert len(latest.numbers(0)[f"turnlog_demand_{member}_per_s"]) == 2
