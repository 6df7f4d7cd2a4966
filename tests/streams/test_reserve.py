"""Slots that free traffic leaves free for the paid traffic to come."""

import random

import pytest

from schemas.events import GenerationRequested
from schemas.values import Usage
from streams.dispatch.limits import Limits
from streams.dispatch.load import RATE_OVER_MS, RESERVE_MISSED, one_more, reserve
from streams.dispatch.step import Dispatch
from tests.streams.driver import Driver, of
from tests.streams.events import admitted, finished, leased, registered


@pytest.mark.parametrize(
    ("paid_per_s", "slots", "hold_ms", "kept"),
    [
        (0.0, 64, 5_000, 0),
        (0.01, 64, 5_000, 0),  # 0.08 % of what ends
        (0.2, 64, 5_000, 2),
        (5.12, 64, 5_000, 8),  # 40 %
        (12.0, 64, 5_000, 32),  # nearly all: half of the slots at most
        (100.0, 64, 5_000, 32),
        (1.0, 64, None, 0),
        (1.0, 0, 5_000, 0),
    ],
)
def test_the_reserve_grows_with_the_part_of_paid_traffic(
    paid_per_s: float, slots: int, hold_ms: float | None, kept: int
) -> None:
    assert reserve(paid_per_s, slots, hold_ms) == kept


def test_the_rate_of_arrivals_is_learnt_and_forgotten() -> None:
    rate = None
    for at_ms in range(0, 5 * RATE_OVER_MS, 500):
        rate = one_more(rate, at_ms)
    assert rate is not None
    assert rate.now(5 * RATE_OVER_MS) == pytest.approx(2.0, rel=0.05)
    assert rate.now(9 * RATE_OVER_MS) < 0.1


def test_of_a_thousand_paid_arrivals_one_at_most_finds_none_though_free_traffic_takes_all_else() -> None:
    """A pool as rule 5 sees it: exponential holds, Poisson arrivals, free traffic that always waits."""
    chance, slots, hold_s, paid_per_s = random.Random(1), 64, 5.0, 5.0
    kept = reserve(paid_per_s, slots, hold_s * 1000)
    ends = [chance.expovariate(1 / hold_s) for _ in range(slots - kept)]
    arrival_s, missed, arrived = 0.0, 0, 20_000
    for _ in range(arrived):
        arrival_s += chance.expovariate(paid_per_s)
        ends.sort()
        while ends and ends[0] <= arrival_s:
            at_s = ends.pop(0)
            while len(ends) < slots - kept:  # what is not kept goes to free traffic at once
                ends.append(at_s + chance.expovariate(1 / hold_s))
            ends.sort()
        if len(ends) >= slots:
            missed += 1
        else:
            ends.append(arrival_s + chance.expovariate(1 / hold_s))
    assert missed / arrived <= RESERVE_MISSED


USED = Usage(input_tokens=10, output_tokens=50)


def given_to(drive: Driver) -> list[str]:
    return [event.reply_id for event in of([o.event for o in drive.outputs], GenerationRequested)]


def busy_pool() -> Driver:
    """Eight slots, generations of a second, and a paid arrival each 400 ms: a third of what ends is paid."""
    drive = Driver(lambda: Dispatch(frozenset({"default"}), Limits()))
    drive.take(registered(slots=8))
    for number in range(100):
        drive.take(admitted(number, tier="paid"))
        drive.pass_time(400, tick_ms=200)
        drive.take(leased(free_slots=8))
        if number >= 2:
            drive.take(finished(number - 2, usage=USED))
    for number in (98, 99):
        drive.take(finished(number, usage=USED))
    return drive


def test_free_traffic_leaves_slots_for_paid_traffic_that_has_them_at_once() -> None:
    drive = busy_pool()
    drive.take(*(admitted(number) for number in range(200, 220)))
    free = [reply_id for reply_id in given_to(drive) if int(reply_id.removeprefix("rep_")) >= 200]
    assert 3 <= len(free) < 8
    drive.take(admitted(300, tier="paid"))
    assert given_to(drive)[-1] == "rep_300"


def test_where_no_paid_traffic_comes_free_traffic_has_all_slots() -> None:
    drive = Driver(lambda: Dispatch(frozenset({"default"}), Limits()))
    drive.take(registered(slots=8), *(admitted(number) for number in range(20)))
    assert len(given_to(drive)) == 8


def test_what_is_kept_is_given_up_when_paid_traffic_stays_away() -> None:
    drive = busy_pool()
    drive.take(*(admitted(number) for number in range(200, 220)))
    for _ in range(200):
        drive.take(leased(free_slots=8))
        drive.pass_time(1_000, tick_ms=1_000)
    free = [reply_id for reply_id in given_to(drive) if int(reply_id.removeprefix("rep_")) >= 200]
    assert len(free) == 8
