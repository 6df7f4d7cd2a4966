"""One account cannot fill a model while others ask for it, and may have all of it alone."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.events import GenerationEnded, GenerationRequested
from schemas.values import Usage
from streams.dispatch.limits import Limits
from streams.dispatch.load import Thresholds
from streams.dispatch.shares import Askers, asked, is_alone, most
from streams.dispatch.step import Dispatch
from tests.streams.driver import NUMBER, Driver, of
from tests.streams.events import admitted, finished, leased, registered, released

OTHERS_MS = 60_000


# --- the rule --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "one_may_have"),
    [(0, None), (1, None), (2, 1), (3, 2), (8, 7), (15, 14), (16, 14), (17, 15), (1_024, 896)],
)
def test_one_slot_in_eight_and_one_at_least_is_left_to_others(slots: int, one_may_have: int | None) -> None:
    assert most(slots, 8) == one_may_have


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40_000)), max_size=20), st.sampled_from("abc"))
def test_who_asks_alone_is_known_from_the_last_two_that_asked(asks: list[tuple[str, int]], account: str) -> None:
    askers: Askers | None = None
    seen: list[tuple[str, int]] = []
    now_ms = 0
    for who, later_ms in asks:
        now_ms += later_ms
        askers = asked(askers, who, now_ms)
        seen.append((who, now_ms))
    others = [at_ms for who, at_ms in seen if who != account and now_ms - at_ms < OTHERS_MS]
    assert is_alone(askers, account, now_ms, OTHERS_MS) == (not others)


# --- in dispatch -----------------------------------------------------------------------------------------------


def driver(**limits: Any) -> Driver:
    members: dict[str, Any] = {"running_max_free": 1_000, "thresholds": Thresholds(enabled=False)}
    return Driver(lambda: Dispatch(frozenset({"default"}), Limits(**(members | limits))))


def given_to(drive: Driver) -> list[str]:
    return [event.reply_id for event in of([output.event for output in drive.outputs], GenerationRequested)]


def running(drive: Driver) -> Counter[str]:
    assert isinstance(drive.step, Dispatch)
    pool = drive.step.shard(NUMBER).pools["default"]
    return Counter(r.admitted.account_id for r in pool.requests.values() if r.progress.phase == "given")


def asks(drive: Driver, account: str, *numbers: int, **given: Any) -> None:
    drive.take(*(admitted(number, account_id=account, **given) for number in numbers))


def passes(drive: Driver, ms: int) -> None:
    """Time passes, and the worker renews."""
    for _ in range(0, ms, 1_000):
        drive.pass_time(1_000)
        drive.take(leased(free_slots=8))


@pytest.mark.parametrize("tier", ["free", "paid"])
def test_an_account_alone_has_all_slots_and_beside_another_leaves_one(tier: str) -> None:
    drive = driver()
    drive.take(registered(slots=8))
    asks(drive, "many", *range(20), tier=tier)
    assert running(drive) == {"many": 8}
    asks(drive, "other", 100, tier=tier)
    drive.take(finished(0))
    assert running(drive) == {"many": 7, "other": 1}
    drive.take(finished(100))
    assert running(drive) == {"many": 7}, "its slot stays free"
    asks(drive, "other", 101, tier=tier)
    assert given_to(drive)[-1] == "rep_101"


def test_an_account_that_is_held_back_has_all_again_when_others_have_not_asked_for_long() -> None:
    drive = driver()
    drive.take(registered(slots=8))
    asks(drive, "other", 100)
    drive.take(finished(100))
    asks(drive, "many", *range(20))
    passes(drive, OTHERS_MS - 1_000)
    assert running(drive) == {"many": 7}
    passes(drive, 1_000)
    assert running(drive) == {"many": 8}


def test_of_a_single_slot_nothing_is_left_and_others_ask_only_for_their_own_model() -> None:
    drive = driver()
    drive.take(registered(0, slots=1), registered(1, slots=8, model="big"))
    asks(drive, "other", 100)
    drive.take(finished(100))
    asks(drive, "many", 1)
    asks(drive, "many", *range(10, 30), model="big")
    assert running(drive) == {"many": 9}


def test_what_is_left_grows_with_the_workers_and_those_that_drain_count() -> None:
    drive = driver()
    drive.take(registered(0, slots=8))
    asks(drive, "other", 100)
    asks(drive, "many", *range(20))
    assert running(drive) == {"other": 1, "many": 7}
    drive.take(registered(1, slots=8), leased(0, free_slots=1, draining=True))
    assert running(drive) == {"other": 1, "many": 14}
    drive.take(released(0))
    assert running(drive)["many"] == 7


def test_an_account_that_is_held_back_holds_up_nobody_and_is_ahead_of_nobody() -> None:
    drive = driver(thresholds=Thresholds(), ageing_ms=0, ageing_share=1, running_max_free=16)
    drive.take(registered(slots=8))
    asks(drive, "other", 100)
    drive.take(finished(100))
    asks(drive, "many", *range(500))
    for number in range(200, 210):
        asks(drive, "one", 1_000 + number)
        assert given_to(drive)[-1] == f"rep_{1_000 + number}"
        drive.take(finished(1_000 + number))
    assert of(drive.after, GenerationEnded) == [], "and nobody is refused for it"


def test_after_a_restart_all_that_is_open_counts_as_asked_for_now() -> None:
    drive = driver()
    drive.take(registered(slots=8))
    asks(drive, "many", *range(20))
    asks(drive, "other", 100)
    drive.restart()
    drive.take(finished(0))
    assert running(drive) == {"many": 7, "other": 1}
    drive.take(finished(100))
    drive.restart()
    drive.take(finished(1))
    assert running(drive) == {"many": 8}, "nothing of the other one is open any more"


def test_first_come_first_served_knows_no_accounts() -> None:
    drive = driver(queueing="fifo")
    drive.take(registered(slots=8))
    asks(drive, "other", 100)
    asks(drive, "many", *range(20))
    assert running(drive) == {"other": 1, "many": 7}
    drive.take(finished(100))
    assert running(drive) == {"many": 8}


def test_paid_arrivals_of_an_account_that_is_held_back_reserve_nothing_for_it() -> None:
    drive = driver()
    drive.take(registered(slots=8))
    asks(drive, "one", 900)
    drive.take(finished(900, usage=Usage(input_tokens=10, output_tokens=10)))
    asks(drive, "payer", *range(7), tier="paid")
    drive.take(finished(0, usage=Usage(input_tokens=10, output_tokens=10)))
    asks(drive, "payer", *range(10, 700), tier="paid")
    passes(drive, 40_000)
    asks(drive, "one", 901)
    passes(drive, 50_000)
    assert running(drive) == {"payer": 7, "one": 1}


@settings(deadline=None, max_examples=60)
@given(
    st.integers(2, 20),
    st.lists(st.one_of(st.tuples(st.just("asks"), st.sampled_from("abc")), st.just(("ends", ""))), max_size=80),
)
def test_beside_others_nobody_ever_gets_more_than_its_part_and_nothing_idles_that_somebody_may_have(
    slots: int, happenings: list[tuple[str, str]]
) -> None:
    drive = driver()
    drive.take(registered(slots=slots))
    asks(drive, "a", 0)
    asks(drive, "b", 1)
    may_have = most(slots, 8) or slots
    for number, (what, account) in enumerate(happenings, start=2):
        if what == "asks":
            asks(drive, account, number)
        elif ran := of([output.event for output in drive.outputs], GenerationRequested):
            done = ran.pop(0)
            drive.take(finished(int(done.reply_id.removeprefix("rep_"))))
            drive.outputs = [o for o in drive.outputs if o.event is not done]
        has = running(drive)
        assert max(has.values(), default=0) <= may_have
        assert isinstance(drive.step, Dispatch)
        pool = drive.step.shard(NUMBER).pools["default"]
        queued = Counter(r.admitted.account_id for r in pool.requests.values() if r.progress.phase == "queued")
        if sum(has.values()) < slots:
            assert all(has[account] == may_have for account in queued)
