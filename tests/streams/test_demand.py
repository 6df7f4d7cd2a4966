"""Demand: windows, what is said when, what outlives a restart, and the numbers that are served."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from schemas.values import Usage
from streams.demand.emitter import POOLS_MAX, Emitter
from streams.demand.forecast import Smoothing
from streams.demand.latest import NUMBERS, Latest
from streams.demand.pool import Rules, Said
from streams.demand.windows import Window, after, last_closed
from streams.metrics import Series
from tests.streams.events import admitted, finished, leased, registered
from tests.streams.told import RULES, WINDOW_MS, Told, busy, counted, paid, reader

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
    emitter.hear("default", 0)
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
            told.emitter.hear("default", until * WINDOW_MS)
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


def test_the_pool_that_was_silent_longest_is_forgotten() -> None:
    told = Told()
    for number in range(POOLS_MAX + 1):
        told.of(busy(1), start_ms=number * WINDOW_MS, pool=f"p{number}")
    assert "p0" not in told.kept
    assert {"p1", f"p{POOLS_MAX}"} <= told.kept.keys()


# --- numbers ---


def test_the_newest_window_is_served_per_second() -> None:
    latest = Latest()
    latest.said(Told().of(busy(60)))
    numbers = latest.numbers(WINDOW_MS + 1)
    assert numbers.keys() == NUMBERS.keys()
    of_paid = {name: values.get(("default", "paid")) for name, values in numbers.items()}
    assert of_paid["turnlog_demand_arrivals_per_s"] == 6
    assert of_paid["turnlog_demand_forecast_arrivals_per_s"] == 6
    assert of_paid["turnlog_demand_output_tokens_per_s"] == 2
    assert of_paid["turnlog_demand_service_ms_mean"] == 2_000
    assert numbers["turnlog_demand_arrivals_per_s"][("default", "free")] == 0
    assert numbers["turnlog_workers"] == {("default",): 1}
    assert numbers["turnlog_desired_replicas"] == {("default",): 3}


def test_no_traffic_is_served_as_zero_and_no_news_not_at_all() -> None:
    registry, now_ms = CollectorRegistry(), WINDOW_MS + 3_000
    latest = Latest()

    def served() -> str:
        return generate_latest(registry).decode()

    Series(NUMBERS, lambda: latest.numbers(now_ms), registry)
    latest.said(Told().of(counted(leased())))
    assert 'turnlog_demand_arrivals_per_s{pool="default",tier="paid"} 0.0' in served()
    assert 'turnlog_workers{pool="default"} 1.0' in served()
    now_ms = 4 * WINDOW_MS
    assert "default" not in served()
    assert "# HELP turnlog_workers" in served()


def test_of_a_silent_pool_nothing_is_kept() -> None:
    told, latest = Told(), Latest()
    latest.said(told.of(busy(1), pool="gone"))
    latest.said(told.of(busy(1), start_ms=9 * WINDOW_MS))
    assert latest.numbers(0)["turnlog_workers"] == {("default",): 1}


@pytest.mark.parametrize("member", ["arrivals", "forecast_arrivals"])
def test_said_again_counts_once(member: str) -> None:
    latest, said = Latest(), Told().of(busy(2))
    latest.said(said)
    latest.said([replace(one) for one in said])
    assert len(latest.numbers(0)[f"turnlog_demand_{member}_per_s"]) == 2
