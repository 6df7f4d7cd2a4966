"""When a dead part is started again."""

from hypothesis import given
from hypothesis import strategies as st

from infra.restarts import (
    HEALTHY_LIFE_S,
    LONGEST_BACKOFF_S,
    QUICK_DEATHS_BEFORE_GIVING_UP,
    Restarts,
    after_death,
    backoff_s,
)


def test_the_first_death_is_answered_at_once() -> None:
    first = after_death(Restarts(), lived_s=0.1, was_ready=False, was_ever_ready=True)
    assert first.delay_s == 0
    after_health = after_death(Restarts(quick_deaths=5), lived_s=HEALTHY_LIFE_S, was_ready=True, was_ever_ready=True)
    assert after_health.delay_s == 0


def test_a_long_life_without_being_ready_is_not_healthy() -> None:
    decision = after_death(Restarts(quick_deaths=5), lived_s=60, was_ready=False, was_ever_ready=True)
    assert decision.delay_s > 0


def test_quick_deaths_wait_longer_each_time_up_to_a_limit() -> None:
    delays = [backoff_s(number) for number in range(12)]
    assert delays == sorted(delays)
    assert delays[2] > 0
    assert delays[-1] == LONGEST_BACKOFF_S


@given(st.lists(st.floats(0, 100), max_size=30))
def test_a_part_that_was_ready_is_never_given_up(lives: list[float]) -> None:
    restarts = Restarts()
    for life in lives:
        decision = after_death(restarts, lived_s=life, was_ready=True, was_ever_ready=True)
        assert not decision.hopeless
        restarts = decision.restarts
    assert restarts.total == len(lives)


def test_a_part_that_never_became_ready_is_given_up_after_some_quick_deaths() -> None:
    restarts = Restarts()
    verdicts = []
    for _ in range(QUICK_DEATHS_BEFORE_GIVING_UP):
        decision = after_death(restarts, lived_s=0.2, was_ready=False, was_ever_ready=False)
        verdicts.append(decision.hopeless)
        restarts = decision.restarts
    assert verdicts == [False] * (QUICK_DEATHS_BEFORE_GIVING_UP - 1) + [True]


def test_two_that_take_over_from_each_other_do_so_less_and_less_often() -> None:
    restarts, delays = Restarts(), []
    for _ in range(6):
        decision = after_death(restarts, lived_s=10, was_ready=True, was_ever_ready=True, taken_over=True)
        restarts = decision.restarts
        delays.append(decision.delay_s)
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0]
    once = after_death(restarts, lived_s=60, was_ready=True, was_ever_ready=True, taken_over=True)
    assert once.delay_s == 0.0


def test_wrong_settings_are_given_up_at_once() -> None:
    decision = after_death(Restarts(), lived_s=0.2, was_ready=False, was_ever_ready=False, bad_settings=True)
    assert decision.hopeless
