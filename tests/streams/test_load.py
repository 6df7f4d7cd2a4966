"""The load of a pool: forecasts by Little's law, and stages that begin at once and end slowly."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.values import STAGES, Priority, Stage
from streams.dispatch.load import (
    HOLD_GUESS_MS,
    RETRY_S_MAX,
    Capacity,
    Level,
    Thresholds,
    ahead_of,
    held_for,
    least,
    next_level,
    not_above,
    retry_after_s,
    wait_ms,
)

T = Thresholds()


def after(before: Level, wait: int | None, flow_ms: int = 0, *, at_least: Stage = "full", paid: bool = False) -> Level:
    priority: Priority = "paid" if paid else "free"
    return next_level(before, wait, least=at_least, priority=priority, thresholds=T, flow_ms=flow_ms)


@pytest.mark.parametrize(
    ("capacity", "ahead", "hold_ms", "wait"),
    [
        (Capacity(), 5, 1_000.0, None),
        (Capacity(slots=4, free_slots=4), 0, 1_000.0, 0),
        (Capacity(slots=4, free_slots=4), 3, 1_000.0, 0),
        (Capacity(slots=4, free_slots=4), 4, 1_000.0, 250),
        (Capacity(slots=4, running=4), 0, 1_000.0, 250),
        (Capacity(slots=4, running=4), 7, 1_000.0, 2_000),
        (Capacity(slots=4, running=2), 7, 1_000.0, 4_000),
        (Capacity(slots=4, running=4), 3, None, HOLD_GUESS_MS),
    ],
)
def test_a_forecast_is_what_waits_ahead_over_what_works_times_how_long_it_takes(
    capacity: Capacity, ahead: int, hold_ms: float | None, wait: int | None
) -> None:
    assert wait_ms(capacity, ahead, hold_ms) == wait


def test_free_traffic_has_all_ahead_of_it_and_paid_traffic_only_what_is_paid() -> None:
    assert ahead_of("paid", {"paid": 3, "free": 5}) == 3
    assert ahead_of("free", {"paid": 3, "free": 5}) == 8


@pytest.mark.parametrize("stage", ["shorten", "smaller_model", "refuse"])
@pytest.mark.parametrize("paid", [False, True])
def test_a_stage_begins_at_its_threshold_and_not_below(stage: Stage, paid: bool) -> None:
    at = round(T.of(stage, "paid" if paid else "free"))
    before = STAGES[STAGES.index(stage) - 1]
    assert after(Level(), at - 1, paid=paid).stage == before
    assert after(Level(), at, paid=paid).stage == stage
    assert after(Level(), at + 1, paid=paid).stage == stage


def test_paid_thresholds_are_so_many_times_as_high() -> None:
    assert T.of("refuse", "paid") == T.paid_patience * T.of("refuse", "free")


def test_a_stage_is_left_one_at_a_time_when_the_forecast_has_been_low_for_long_enough() -> None:
    level = Level("refuse")
    seen: list[Stage] = []
    for flow_ms in range(0, 12_001, 500):
        level = after(level, 0, flow_ms)
        seen.append(level.stage)
    changes = [(n * 500, stage) for n, stage in enumerate(seen) if n == 0 or seen[n - 1] != stage]
    assert changes == [(0, "refuse"), (3_000, "smaller_model"), (6_000, "shorten"), (9_000, "full")]


@pytest.mark.parametrize(("wait", "left"), [(999, True), (1_000, False), (1_001, False)])
def test_a_stage_is_left_only_below_half_of_its_threshold(wait: int, left: bool) -> None:
    level = after(Level("shorten"), wait, 0)
    assert (after(level, wait, T.hold_ms).stage == "full") == left


@pytest.mark.parametrize(("ms", "left"), [(2_999, False), (3_000, True), (3_001, True)])
def test_a_stage_is_left_only_after_its_time(ms: int, left: bool) -> None:
    assert (after(after(Level("shorten"), 0, 0), 0, ms).stage == "full") == left


def test_a_forecast_that_rises_in_between_begins_the_time_anew() -> None:
    level = after(Level("shorten"), 0, 0)
    level = after(level, 1_500, 2_900)
    level = after(level, 0, 3_000)
    assert after(level, 0, 5_900).stage == "shorten"
    assert after(level, 0, 6_000).stage == "full"


@settings(deadline=None)
@given(st.data(), st.sampled_from(STAGES[1:]), st.booleans())
def test_a_forecast_that_oscillates_inside_the_band_changes_no_stage(
    data: st.DataObject, stage: Stage, paid: bool
) -> None:
    priority = "paid" if paid else "free"
    bottom = round(T.leave_share * T.of(stage, priority))
    above = STAGES[STAGES.index(stage) + 1 :]
    top = round(T.of(above[0], priority)) - 1 if above else 10**9
    level = Level(stage)
    for n, wait in enumerate(data.draw(st.lists(st.integers(bottom, top), max_size=200))):
        level = after(level, wait, 1_000 * n, paid=paid)
        assert level.stage == stage


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 5_000)), max_size=100))
def test_a_stage_never_goes_down_by_more_than_one_nor_sooner_than_its_time(steps: list[tuple[int, int]]) -> None:
    level, flow_ms, changed_ms = Level(), 0, -T.hold_ms
    for wait, ms in steps:
        flow_ms += ms
        before, level = level, after(level, wait, flow_ms)
        fell = STAGES.index(before.stage) - STAGES.index(level.stage)
        assert fell <= 1
        if fell == 1:
            assert flow_ms - changed_ms >= T.hold_ms
        if level.stage != before.stage:
            changed_ms = flow_ms


def test_workers_that_say_they_are_full_of_nothing_do_not_work() -> None:
    assert wait_ms(Capacity(workers=2, slots=64, free_slots=0, running=0), 100, 1_000.0) is None
    assert wait_ms(Capacity(workers=2, slots=64, free_slots=0, running=1), 100, 1_000.0) is not None


def test_what_is_not_known_changes_nothing() -> None:
    for stage in STAGES:
        assert after(Level(stage, 5), None, 100_000) == Level(stage, 5)


def test_a_full_cache_begins_the_first_stage_and_no_further_one() -> None:
    assert after(Level(), 0, at_least="shorten").stage == "shorten"
    assert after(Level("shorten", 0), 0, 100_000, at_least="shorten").stage == "shorten"
    assert after(Level("refuse", 0), 0, 100_000, at_least="shorten").stage == "smaller_model"


@pytest.mark.parametrize("free", STAGES)
@pytest.mark.parametrize(("held", "full"), [(949, False), (950, True), (951, True)])
def test_a_full_cache_counts_for_paid_traffic_only_when_free_traffic_is_refused(
    free: Stage, held: int, full: bool
) -> None:
    has = Capacity(workers=1, slots=8, running=4, kv_tokens=1_000, kv_tokens_held=held)
    assert least("free", has, 1, free, T) == ("shorten" if full else "full")
    assert least("paid", has, 1, free, T) == ("shorten" if full and free == "refuse" else "full")
    assert least("free", has, 0, free, T) == least("paid", has, 0, "refuse", T) == "full", "nothing waits"


def test_workers_of_which_none_has_renewed_begin_the_first_stage_for_free_traffic_alone() -> None:
    silent = Capacity(workers=2, stale=2)
    assert (least("free", silent, 0, "full", T), least("paid", silent, 9, "refuse", T)) == ("shorten", "full")
    for one in (Capacity(), Capacity(workers=1), Capacity(workers=2, stale=1, slots=8, running=8)):
        assert least("free", one, 0, "full", T) == "full", "none there, draining, or one of them is known"
    assert after(Level(), None, at_least="shorten") == Level("shorten")
    assert after(Level("refuse"), None, at_least="shorten") == Level("refuse")


def test_a_stage_is_left_its_time_after_workers_are_known_again() -> None:
    level = after(Level("shorten", 0), None, 2_000, at_least="shorten")
    level = after(level, 0, 2_500)
    assert after(level, 0, 5_400).stage == "shorten"
    assert after(level, 0, 5_500).stage == "full"


def test_a_cache_of_unknown_size_is_never_full() -> None:
    assert least("free", Capacity(workers=1, slots=8, running=8), 5, "full", T) == "full"


def test_stages_that_are_switched_off_are_full_service() -> None:
    off = Thresholds(enabled=False)
    level = next_level(Level("refuse"), 10**6, least="refuse", priority="free", thresholds=off, flow_ms=0)
    assert level == Level()


@given(st.sampled_from(STAGES), st.sampled_from(STAGES))
def test_paid_is_never_above_free(paid: Stage, free: Stage) -> None:
    shown = not_above(paid, free)
    assert STAGES.index(shown) <= STAGES.index(free)
    assert STAGES.index(shown) <= STAGES.index(paid)


@pytest.mark.parametrize(
    ("wait", "after_s"), [(None, 30), (0, 1), (7_500, 1), (9_500, 2), (15_000, 8), (10**7, RETRY_S_MAX)]
)
def test_what_is_refused_is_worth_another_try_when_the_stage_may_have_ended(wait: int | None, after_s: int) -> None:
    assert retry_after_s(wait, "free", T) == after_s


def test_how_long_generations_hold_their_slots_is_a_moving_mean() -> None:
    assert held_for(None, 400) == 400
    assert held_for(1_000.0, 2_000) == 1_100
