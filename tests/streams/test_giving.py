"""Who is served for its age, and who has to wait a moment."""

from schemas.events import GenerationEnded, GenerationRequested
from schemas.values import Sampling
from streams.dispatch.limits import Limits
from streams.dispatch.step import Dispatch
from tests.streams.driver import Driver, of
from tests.streams.events import NOW, admitted, finished, leased, registered


def driver(**limits: int) -> Driver:
    return Driver(lambda: Dispatch(frozenset({"default"}), Limits(**limits)))


def given(drive: Driver) -> list[str]:
    return [event.reply_id for event in of([output.event for output in drive.outputs], GenerationRequested)]


def place_of(drive: Driver, reply_id: str) -> int | None:
    """The inbox that got it last."""
    places = [
        output.partition
        for output in drive.outputs
        if isinstance(output.event, GenerationRequested) and output.event.reply_id == reply_id
    ]
    return places[-1] if places else None


def large(number: int, tokens: int, **members: object) -> object:
    return admitted(number, sampling=Sampling(max_output_tokens=tokens - 10), **members)


def test_an_aged_request_that_finds_no_room_keeps_one_worker_and_holds_up_nobody_elsewhere() -> None:
    drive = driver(ageing_ms=1_000, ageing_share=1)
    drive.take(registered(0, slots=8, kv_tokens=1_000), registered(1, slots=8, kv_tokens=1_000))
    drive.take(*(large(n, 200, tier="paid") for n in range(4)))
    drive.take(large(50, 900))
    drive.pass_time(1_500)
    drive.take(leased(0, 0, free_slots=6, free_kv_tokens=600), leased(1, 1, free_slots=6, free_kv_tokens=600))
    paid = [large(n, 100, tier="paid") for n in range(10, 18)]
    for one in paid:
        drive.take(one)
    later = [place_of(drive, f"rep_{n}") for n in range(10, 18)]
    assert len({place for place in later if place is not None}) == 1, "all at one worker, the other one is kept"
    kept = 1 - next(place for place in later if place is not None)
    for number in range(4):
        if place_of(drive, f"rep_{number}") == kept:
            drive.take(finished(number, inbox=kept, epoch=kept))
    assert place_of(drive, "rep_50") == kept


def test_turns_for_age_are_fair_between_accounts() -> None:
    drive = driver(ageing_ms=1_000, ageing_share=2, running_max_free=100)
    drive.take(*(admitted(n, account_id="hog") for n in range(50)), admitted(99, account_id="single"))
    drive.take(*(admitted(n, tier="paid", account_id="payer") for n in range(100, 150)))
    drive.pass_time(2_000)
    drive.take(registered(slots=8))
    assert "rep_99" in given(drive)


def test_turns_for_age_are_counted_by_model() -> None:
    drive = driver(ageing_ms=1_000, ageing_share=4)
    drive.take(admitted(901, model="a"), admitted(902, model="b"))
    drive.take(*(admitted(n, model="a", tier="paid") for n in range(100, 140)))
    drive.take(*(admitted(n, model="b", tier="paid") for n in range(200, 240)))
    drive.pass_time(2_000)
    drive.take(registered(0, model="a", slots=7), registered(1, model="b", slots=4))
    assert {"rep_901", "rep_902"} <= set(given(drive))


def test_what_is_handed_back_for_want_of_room_waits_longer_and_longer() -> None:
    drive = driver()
    drive.take(registered(), admitted(1, deadline_at_ms=NOW + 10**7))
    attempts: list[int] = []
    for attempt in range(1, 7):
        before = drive.now_ms
        drive.take(finished(1, attempt=attempt, status=None, returned=True, reason="engine_overloaded"))
        while len(given(drive)) == attempt:
            drive.now_ms += 100
            drive.flow_ms += 100
            drive.take(leased(renewal=attempt))
        attempts.append(drive.now_ms - before)
    assert attempts == [100, 500, 1_000, 2_000, 4_000, 8_000]


def test_what_a_draining_worker_hands_back_does_not_wait() -> None:
    drive = driver()
    drive.take(registered(), admitted(1))
    for attempt in range(1, 5):
        drive.take(finished(1, attempt=attempt, status=None, returned=True, reason="handed_back"))
        drive.take(leased(renewal=attempt))
        assert len(given(drive)) == attempt + 1


def test_an_outage_of_minutes_is_outlived() -> None:
    drive = driver()
    drive.take(registered(), admitted(1, deadline_at_ms=NOW + 10**7))
    began, attempt = drive.now_ms, 1
    while drive.now_ms - began < 300_000:
        if len(given(drive)) == attempt:
            drive.take(finished(1, attempt=attempt, status=None, returned=True, reason="interrupted"))
            attempt += 1
        drive.now_ms += 500
        drive.flow_ms += 500
        drive.take(leased(renewal=drive.now_ms))
    assert of(drive.after, GenerationEnded) == []
