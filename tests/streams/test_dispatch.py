"""Dispatch: who gets what when, and what happens to it when something goes wrong."""

import gc
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.events import (
    Event,
    GenerationAdmitted,
    GenerationEnded,
    GenerationParked,
    GenerationQueued,
    GenerationRequested,
    GenerationReset,
    GenerationRevoked,
    NoticeGiven,
)
from schemas.prefix import packed
from schemas.values import Notice, PromptMessage, Sampling, Usage
from streams.dispatch.limits import Limits
from streams.dispatch.lines import Line
from streams.dispatch.pool import Pool
from streams.dispatch.rules import ANY_ATTEMPT
from streams.dispatch.step import Dispatch
from tests.streams.driver import NUMBER, Driver, of
from tests.streams.events import (
    NOW,
    admitted,
    finished,
    gen_cancelled,
    gen_declined,
    leased,
    registered,
    released,
)


def driver(**limits: Any) -> Driver:
    return Driver(lambda: Dispatch(frozenset({"default"}), Limits(**limits)))


def given_to(events: list[Event]) -> list[tuple[str, int]]:
    return [(event.reply_id, event.attempt) for event in of(events, GenerationRequested)]


def ends(drive: Driver) -> list[tuple[str, str, str]]:
    return [(e.reply_id, e.status, e.error.code if e.error else "") for e in of(drive.after, GenerationEnded)]


def test_a_request_opens_its_stream_and_goes_to_a_worker() -> None:
    drive = driver()
    drive.take(registered())
    taken = drive.take(admitted(1, notices=(Notice(code="output_shortened", detail="x"),)))
    assert [type(event) for event in drive.before] == [GenerationQueued, NoticeGiven]
    [request] = of(taken, GenerationRequested)
    assert (request.generation_id, request.attempt, request.epoch) == ("gen_1_1", 1, 0)
    assert (drive.outputs[0].topic, drive.outputs[0].partition) == ("inference.default.free", 0)
    assert drive.take(finished(1)) == []
    assert drive.live_keys() == {"default/worker/0"}


def test_a_request_waits_until_a_worker_comes() -> None:
    drive = driver()
    assert drive.take(admitted(1)) == []
    assert given_to(drive.take(registered(inbox=3))) == [("rep_1", 1)]
    assert drive.outputs[0].partition == 3


def test_a_repeated_admission_is_ignored_also_after_its_end() -> None:
    drive = driver()
    drive.take(registered(), admitted(1))
    assert drive.take(admitted(1)) == []
    drive.take(finished(1))
    assert drive.take(admitted(1)) == []
    assert len(of(drive.before, GenerationQueued)) == 1


def test_paid_goes_before_free_and_each_in_the_order_of_admission() -> None:
    drive = driver()
    drive.take(admitted(1), admitted(2, tier="paid"), admitted(3), admitted(4, tier="paid"))
    taken = drive.take(registered(slots=3))
    assert [reply_id for reply_id, _ in given_to(taken)] == ["rep_2", "rep_4", "rep_1"]


def test_an_aged_free_request_gets_its_share() -> None:
    drive = driver(ageing_ms=1_000, ageing_share=4)
    drive.take(admitted(0), *(admitted(n, tier="paid") for n in range(1, 9)))
    drive.now_ms += 2_000
    taken = [reply_id for reply_id, _ in given_to(drive.take(registered(slots=9)))]
    assert taken.index("rep_0") == 3


def test_a_free_request_that_is_young_gets_no_share() -> None:
    drive = driver(ageing_ms=1_000, ageing_share=4)
    drive.take(admitted(0), *(admitted(n, tier="paid") for n in range(1, 9)))
    taken = [reply_id for reply_id, _ in given_to(drive.take(registered(slots=9)))]
    assert taken[-1] == "rep_0"


def test_no_worker_holds_more_than_its_slots() -> None:
    drive = driver()
    drive.take(registered(slots=2), *(admitted(n) for n in range(5)))
    assert len(given_to([output.event for output in drive.outputs])) == 2
    assert drive.take(leased(free_slots=2)) == []
    assert given_to(drive.take(finished(0))) == [("rep_2", 1)]


def test_a_worker_that_says_it_is_full_gets_nothing_until_it_says_otherwise() -> None:
    drive = driver()
    drive.take(registered(), leased(free_slots=0))
    assert drive.take(admitted(1)) == []
    assert given_to(drive.take(leased(free_slots=1))) == [("rep_1", 1)]


def test_kv_tokens_are_room_too_and_one_that_is_larger_than_the_worker_goes_alone() -> None:
    drive = driver()
    drive.take(registered(slots=8, kv_tokens=250))
    drive.take(*(admitted(n) for n in range(3)))
    assert len(of([o.event for o in drive.outputs], GenerationRequested)) == 2
    drive.take(finished(0), finished(1), finished(2))
    big = admitted(9, sampling=Sampling(max_output_tokens=5_000))
    assert given_to(drive.take(finished(2), big)) == [("rep_9", 1)]
    assert drive.take(admitted(10)) == []


def test_a_draining_worker_gets_nothing() -> None:
    drive = driver()
    drive.take(registered(), leased(draining=True))
    assert drive.take(admitted(1)) == []


def test_a_request_goes_only_to_a_worker_with_its_model() -> None:
    drive = driver()
    drive.take(registered(model="other"))
    assert drive.take(admitted(1)) == []
    assert given_to(drive.take(admitted(2, model="other"))) == [("rep_2", 1)]


def test_a_conversation_goes_back_to_its_worker_until_that_has_more_than_its_share() -> None:
    drive = driver()
    drive.take(registered(0, slots=8), registered(1, slots=8))
    drive.take(admitted(1, conversation_id="conv_x"))
    home = drive.outputs[-1].partition or 0
    drive.take(finished(1, inbox=home, epoch=home))
    drive.take(*(admitted(n, conversation_id="conv_x") for n in range(2, 8)))
    assert [output.partition for output in drive.outputs[1:]] == [home, home, *[1 - home] * 4]


def test_load_is_spread_and_ties_break_the_same_way_in_every_process() -> None:
    places = []
    for _ in range(2):
        drive = driver()
        drive.take(*(registered(n, slots=4) for n in range(4)))
        drive.take(*(admitted(n) for n in range(16)))
        places.append([output.partition for output in drive.outputs])
        assert sorted(places[-1]) == sorted([0, 1, 2, 3] * 4)
    assert places[0] == places[1]


# --- leases ----------------------------------------------------------------------------------------------------


def test_an_expired_lease_gives_its_requests_to_another_worker_as_the_next_attempt() -> None:
    drive = driver()
    drive.take(registered(0), admitted(1))
    taken = drive.pass_time(3_000)
    assert [event.generation_id for event in of(taken, GenerationRevoked)] == ["gen_1_1"]
    assert [(e.attempt, e.reason) for e in of(drive.after, GenerationReset)] == [(2, "worker_lost")]
    assert given_to(drive.take(registered(1))) == [("rep_1", 2)]


def test_a_renewed_lease_never_expires() -> None:
    drive = driver()
    drive.take(registered(0), admitted(1))
    for renewal in range(20):
        drive.take(leased(renewal=renewal))
        assert drive.pass_time(1_000) == []


def test_a_renewal_revives_a_worker_that_was_not_superseded() -> None:
    drive = driver()
    drive.take(registered(0))
    drive.pass_time(3_000)
    assert drive.take(admitted(1)) == []
    assert given_to(drive.take(leased())) == [("rep_1", 1)]


def test_a_newer_registration_takes_the_inbox_and_the_older_one_is_not_heard_any_more() -> None:
    drive = driver()
    drive.take(registered(0), admitted(1))
    assert [event.epoch for event in of(drive.take(registered(0, instance="newer")), GenerationRevoked)] == [0]
    taken = drive.take()
    assert given_to(taken) == [("rep_1", 2)]
    assert of(taken, GenerationRequested)[0].epoch == 1
    assert drive.take(leased(epoch=0, free_slots=2), finished(1, attempt=1, epoch=0)) == []
    assert drive.take(finished(1, attempt=2, epoch=1)) == []
    assert drive.live_keys() == {"default/worker/0"}


def test_a_release_gives_its_requests_away_at_once_and_no_late_renewal_revives_it() -> None:
    drive = driver()
    drive.take(registered(0), admitted(1))
    drive.take(registered(1, slots=1))
    drive.take(released(0))
    assert given_to(drive.take()) == [("rep_1", 2)]
    drive.take(leased(0))
    assert drive.take(admitted(2)) == []


def test_the_next_attempt_is_given_when_its_reset_is_in_tokens_and_others_pass_meanwhile() -> None:
    drive = driver()
    drive.take(registered(0), admitted(1))
    drive.take(registered(1))
    decision = drive.decide(released(0))
    assert given_to(drive.commit(decision, written=False)) == []
    assert given_to(drive.take(admitted(2))) == [("rep_2", 1)]
    drive.step.written(NUMBER, decision)
    assert given_to(drive.take()) == [("rep_1", 2)]


def test_a_process_that_died_before_a_reset_was_written_gives_the_attempt_when_the_next_one_has_written_it() -> None:
    drive = driver()
    drive.take(registered(0), admitted(1))
    drive.take(registered(1))
    drive.commit(drive.decide(released(0)), written=False)
    drive.restart()
    assert given_to(drive.take()) == []
    assert [event.attempt for event in of(drive.after, GenerationReset)] == [2]
    assert given_to(drive.take()) == [("rep_1", 2)]


def test_what_is_handed_back_goes_elsewhere_at_once_and_not_to_the_same_worker_before_its_renewal() -> None:
    drive = driver()
    drive.take(registered(0), admitted(1))
    assert drive.take(finished(1, status=None, returned=True)) == []
    assert given_to(drive.take(leased())) == [("rep_1", 2)]


def test_an_attempt_that_came_to_nothing_costs_its_account_nothing() -> None:
    drive = driver()
    drive.take(registered(0, slots=1), admitted(1, account_id="a"), admitted(2, account_id="b"))
    drive.take(released(0))
    assert given_to(drive.take(registered(1, slots=1))) == [("rep_1", 2)]


def test_one_that_is_alone_with_its_second_dying_worker_is_poison_and_parked() -> None:
    drive = driver()
    drive.take(registered(0, instance="a"), admitted(1), admitted(2))
    drive.pass_time(3_000)
    drive.take(registered(0, instance="b", slots=3))
    drive.take(finished(2, attempt=2, epoch=1))
    drive.pass_time(3_000)
    assert ends(drive) == [("rep_1", "failed", "poison")]
    [parked] = of([output.event for output in drive.outputs], GenerationParked)
    assert (parked.reply_id, parked.workers, parked.admitted.reply_id) == ("rep_1", ("a", "b"), "rep_1")


def test_one_that_was_with_two_dying_workers_beside_others_is_not_judged_for_it() -> None:
    drive = driver()
    drive.take(registered(0, instance="a"), admitted(1))
    drive.pass_time(3_000)
    drive.take(registered(0, instance="b", slots=3), admitted(2))
    drive.pass_time(3_000)
    assert ends(drive) == []
    taken = drive.take(registered(0, instance="c", slots=3))
    assert sorted(given_to(taken)) == [("rep_1", 3), ("rep_2", 2)]
    drive.pass_time(3_000)
    assert ends(drive) == [("rep_1", "failed", "poison")], "now it was with three, with the last alone among its like"


def test_several_that_were_with_two_dying_workers_go_on_each_alone_among_its_like() -> None:
    drive = driver()
    drive.take(registered(0, instance="a"), admitted(1), admitted(2))
    drive.pass_time(3_000)
    drive.take(registered(0, instance="b"))
    drive.pass_time(3_000)
    assert ends(drive) == []
    assert given_to(drive.take(registered(0, instance="c"), admitted(3))) == [("rep_1", 3), ("rep_3", 1)]
    assert given_to(drive.take(finished(3, epoch=2))) == []
    assert given_to(drive.take(finished(1, attempt=3, epoch=2))) == [("rep_2", 3)]
    drive.pass_time(3_000)
    assert ends(drive) == [("rep_2", "failed", "poison")]


@pytest.mark.parametrize(
    ("attempts_max", "code"), [(1, "worker_lost"), (2, "worker_lost"), (3, "poison"), (4, "poison"), (10, "poison")]
)
def test_after_so_many_lost_attempts_beside_others_the_reply_fails(attempts_max: int, code: str) -> None:
    drive = driver(attempts_max=attempts_max)
    drive.take(admitted(1))
    for attempt in range(1, attempts_max + 1):
        assert "rep_1" not in [reply_id for reply_id, _, _ in ends(drive)]
        other = 100 + attempt
        drive.take(registered(0, instance=f"{attempt}"), admitted(other))
        assert ("rep_1", attempt) in given_to([output.event for output in drive.outputs])
        drive.pass_time(3_000)
        drive.take(gen_cancelled(other))
    assert ("rep_1", "failed", code) in ends(drive)
    parked = of([output.event for output in drive.outputs], GenerationParked)
    assert [len(one.workers) for one in parked] == ([attempts_max] if code == "poison" else [])
    assert "rep_1" not in [reply_id for reply_id, _ in given_to(drive.take(registered(0, instance="late")))]


def test_with_one_attempt_no_death_is_evidence() -> None:
    drive = driver(attempts_max=1)
    drive.take(registered(0), admitted(1))
    drive.pass_time(3_000)
    assert ends(drive) == [("rep_1", "failed", "worker_lost")]


def test_one_that_is_alone_with_its_second_dying_worker_is_poison_whatever_attempts_are_left() -> None:
    drive = driver(attempts_max=10)
    drive.take(admitted(1))
    for instance in "ab":
        drive.take(registered(0, instance=instance))
        drive.pass_time(3_000)
    assert ends(drive) == [("rep_1", "failed", "poison")]


def test_returns_are_bounded_too() -> None:
    drive = driver(returns_max=3)
    drive.take(registered(0), admitted(1))
    for attempt in range(1, 4):
        drive.take(finished(1, attempt=attempt, status=None, returned=True))
        drive.take(leased(renewal=attempt))
    assert ends(drive) == [("rep_1", "failed", "not_served")]


SAID = "north: HTTP 502 bad_gateway: no healthy upstream"


def details(drive: Driver) -> list[str]:
    return [event.error.detail for event in of(drive.after, GenerationEnded) if event.error is not None]


@pytest.mark.parametrize("restarted", [False, True])
def test_what_a_provider_said_is_told_with_each_reset_and_at_the_end(restarted: bool) -> None:
    drive = driver(returns_max=2)
    drive.take(registered(0), admitted(1))
    decided = drive.decide(back(1, "interrupted", detail=SAID))
    drive.commit(decided, written=not restarted)
    if restarted:
        drive.restart()
        drive.take()
    assert {(e.attempt, e.reason, e.detail) for e in of(drive.after, GenerationReset)} == {(2, "interrupted", SAID)}
    drive.take(leased())
    drive.take(leased())
    drive.take(back(1, "engine_overloaded", attempt=2, detail="all of them are busy"))
    assert ends(drive) == [("rep_1", "failed", "not_served")]
    assert "because of engine_overloaded (all of them are busy)." in details(drive)[0]


def test_without_a_cause_the_end_names_the_reason_alone() -> None:
    drive = driver(returns_max=1)
    drive.take(registered(0), admitted(1))
    drive.take(back(1, "undeliverable"))
    assert "the last time because of undeliverable. " in details(drive)[0]


def test_what_is_out_of_time_after_it_was_handed_back_says_why_it_was() -> None:
    drive = driver()
    drive.take(registered(0), admitted(1, deadline_at_ms=NOW + 2_000), admitted(2, deadline_at_ms=NOW + 2_000))
    drive.take(back(1, "interrupted", detail=SAID))
    drive.pass_time(2_000)
    told = {e.reply_id: e.error.detail for e in of(drive.after, GenerationEnded) if e.error is not None}
    assert told["rep_2"] == "The reply did not end within its time."
    assert told["rep_1"] == f"The reply did not end within its time. Before, it was handed back: {SAID}"


def test_a_worker_that_says_too_much_is_cut_short() -> None:
    drive = driver()
    drive.take(registered(0), admitted(1))
    drive.take(back(1, "interrupted", detail="x" * 100_000))
    assert [len(event.detail) for event in of(drive.after, GenerationReset)] == [1_000]


@pytest.mark.parametrize(
    "worker",
    [
        registered(99),
        registered(-1),
        registered(0, slots=0),
        registered(0, slots=10**400),
        registered(0, kv_tokens=-1),
        registered(0, kv_tokens=10**400),
    ],
)
def test_a_worker_that_makes_no_sense_is_not_heard(worker: Event) -> None:
    drive = driver()
    assert drive.take(worker, admitted(1)) == []


# --- engines that fail ------------------------------------------------------------------------------------------


def back(number: int, reason: str, **given: Any) -> Event:
    """Handed back, for a reason."""
    return finished(number, status=None, returned=True, reason=reason, **given)


def test_what_an_engine_fell_silent_about_is_tried_again_elsewhere_and_fails_the_second_time() -> None:
    drive = driver()
    drive.take(registered(0), admitted(1))
    drive.take(registered(1))
    drive.take(back(1, "engine_stalled"))
    assert [(e.attempt, e.reason) for e in of(drive.after, GenerationReset)] == [(2, "engine_stalled")]
    drive.take()
    assert [output.partition for output in drive.outputs] == [0, 1]
    drive.take(back(1, "engine_stalled", attempt=2, inbox=1, epoch=1))
    assert ends(drive) == [("rep_1", "failed", "engine_stalled")]


@pytest.mark.parametrize(("stalls_max", "failed"), [(1, True), (2, False), (3, False)])
def test_stalls_are_bounded_by_their_own_limit(stalls_max: int, failed: bool) -> None:
    drive = driver(stalls_max=stalls_max)
    drive.take(registered(0), admitted(1))
    drive.take(back(1, "engine_stalled"))
    assert bool(ends(drive)) == failed


def test_a_stall_leaves_the_workers_other_generations_alone() -> None:
    drive = driver()
    drive.take(registered(0), admitted(1), admitted(2))
    drive.take(back(1, "engine_stalled"))
    assert drive.take(finished(2)) == []
    assert ends(drive) == []
    assert given_to(drive.take(leased(0))) == [("rep_1", 2)]


@pytest.mark.parametrize("reason", ["engine_dead", "engine_stuck"])
def test_a_dead_engine_takes_its_worker_along_at_once_and_for_good(reason: str) -> None:
    drive = driver()
    drive.take(registered(0), admitted(1), admitted(2))
    drive.take(registered(1))
    drive.take(back(1, reason))
    assert sorted(given_to(drive.take())) == [("rep_1", 2), ("rep_2", 2)]
    assert {e.reason for e in of(drive.after, GenerationReset)} == {reason}
    assert drive.take(back(2, reason), leased(0)) == []
    assert drive.take(admitted(3)) == []


@pytest.mark.parametrize("reason", ["engine_dead", "engine_stuck"])
def test_engines_that_die_with_a_request_are_evidence_against_it(reason: str) -> None:
    drive = driver()
    drive.take(registered(0, instance="a"), admitted(1))
    drive.take(back(1, reason))
    drive.take(registered(0, instance="b"))
    drive.take(back(1, reason, attempt=2, epoch=2))
    assert ends(drive) == [("rep_1", "failed", "poison")]
    assert of([output.event for output in drive.outputs], GenerationParked)[0].workers == ("a", "b")


@pytest.mark.parametrize("reason", ["handed_back", "undeliverable", "interrupted", "engine_overloaded", ""])
def test_other_hand_backs_are_no_evidence(reason: str) -> None:
    drive = driver()
    drive.take(registered(0), admitted(1))
    for attempt in range(1, 10):
        drive.take(back(1, reason, attempt=attempt), leased(0, renewal=attempt))
    assert ends(drive) == []


@pytest.mark.parametrize("reason", ["engine_stalled", "engine_dead", "handed_back"])
def test_a_cancelled_one_that_is_handed_back_is_not_tried_again(reason: str) -> None:
    drive = driver()
    drive.take(registered(0), admitted(1))
    drive.take(registered(1), gen_cancelled(1))
    assert given_to(drive.take(back(1, reason))) == []
    assert ends(drive) == [("rep_1", "cancelled", "")]
    assert of(drive.after, GenerationReset) == []


def suspects(**limits: Any) -> Driver:
    """Two that were with two dying workers; one of them runs on the third, alone among its like."""
    drive = driver(**limits)
    drive.take(registered(0, instance="a"), admitted(1), admitted(2))
    drive.pass_time(3_000)
    drive.take(registered(0, instance="b"))
    drive.pass_time(3_000)
    drive.take(registered(0, instance="c", slots=8))
    return drive


@pytest.mark.parametrize("queueing", ["fair", "fifo"])
@pytest.mark.parametrize("aged_ms", [0, 60_000])
def test_one_that_has_to_run_alone_never_blocks_others(queueing: Any, aged_ms: int) -> None:
    drive = suspects(queueing=queueing, ageing_share=1)
    drive.now_ms += aged_ms
    drive.take(leased(0, epoch=2, free_slots=8))
    taken = drive.take(admitted(3), admitted(4, account_id="other"), admitted(5))
    assert sorted(given_to(taken)) == [("rep_3", 1), ("rep_4", 1), ("rep_5", 1)]
    assert given_to(drive.take(finished(1, attempt=3, epoch=2))) == [("rep_2", 3)]


def test_a_worker_that_comes_back_after_its_poison_was_parked_takes_suspects_again() -> None:
    drive = driver()
    drive.take(registered(0, instance="a"), admitted(1))
    drive.pass_time(3_000)
    drive.take(registered(0, instance="b"))
    drive.pass_time(3_000)
    assert ends(drive) == [("rep_1", "failed", "poison")]
    drive.take(leased(0, epoch=1))
    step = drive.step
    assert isinstance(step, Dispatch)
    assert step.shard(NUMBER).pools["default"].workers[0].isolated == 0


# --- cancellation in every state -------------------------------------------------------------------------------


def test_a_cancel_ends_what_waits_and_it_is_never_started() -> None:
    drive = driver()
    drive.take(admitted(1), gen_cancelled(1))
    assert ends(drive) == [("rep_1", "cancelled", "")]
    assert given_to(drive.take(registered(0))) == []
    assert drive.take(gen_cancelled(1)) == []


def test_a_cancelled_request_is_not_given_again_when_its_worker_dies() -> None:
    drive = driver()
    drive.take(registered(0), admitted(1))
    drive.take(gen_cancelled(1))
    assert ends(drive) == []
    drive.pass_time(3_000)
    assert ends(drive) == [("rep_1", "cancelled", "")]
    assert of(drive.after, GenerationReset) == []


def test_a_cancelled_request_that_its_worker_ends_needs_no_end_of_ours() -> None:
    drive = driver()
    drive.take(registered(0), admitted(1))
    drive.take(gen_cancelled(1), finished(1, status="cancelled"))
    assert ends(drive) == []


# --- ends by our word ------------------------------------------------------------------------------------------


def test_past_its_deadline_a_request_ends_waiting_or_running() -> None:
    drive = driver()
    drive.take(registered(0, slots=1), admitted(1, deadline_at_ms=NOW + 2_000), admitted(2, deadline_at_ms=NOW + 2_000))
    drive.take(leased(free_slots=0))
    taken = drive.pass_time(2_000)
    assert sorted(ends(drive)) == [("rep_1", "failed", "deadline_exceeded"), ("rep_2", "failed", "deadline_exceeded")]
    assert [event.reply_id for event in of(taken, GenerationRevoked)] == ["rep_1"]


def test_a_full_queue_refuses() -> None:
    drive = driver(queue_max=2)
    drive.take(admitted(1), admitted(2), admitted(3))
    assert ends(drive) == [("rep_3", "refused", "queue_full")]
    assert len(of(drive.before, GenerationQueued)) == 3


def test_a_queue_full_of_text_refuses() -> None:
    drive = driver(queue_chars_max=10)
    drive.take(admitted(1), admitted(2, prompt=(PromptMessage(role="user", content="longer"),)))
    assert ends(drive) == [("rep_2", "refused", "queue_full")]


def test_a_pool_that_nobody_serves_refuses() -> None:
    drive = driver()
    drive.take(admitted(1, pool="gone"))
    assert ends(drive) == [("rep_1", "refused", "pool_unknown")]


def test_a_decline_of_one_never_admitted_opens_and_ends_its_stream() -> None:
    drive = driver()
    drive.take(gen_declined(1), gen_declined(1))
    assert len(of(drive.before, GenerationQueued)) == 1
    assert ends(drive) == [("rep_1", "refused", "")]


def test_the_sweepers_decline_ends_a_reply_wherever_it_is() -> None:
    drive = driver()
    sweep = {"status": "failed", "admitted": True}
    drive.take(registered(0, slots=1), admitted(1), admitted(2))
    taken = drive.take(gen_declined(1, **sweep), gen_declined(2, **sweep), gen_declined(3, **sweep))
    assert [event.reply_id for event in of(taken, GenerationRevoked)] == ["rep_1"]
    assert [(e.reply_id, e.attempt) for e in of(drive.after, GenerationEnded)] == [
        ("rep_1", 1),
        ("rep_2", 1),
        ("rep_3", ANY_ATTEMPT),
    ]
    assert len(of(drive.before, GenerationQueued)) == 2


# --- crashes ---------------------------------------------------------------------------------------------------


def test_a_restart_touches_no_running_request() -> None:
    drive = driver()
    drive.take(registered(0), admitted(1), registered(1))
    drive.flow_ms = 50_000
    drive.restart()
    assert drive.pass_time(2_000) == []
    drive.take(leased(0), leased(1, epoch=1))
    assert drive.pass_time(2_000) == []
    assert drive.take(finished(1)) == []


def test_after_a_restart_a_silent_worker_still_dies() -> None:
    drive = driver()
    drive.take(registered(0), admitted(1))
    drive.restart()
    drive.pass_time(3_000)
    assert [event.attempt for event in of(drive.after, GenerationReset)] == [2]


@pytest.mark.parametrize("crash", [True, False])
def test_an_end_or_reset_that_may_be_missing_is_written_again_until_it_is_known_to_be_there(crash: bool) -> None:
    drive = driver()
    drive.take(registered(0), admitted(1), admitted(2), admitted(3), gen_cancelled(3))
    drive.after.clear()
    drive.commit(drive.decide(gen_declined(1, admitted=True), registered(0, instance="b")), written=not crash)
    if crash:
        drive.restart()
        drive.take()
    assert {(e.reply_id, type(e)) for e in drive.after} == {("rep_1", GenerationEnded), ("rep_2", GenerationReset)}
    drive.take()
    drive.after.clear()
    drive.restart()
    drive.take()
    assert drive.after == []


def test_a_decision_that_was_not_taken_over_leaves_no_trace() -> None:
    drive = driver()
    drive.take(registered(0))
    event = admitted(1)
    arrived = drive.arrived(event)
    lost = drive.step.decide(NUMBER, [arrived], drive.now_ms, 0)
    again = drive.step.decide(NUMBER, [arrived], drive.now_ms, 0)
    assert lost.outputs == again.outputs
    assert lost.states == again.states


HAPPENINGS = st.lists(
    st.one_of(
        st.builds(
            admitted,
            st.integers(0, 9),
            tier=st.sampled_from(["free", "paid"]),
            account_id=st.sampled_from("abc"),
            deadline_at_ms=st.sampled_from([NOW + 4_000, NOW + 900_000]),
            prompt=st.sampled_from([(), (PromptMessage(role="user", content="a" * 1_100),)]),
        ),
        st.builds(gen_cancelled, st.integers(0, 9)),
        st.builds(gen_declined, st.integers(0, 9), admitted=st.booleans()),
        st.builds(
            registered, st.integers(0, 1), slots=st.integers(1, 3), kv_tokens=st.sampled_from([0, 150, 250, 1_000])
        ),
        st.builds(
            leased,
            st.integers(0, 1),
            epoch=st.integers(0, 4),
            free_slots=st.integers(0, 3),
            free_kv_tokens=st.sampled_from([0, 200, 1_000]),
            prefixes=st.sampled_from(["", packed([1]), packed([1, 2])]),
            dropped=st.sampled_from(["", packed([1])]),
            whole=st.booleans(),
        ),
        st.builds(released, st.integers(0, 1), epoch=st.integers(0, 4)),
        st.builds(
            finished,
            st.integers(0, 9),
            attempt=st.integers(1, 3),
            inbox=st.integers(0, 1),
            epoch=st.integers(0, 4),
            returned=st.booleans(),
            reason=st.sampled_from(["", "engine_stalled", "engine_dead", "engine_stuck"]),
            usage=st.sampled_from([None, Usage(input_tokens=10, output_tokens=5)]),
        ),
        st.just("time"),
        st.just("restart"),
        st.just("die before writing"),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(HAPPENINGS)
def test_whatever_happens_nobody_is_given_twice_and_the_books_are_right(happenings: list[Event | str]) -> None:
    drive = driver(running_max_free=1, running_max_paid=2, ageing_ms=1_000, ageing_share=2)
    admitted_before: set[str] = set()
    for happening in happenings:
        match happening:
            case "time":
                drive.pass_time(1_500)
            case "restart":
                drive.restart()
            case "die before writing":
                drive.commit(drive.decide(), written=False)
                drive.restart()
            case GenerationAdmitted() if happening.reply_id in admitted_before:
                pass  # turns admits a reply once
            case Event():
                if isinstance(happening, GenerationAdmitted):
                    admitted_before.add(happening.reply_id)
                drive.take(happening)
        _check_books(drive)
    requested = of([output.event for output in drive.outputs], GenerationRequested)
    assert len({event.generation_id for event in requested}) == len(requested)


def test_a_decision_leaves_nothing_to_the_garbage_collector() -> None:
    drive = driver()
    drive.take(registered(0, slots=100), admitted(1000, account_id="b"))
    gc.collect()
    gc.disable()
    try:
        for number in range(50):
            drive.take(admitted(number), leased(0, free_slots=100), finished(number - 1))
        assert gc.collect() == 0
    finally:
        gc.enable()


def _check_books(drive: Driver) -> None:
    step = drive.step
    assert isinstance(step, Dispatch)
    for pool in step.shard(NUMBER).pools.values():
        waiting = [r for r in pool.requests.values() if r.progress.phase == "queued"]
        assert pool.waiting == len(waiting)
        assert pool.waiting_chars == sum(request.chars for request in waiting)
        for (model, priority), line in pool.lines.items():
            here = {
                r.admitted.reply_id for r in waiting if (r.admitted.model, r.admitted.priority) == (model, priority)
            }
            assert line.waiting == len(here) >= line.eligible
            assert _drained(pool, line) == here
        assert pool.running == Counter(
            r.admitted.account_id for r in pool.requests.values() if r.progress.phase == "given"
        )
        assert pool.running_of == Counter(
            (r.admitted.model, r.admitted.account_id) for r in pool.requests.values() if r.progress.phase == "given"
        )
        for inbox, worker in pool.workers.items():
            held = [r for r in pool.requests.values() if r.progress.epoch == worker.epoch and r.progress.inbox == inbox]
            assert worker.held == len(held) <= worker.registered.slots
            assert worker.held_tokens == sum(request.progress.kv_tokens for request in held)
            assert worker.isolated == sum(request.progress.lost >= 2 for request in held) <= 1
            assert worker.alive or not held
        cached: Counter[int] = Counter()
        for inbox, worker in pool.workers.items():
            cached.update(dict.fromkeys(worker.prefixes | worker.fresh, 1 << inbox))
        assert pool.cached == cached
        for request in pool.requests.values():
            if request.progress.phase == "given":
                assert pool.workers[request.progress.inbox].epoch == request.progress.epoch


def _drained(pool: Pool, line: Line) -> set[str]:
    """What a line would give if there were room for all of it."""
    line = line.copy()
    found: set[str] = set()
    for request in pool.requests.values():
        line.allow(request.admitted.account_id, 1_000)
    while (place := line.head()) is not None:
        found.add(place[1])
        line.given(pool.requests[place[1]].admitted.account_id, place, 10)
    return found
