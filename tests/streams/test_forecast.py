"""The forecast of a series: what is steady, what repeats by the day, what is odd, what was not heard."""

from collections.abc import Callable, Iterable
from math import cos, pi
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.demand.forecast import DAY_MS, Expected, Smoothing, forecast, observe, usual

MINUTE_MS = 60_000
PLAIN = Smoothing(headroom=1.0)
MINUTES = Smoothing(headroom=1.0, window_ms=MINUTE_MS)
SOON_MS = 10 * MINUTE_MS
STEP = 100.0


def after(
    values: Iterable[float | None], smoothing: Smoothing, expected: Expected | None = None, start_ms: int = 0
) -> Expected:
    """None: a window that was not heard."""
    for number, value in enumerate(values):
        if value is not None:
            expected = observe(expected, value, start_ms + number * smoothing.window_ms, smoothing)
    assert expected is not None
    return expected


def minutes(day: int, demand: Callable[[int], float], last: int = 1_440) -> list[float]:
    return [demand(day * 1_440 + minute) for minute in range(last)]


def office(minute: int) -> float:
    """Nothing at night, from nine to five `STEP`."""
    return STEP if 540 <= minute % 1_440 < 1_020 else 0.0


def hill(minute: int) -> float:
    """Smooth: 10 at midnight, 190 at noon."""
    return 100 - 90 * cos(2 * pi * minute / 1_440)


def at(days: Iterable[Callable[[int], float]], minute: int, smoothing: Smoothing = MINUTES) -> Expected:
    """After whole days, and the last one up to a minute."""
    *whole, last = days
    values = [value for day, demand in enumerate(whole) for value in minutes(day, demand)]
    return after([*values, *minutes(len(whole), last, minute)], smoothing)


def test_a_steady_rise_is_foreseen() -> None:
    expected = after(range(0, 1_000, 10), PLAIN)
    assert abs(forecast(expected, PLAIN.window_ms, PLAIN).value - 1_000) < 5


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=1, max_size=100).filter(any))
def test_a_forecast_is_never_negative(values: list[float | None]) -> None:
    coarse = Smoothing(slot_ms=DAY_MS // 6, window_ms=DAY_MS // 24)
    expected = after(values, coarse)
    for ahead in range(1, 8):
        assert forecast(expected, ahead * coarse.window_ms, coarse).value >= 0


@given(st.floats(0, 1e6), st.lists(st.booleans(), min_size=1, max_size=150).filter(any))
def test_a_constant_demand_is_foreseen_with_headroom_whatever_was_missed(value: float, heard: list[bool]) -> None:
    coarse = Smoothing(slot_ms=DAY_MS // 6, window_ms=DAY_MS // 24)
    expected = after([value if one else None for one in heard], coarse)
    for ahead in (1, 5):
        foreseen = forecast(expected, ahead * coarse.window_ms, coarse)
        assert foreseen.value == pytest.approx(value * 1.25, rel=1e-9, abs=1e-9)


def test_a_step_that_comes_every_day_is_foreseen_on_the_second_day_before_it_comes() -> None:
    first, second, third = (forecast(at([office] * days, 536), SOON_MS, MINUTES) for days in (1, 2, 3))
    assert (first.value, first.seasonal) == (0, False)
    assert second.seasonal
    assert second.value == pytest.approx(STEP, rel=0.05)
    assert third.value == pytest.approx(STEP, rel=0.05)


def test_the_end_of_a_day_is_foreseen_too() -> None:
    assert forecast(at([office] * 3, 1_015), SOON_MS, MINUTES).value == pytest.approx(0, abs=0.05 * STEP)


def test_a_repeated_day_is_foreseen_within_two_percent_of_its_height() -> None:
    expected: Expected | None = None
    errors = []
    for minute, value in enumerate(minutes(0, hill, 3 * 1_440)):
        expected = observe(expected, value, minute * MINUTE_MS, MINUTES)
        if minute >= 1_450:  # both slots that ten minutes ahead need are known
            errors.append(abs(forecast(expected, SOON_MS, MINUTES).value - hill(minute + 10)))
    assert max(errors) < 0.02 * 180


def test_knowing_the_day_halves_the_error_of_noisy_demand() -> None:
    random = Random(7)
    seasonal, plain = [], []
    blind = Smoothing(headroom=1.0, window_ms=MINUTE_MS, slot_ms=DAY_MS)
    known: Expected | None = None
    unknown: Expected | None = None
    for minute in range(5 * 1_440):
        value = max(0.0, random.gauss(hill(minute), hill(minute) ** 0.5))
        known = observe(known, value, minute * MINUTE_MS, MINUTES)
        unknown = observe(unknown, value, minute * MINUTE_MS, blind)
        if minute > 2 * 1_440:
            wanted = hill(minute + 30)
            seasonal.append((forecast(known, 3 * SOON_MS, MINUTES).value - wanted) ** 2)
            plain.append((forecast(unknown, 3 * SOON_MS, blind).value - wanted) ** 2)
    assert sum(seasonal) < 0.5 * sum(plain)


@pytest.mark.parametrize("odd", [lambda _: 0.0, lambda _: 50 * STEP], ids=["silent", "flooded"])
def test_one_odd_day_changes_nothing_of_what_is_usual(odd: Callable[[int], float]) -> None:
    foreseen = forecast(at([office, office, odd, office], 536), SOON_MS, MINUTES)
    assert foreseen.value == pytest.approx(STEP, rel=0.05)


def test_a_weekend_changes_nothing_of_what_is_usual() -> None:
    def free(_: int) -> float:
        return 0.0

    foreseen = forecast(at([office] * 5 + [free, free, office], 536), SOON_MS, MINUTES)
    assert foreseen.value == pytest.approx(STEP, rel=0.05)


def test_what_changes_for_good_is_usual_after_half_of_the_days() -> None:
    def later(minute: int) -> float:
        return office(minute - 120)

    foreseen = forecast(at([office] * 5 + [later] * 4, 536), SOON_MS, MINUTES)
    assert foreseen.value == pytest.approx(0, abs=0.05 * STEP)


def test_windows_that_were_not_heard_are_no_zeros() -> None:
    heard = after([8.0] * 30 + [None] * 20 + [8.0], MINUTES)
    assert forecast(heard, MINUTE_MS, MINUTES).value == pytest.approx(8)
    whole = after([8.0] * 1_500, MINUTES)
    holes = after([8.0 if minute % 3 else None for minute in range(1_500)], MINUTES)
    assert [usual(one.season, 720 * MINUTE_MS, MINUTES) for one in (whole, holes)] == [8, 8]


def test_a_slot_that_was_hardly_heard_is_not_known() -> None:
    expected = after([8.0 if minute % 10 == 0 else None for minute in range(1_500)], MINUTES)
    assert expected.season == ()


def test_after_a_long_silence_the_level_is_what_is_heard_then() -> None:
    expected = after([100.0] * 9 + [None] * 11 + [4.0], MINUTES)
    assert (expected.level, expected.trend) == (4.0, 0.0)


def test_a_window_counts_once() -> None:
    expected = after([1.0, 2.0], PLAIN)
    assert observe(expected, 50.0, 10_000, PLAIN) is expected
    assert observe(expected, 50.0, 0, PLAIN) is expected


@given(st.integers(1, 40))
def test_a_season_is_bounded_however_long_it_runs(days: int) -> None:
    coarse = Smoothing(slot_ms=DAY_MS // 4, window_ms=DAY_MS // 8)
    expected = after([1.0] * 8 * days, coarse)
    assert sum(len(means) for means in expected.season) <= coarse.slots * coarse.days
