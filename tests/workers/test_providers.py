"""Which provider is asked next: never more than allowed, never one that is out, and the same each time."""

import math
from collections.abc import Callable
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from inference_workers.engines.providers import (
    Ask,
    Asked,
    Breaker,
    GiveUp,
    Kind,
    Limits,
    Wait,
    abandoned,
    answered,
    backoff_s,
    busied,
    entered,
    failed,
    filled,
    may_retry,
    next_step,
    ready_s,
)

LIMITS = Limits()
CLOSED = Breaker()


def asked(provider: int = 0, kind: Kind = "broken", again_s: float = 0.0) -> Asked:
    return Asked(provider=provider, kind=kind, again_s=again_s)


def step(breakers: list[Breaker], told: list[Asked], now_s: float = 0.0, *, retries: bool = True) -> object:
    return next_step(LIMITS, breakers, told, may_retry=retries, now_s=now_s, until_s=240.0)


def opened(now_s: float = 0.0, limits: Limits = LIMITS) -> Breaker:
    breaker = CLOSED
    for _ in range(limits.breaker_failures):
        breaker = failed(limits, breaker, breaker.turn, now_s)
    return breaker


def test_the_first_of_the_list_is_asked_first() -> None:
    assert step([CLOSED, CLOSED], []) == Ask(provider=0)


def test_the_same_is_asked_again_after_a_short_wait_before_another_one_is() -> None:
    assert step([CLOSED, CLOSED], [asked(again_s=0.3)]) == Wait(until_s=0.3)
    assert step([CLOSED, CLOSED], [asked(again_s=0.3)], now_s=0.3) == Ask(provider=0)


def test_one_that_asks_for_patience_is_passed_over_while_another_is_free() -> None:
    assert step([CLOSED, CLOSED], [asked(kind="busy", again_s=5.0)]) == Ask(provider=1)
    assert step([CLOSED], [asked(kind="busy", again_s=5.0)]) == Wait(until_s=5.0)
    assert step([CLOSED], [asked(kind="busy", again_s=50.0)]) == GiveUp()


def test_without_a_budget_nothing_is_repeated_but_others_are_asked() -> None:
    assert step([CLOSED, CLOSED], [asked()], retries=False) == Ask(provider=1)
    assert step([CLOSED], [asked()], retries=False) == GiveUp()


def test_one_that_has_refused_for_good_is_not_asked_again() -> None:
    assert step([CLOSED, CLOSED], [asked(kind="denied")]) == Ask(provider=1)
    assert step([CLOSED], [asked(kind="absent")]) == GiveUp()


def test_nothing_begins_after_its_time() -> None:
    assert step([CLOSED], [], now_s=240.1) == GiveUp()
    assert step([CLOSED], [asked(again_s=241.0)], now_s=239.0) == GiveUp()


def test_a_breaker_opens_lets_one_try_and_opens_for_twice_as_long() -> None:
    breaker = opened(now_s=100.0)
    assert breaker.circuit == "open"
    assert ready_s(breaker) == 110.0
    assert entered(LIMITS, breaker, 109.9) is None
    trying = entered(LIMITS, breaker, 110.0)
    assert trying is not None
    assert trying.circuit == "half_open"
    again = failed(LIMITS, trying, trying.turn, 111.0)
    assert ready_s(again) == 131.0


def test_while_one_tries_another_may_only_after_a_while() -> None:
    trying = entered(LIMITS, opened(), 10.0)
    assert trying is not None
    assert entered(LIMITS, trying, 11.9) is None
    second = entered(LIMITS, trying, 12.0)
    assert second is not None
    assert second.turn == trying.turn
    assert answered(LIMITS, second, trying.turn, 13.0).circuit == "closed"


def test_a_breaker_closes_with_the_first_answer_and_forgets() -> None:
    trying = entered(LIMITS, opened(), 10.0)
    assert trying is not None
    closed = answered(LIMITS, trying, trying.turn, 11.0)
    assert closed.circuit == "closed"
    assert closed.opened == closed.failed == 0


def test_an_answer_from_before_the_breaker_opened_does_not_close_it() -> None:
    late = CLOSED.turn
    trying = entered(LIMITS, opened(), 10.0)
    assert trying is not None
    assert answered(LIMITS, trying, late, 11.0) == trying
    assert failed(LIMITS, trying, late, 11.0) == trying


def test_a_trial_that_was_cancelled_lets_another_one_try_at_once() -> None:
    trying = entered(LIMITS, opened(), 10.0)
    assert trying is not None
    free = abandoned(trying, trying.turn, 11.0)
    assert entered(LIMITS, free, 11.0) is not None
    assert abandoned(CLOSED, CLOSED.turn, 0.0) == CLOSED


def test_few_failures_among_many_answers_do_not_open_it() -> None:
    breaker = CLOSED
    for number in range(100):
        told = failed if number % 3 == 0 else answered
        breaker = told(LIMITS, breaker, breaker.turn, 1.0)
    assert breaker.circuit == "closed"


def test_failures_of_an_earlier_window_are_forgotten() -> None:
    breaker = CLOSED
    for number in range(20):
        breaker = failed(LIMITS, breaker, breaker.turn, number * LIMITS.breaker_window_s)
    assert breaker.circuit == "closed"


def test_a_busy_provider_is_left_alone_until_it_said() -> None:
    busy = busied(busied(CLOSED, 5.0), 3.0)
    assert ready_s(busy) == 5.0
    assert entered(LIMITS, busy, 4.0) is None
    assert entered(LIMITS, busy, 5.0) == busy


def test_retries_stay_within_their_share_of_all_generations() -> None:
    budget, retries = LIMITS.retry_burst, 0
    for _ in range(1000):
        budget = filled(LIMITS, budget)
        while may_retry(budget):
            budget -= 1
            retries += 1
    assert retries <= 1000 * LIMITS.retry_share + LIMITS.retry_burst


kinds = st.sampled_from(["absent", "denied", "busy", "broken"])
moments = st.floats(0, 1000)
limits = st.builds(
    Limits,
    attempts_max=st.integers(1, 6),
    attempts_each=st.integers(1, 4),
    wait_max_s=st.floats(0, 20),
    fallback_after_s=st.floats(0, 5),
)


@given(limits, st.integers(1, 4), st.data())
def test_a_generation_ends_within_its_attempts_and_asks_nobody_too_often(
    limits: Limits, count: int, data: st.DataObject
) -> None:
    breakers = [CLOSED] * count
    now_s, told, waits = 0.0, [], 0
    while True:
        allowed = data.draw(st.booleans())
        next_ = next_step(limits, breakers, told, may_retry=allowed, now_s=now_s, until_s=240.0)
        match next_:
            case GiveUp():
                break
            case Wait():
                assert now_s < next_.until_s <= now_s + max(limits.wait_max_s, limits.fallback_after_s)
                now_s, waits = next_.until_s, waits + 1
            case Ask():
                mine = [one for one in told if one.provider == next_.provider]
                assert entered(LIMITS, breakers[next_.provider], now_s) is not None
                assert not mine or allowed
                assert all(one.again_s <= now_s and one.kind not in ("absent", "denied") for one in mine)
                wait_s = data.draw(st.floats(0, 30))
                told.append(asked(next_.provider, data.draw(kinds), now_s + wait_s))
        assert len(told) <= limits.attempts_max
        assert waits <= limits.attempts_max * count
    for provider in range(count):
        assert sum(one.provider == provider for one in told) <= limits.attempts_each


ENDS: dict[str, Callable[[Breaker, int, float], Breaker]] = {
    "ok": partial(answered, LIMITS),
    "fail": partial(failed, LIMITS),
    "cancel": abandoned,
}


@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "ok", "fail", "cancel", "busy"]), st.floats(0, 40), st.integers(0, 9)),
        max_size=120,
    )
)
def test_a_breaker_lets_one_try_at_a_time_and_always_comes_back(
    story: list[tuple[str, float, int]],
) -> None:
    breaker, now_s, under_way = CLOSED, 0.0, []
    for what, later_s, which in story:
        now_s += later_s
        if what == "enter":
            trying = entered(LIMITS, breaker, now_s)
            if trying is not None:
                breaker = trying
                under_way.append(breaker.turn)
        elif what == "busy":
            breaker = busied(breaker, now_s + later_s)
        elif under_way:
            breaker = ENDS[what](breaker, under_way.pop(which % len(under_way)), now_s)
        if breaker.circuit == "half_open" and what == "enter":
            assert entered(LIMITS, breaker, now_s) is None
        assert ready_s(breaker) <= now_s + LIMITS.breaker_open_max_s
    for turn in under_way:
        breaker = abandoned(breaker, turn, now_s)
    assert entered(LIMITS, breaker, now_s + LIMITS.breaker_open_max_s) is not None


@given(st.integers(1, 2000), st.none() | st.floats(0, 3600), st.floats(0, 1, exclude_max=True))
def test_a_backoff_lies_between_what_was_asked_for_and_its_bound(
    retry: int, retry_after_s: float | None, number: float
) -> None:
    wait_s = backoff_s(LIMITS, retry, retry_after_s, number)
    least = retry_after_s or 0.0
    assert least <= wait_s <= least + min(LIMITS.backoff_max_s, LIMITS.backoff_base_s * 2.0 ** min(retry, 100))
    assert wait_s == backoff_s(LIMITS, retry, retry_after_s, number)
    assert math.isfinite(wait_s)


@given(st.floats(0, 10), st.integers(0, 50))
def test_the_budget_never_holds_more_than_its_burst(budget: float, generations: int) -> None:
    for _ in range(generations):
        budget = filled(LIMITS, budget)
    assert budget <= LIMITS.retry_burst


def test_an_open_breaker_is_never_open_for_longer_than_its_bound() -> None:
    breaker, now_s = opened(), 0.0
    for _ in range(2000):
        now_s = ready_s(breaker)
        trying = entered(LIMITS, breaker, now_s)
        assert trying is not None
        breaker = failed(LIMITS, trying, trying.turn, now_s)
        assert ready_s(breaker) - now_s <= LIMITS.breaker_open_max_s
    assert ready_s(breaker) > now_s
