"""Turns: what each message, cancellation and end leads to, and that a restart changes nothing."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.conversation import fold
from schemas.events import (
    BranchChosen,
    ConversationRenamed,
    ConversationSummarised,
    Event,
    GenerationAdmitted,
    GenerationCancelled,
    GenerationDeclined,
    MessageSubmitted,
)
from schemas.models import SMOLLM2
from schemas.values import PromptMessage
from streams.turns.policy import Policy
from streams.turns.step import Turns
from tests.streams.driver import NUMBER, Driver, of
from tests.streams.events import MODEL, cancellation, deleted, regenerated, stored, submitted

POLICY = Policy()


def driver(**policy: Any) -> Driver:
    return Driver(lambda: Turns(Policy(**policy)))


def prompt(events: list[Event]) -> list[str]:
    [event] = of(events, GenerationAdmitted)
    return [message.content for message in event.prompt]


def declined(events: list[Event]) -> list[tuple[str, str, str]]:
    return [(e.reply_id, e.status, e.error.code if e.error else "") for e in of(events, GenerationDeclined)]


def chosen(message: str) -> BranchChosen:
    return BranchChosen(conversation_id="conv_a", account_id="acc", message_id=message, chosen_at_ms=1, request_id="r")


def renamed(title: str) -> ConversationRenamed:
    return ConversationRenamed(conversation_id="conv_a", account_id="acc", title=title, renamed_at_ms=1, request_id="r")


def test_a_first_message_is_admitted_to_the_pool_of_its_model() -> None:
    [event] = driver().take(submitted(1, tier="paid", temperature=0.5, max_output_tokens=7, stop=("x",)))
    assert isinstance(event, GenerationAdmitted)
    assert (event.pool, event.priority, event.model) == ("default", "paid", MODEL)
    assert (event.reply_id, event.message_id) == ("rep_a1", "msg_a1")
    assert (event.sampling.max_output_tokens, event.sampling.temperature, event.sampling.stop) == (7, 0.5, ("x",))
    assert event.deadline_at_ms == event.submitted_at_ms + POLICY.deadline_ms


def test_the_priority_that_it_was_let_in_with_holds_also_when_it_has_waited() -> None:
    drive = driver()
    [first] = drive.take(submitted(1, priority="paid"))
    assert drive.take(submitted(2, priority="paid")) == []
    drive.restart()
    [second] = of(drive.take(stored(1)), GenerationAdmitted)
    drive.take(stored(2))
    [third] = of(drive.take(submitted(3)), GenerationAdmitted)
    [again] = of(drive.take(regenerated(4, of=1, priority="paid")), GenerationAdmitted)
    assert [(event.tier, event.priority) for event in (first, second, third, again)] == [
        ("free", "paid"),
        ("free", "paid"),
        ("free", "free"),
        ("free", "paid"),
    ]


def test_a_repeated_message_is_ignored_before_and_after_its_end() -> None:
    drive = driver()
    drive.take(submitted(1))
    assert drive.take(submitted(1)) == []
    drive.take(stored(1))
    assert drive.take(submitted(1, content="other")) == []
    drive.restart()
    assert drive.take(submitted(1)) == []


def test_a_turn_waits_for_the_open_reply_before_it_and_then_sees_its_text() -> None:
    drive = driver()
    drive.take(submitted(1))
    assert drive.take(submitted(2)) == []
    assert prompt(drive.take(stored(1))) == ["message 1", "reply 1", "message 2"]


def test_a_chain_of_turns_goes_on_one_by_one() -> None:
    drive = driver()
    drive.take(submitted(1), submitted(2), submitted(3))
    assert prompt(drive.take(stored(1)))[-1] == "message 2"
    assert prompt(drive.take(stored(2)))[-1] == "message 3"


def test_a_turn_on_another_branch_does_not_wait() -> None:
    drive = driver()
    drive.take(submitted(1), stored(1), submitted(2))
    assert prompt(drive.take(submitted(3, parent_id="rep_a1"))) == ["message 1", "reply 1", "message 3"]
    assert prompt(drive.take(submitted(4, parent_id="conv_a"))) == ["message 4"]


@pytest.mark.parametrize(("asked", "begin"), [(3, 3), (4, 4), (5, 4), (9, 4)])
def test_a_conversation_has_only_so_many_replies_running(asked: int, begin: int) -> None:
    drive = driver(conversation_running_max=4)
    drive.take(submitted(1), stored(1))
    admitted = of(drive.take(*(submitted(n, parent_id="rep_a1") for n in range(2, 2 + asked))), GenerationAdmitted)
    assert [event.reply_id for event in admitted] == [f"rep_a{n}" for n in range(2, 2 + begin)]


def test_those_above_the_bound_of_a_conversation_begin_one_by_one_as_others_are_stored_in_the_order_of_asking() -> None:
    drive = driver(conversation_running_max=2)
    drive.take(submitted(1), stored(1))
    drive.take(*(submitted(n, parent_id="rep_a1") for n in range(2, 7)))
    drive.restart()
    for ended, begins in ((3, 4), (2, 5), (5, 6)):
        assert [e.reply_id for e in of(drive.take(stored(ended)), GenerationAdmitted)] == [f"rep_a{begins}"]
    assert drive.take(stored(4), stored(6)) == []


def test_the_bound_of_one_conversation_holds_up_no_other_one() -> None:
    drive = driver(conversation_running_max=1)
    drive.take(submitted(1), submitted(2, parent_id="conv_a"))
    assert prompt(drive.take(submitted(1, "conv_b"))) == ["message 1"]


def test_a_turn_that_waits_for_its_conversations_bound_can_be_cancelled_and_is_told_at_once_when_it_cannot_run() -> (
    None
):
    drive = driver(conversation_running_max=1)
    drive.take(submitted(1), submitted(2, parent_id="conv_a"))
    assert declined(drive.take(submitted(3, parent_id="conv_a", model="none"))) == [
        ("rep_a3", "refused", "model_unknown")
    ]
    assert declined(drive.take(cancellation(2))) == [("rep_a2", "cancelled", "")]
    assert drive.take(stored(1)) == []


def test_the_deadline_of_a_turn_that_waited_for_the_bound_counts_from_the_end_that_let_it_begin() -> None:
    drive = driver(conversation_running_max=1)
    drive.take(submitted(1), submitted(2, parent_id="conv_a"))
    [event] = of(drive.take(stored(1, ended_at_ms=1_500_000)), GenerationAdmitted)
    assert event.deadline_at_ms == 1_500_000 + POLICY.deadline_ms


def test_a_regeneration_answers_the_same_message_anew() -> None:
    drive = driver()
    drive.take(submitted(1), stored(1), submitted(2), stored(2))
    events = drive.take(regenerated(3, of=2))
    assert prompt(events) == ["message 1", "reply 1", "message 2"]
    assert of(events, GenerationAdmitted)[0].message_id == "msg_a2"
    assert prompt([*drive.take(stored(3)), *drive.take(submitted(4))])[-2:] == ["reply 3", "message 4"]


def test_a_chosen_branch_is_where_the_next_message_goes_on() -> None:
    drive = driver()
    drive.take(submitted(1), stored(1), regenerated(2, of=1), stored(2), chosen("rep_a1"))
    assert prompt(drive.take(submitted(3))) == ["message 1", "reply 1", "message 3"]


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (submitted(2, conversation="conv_b"), "conversation_archived"),
        (submitted(2, model="none"), "model_unknown"),
        (submitted(2, parent_id="rep_zz"), "parent_unknown"),
        (regenerated(2, of=9), "parent_unknown"),
        (submitted(2, content="x" * 200_000), "prompt_too_large"),
        (submitted(2, account_id="other"), "conversation_unknown"),
    ],
)
def test_what_cannot_run_is_declined_once_with_its_reason(event: Event, code: str) -> None:
    drive = driver()
    drive.take(submitted(1), stored(1))
    events = drive.take(event)
    assert [(status, why) for _, status, why in declined(events)] == [("refused", code)]
    assert not of(events, GenerationDeclined)[0].admitted


def test_a_refused_turn_does_not_hold_up_the_next_once_its_end_is_stored() -> None:
    drive = driver()
    drive.take(submitted(1), stored(1), submitted(2, model="none"))
    assert drive.take(submitted(3)) == []
    events = drive.take(stored(2, status="refused", text=""))
    assert prompt(events) == ["message 1", "reply 1", "message 2\n\nmessage 3"]


# --- cancellation ----------------------------------------------------------------------------------------------


def test_a_cancellation_is_passed_on_once() -> None:
    drive = driver()
    drive.take(submitted(1))
    assert [type(event) for event in drive.take(cancellation(1))] == [GenerationCancelled]
    assert drive.take(cancellation(1)) == []
    drive.take(stored(1, status="cancelled"))
    assert drive.take(cancellation(1)) == []


def test_a_cancellation_ends_a_turn_that_waits_and_those_behind_it_go_on() -> None:
    drive = driver()
    drive.take(submitted(1), submitted(2), submitted(3))
    assert declined(drive.take(cancellation(2))) == [("rep_a2", "cancelled", "")]
    assert drive.take(stored(1)) == []
    assert prompt(drive.take(stored(2, status="cancelled", text="")))[-1] == "message 2\n\nmessage 3"


@pytest.mark.parametrize("crash", [True, False])
def test_a_cancellation_that_comes_before_its_message_counts(crash: bool) -> None:
    drive = driver()
    assert drive.take(cancellation(1)) == []
    if crash:
        drive.restart()
    assert declined(drive.take(submitted(1))) == [("rep_a1", "cancelled", "")]
    assert "early/rep_a1" not in drive.live_keys()


def test_early_cancellations_are_bounded_in_number_and_time() -> None:
    drive = driver(notes_max=2, notes_ttl_ms=10_000)
    for number in range(1, 4):
        drive.now_ms += 1
        drive.take(cancellation(number, "conv_b"))
    assert drive.live_keys() == {"early/rep_b2", "early/rep_b3"}
    drive.pass_time(21_000)
    assert drive.live_keys() == set()


# --- deletion, sweeper, limits ---------------------------------------------------------------------------------


def test_deleting_a_conversation_cancels_its_open_replies_and_leaves_no_text() -> None:
    drive = driver()
    drive.take(submitted(1), submitted(2))
    events = drive.take(deleted())
    assert [event.reply_id for event in of(events, GenerationCancelled)] == ["rep_a1"]
    assert declined(events) == [("rep_a2", "cancelled", "")]
    assert not any(key.endswith("/request") for key in drive.live_keys())
    assert drive.take(submitted(1)) == []
    assert declined(drive.take(submitted(3))) == [("rep_a3", "refused", "conversation_deleted")]
    drive.take(stored(1), stored(2))
    assert drive.take(submitted(3)) == []
    assert drive.live_keys() == {"conv_a/head", "declined/rep_a3"}


def test_the_sweeper_ends_a_reply_whose_end_never_comes_and_keeps_at_it() -> None:
    drive = driver(deadline_ms=60_000, sweep_margin_ms=10_000)
    drive.take(submitted(1))
    assert drive.pass_time(69_000) == []
    first = drive.pass_time(2_000)
    assert declined(first) == [("rep_a1", "failed", "deadline_exceeded")]
    assert of(first, GenerationDeclined)[0].admitted
    assert len(declined(drive.pass_time(100_000))) == 3
    drive.take(stored(1))
    assert drive.pass_time(1_000_000, tick_ms=10_000) == []


def test_the_sweeper_ends_a_turn_that_waits_at_its_deadline() -> None:
    drive = driver(deadline_ms=60_000, sweep_margin_ms=100_000)
    drive.take(submitted(1), submitted(2))
    events = drive.pass_time(61_000)
    assert declined(events) == [("rep_a2", "failed", "deadline_exceeded")]
    assert not of(events, GenerationDeclined)[0].admitted


def test_the_deadline_of_a_turn_that_waited_counts_from_the_end_it_waited_for() -> None:
    drive = driver()
    drive.take(submitted(1), submitted(2))
    [event] = of(drive.take(stored(1, ended_at_ms=1_500_000)), GenerationAdmitted)
    assert event.deadline_at_ms == 1_500_000 + POLICY.deadline_ms


def test_the_least_recently_active_conversations_are_archived() -> None:
    drive = driver(conversations_max=2)
    drive.take(submitted(1), stored(1))
    drive.take(submitted(1, "conv_b"), stored(1, "conv_b"))
    drive.take(submitted(2), stored(2))
    drive.take(submitted(1, "conv_c"))
    assert {key.split("/")[0] for key in drive.live_keys()} == {"conv_a", "conv_c"}
    assert declined(drive.take(submitted(2, "conv_b")))[0][2] == "conversation_archived"


def test_a_conversation_with_an_open_reply_is_never_archived() -> None:
    drive = driver(conversations_max=1)
    drive.take(submitted(1))
    drive.take(submitted(1, "conv_b"))
    assert {key.split("/")[0] for key in drive.live_keys()} == {"conv_a", "conv_b"}


def test_old_text_is_forgotten_and_nothing_else() -> None:
    drive = driver(window_chars_max=20_000)
    for number in range(1, 21):
        drive.take(submitted(number, content=f"{number} " * 400), stored(number))
    turns = drive.step
    assert isinstance(turns, Turns)
    held = turns.shard(NUMBER).held["conv_a"]
    assert held.stubs_until > 0
    assert len(held.conversation.messages) == 40
    assert drive.take(submitted(1)) == []
    assert declined(drive.take(submitted(30, parent_id="rep_a1")))[0][2] == "message_archived"
    assert prompt(drive.take(submitted(31, parent_id="rep_a20")))[-1] == "message 31"


def test_a_history_counts_as_text_and_is_forgotten_with_it() -> None:
    drive = driver(window_chars_max=20_000)
    brought = (PromptMessage(role="user", content="x" * 3_000),)
    for number in range(1, 9):
        drive.take(submitted(number, history=brought), stored(number))
    turns = drive.step
    assert isinstance(turns, Turns)
    held = turns.shard(NUMBER).held["conv_a"]
    assert held.stubs_until > 0
    requests = [message.request for message in held.conversation.messages.values() if message.role == "user"]
    assert isinstance(requests[0], MessageSubmitted)
    assert requests[0].history == ()
    assert held.chars < 20_000 + 17 * 1_000


def test_a_full_conversation_refuses() -> None:
    drive = driver(messages_max=4)
    drive.take(submitted(1), stored(1), submitted(2), stored(2))
    assert declined(drive.take(submitted(3)))[0][2] == "conversation_full"


# --- restarts --------------------------------------------------------------------------------------------------

CONVERSATIONS = st.sampled_from(["conv_a", "conv_b", "conv_c"])
PARENTS = st.sampled_from([None, None, "conv_a", "rep_a1", "rep_a2", "msg_a1", "rep_zz"])
EVENTS = st.one_of(
    st.builds(
        submitted,
        st.integers(1, 6),
        CONVERSATIONS,
        parent_id=PARENTS,
        model=st.sampled_from(["auto", "auto", "none"]),
        content=st.sampled_from(["hello", "long " * 1_200]),
        system=st.sampled_from([None, "be kind"]),
    ),
    st.builds(regenerated, st.integers(7, 9), st.integers(1, 6), CONVERSATIONS),
    st.builds(stored, st.integers(1, 9), CONVERSATIONS, status=st.sampled_from(["completed", "refused", "cancelled"])),
    st.builds(cancellation, st.integers(1, 9), CONVERSATIONS),
    st.builds(deleted, CONVERSATIONS),
    st.builds(chosen, st.sampled_from(["rep_a1", "msg_a2", "rep_a8", "zz"])),
    st.builds(renamed, st.text(max_size=5)),
    st.builds(
        ConversationSummarised,
        conversation_id=CONVERSATIONS,
        account_id=st.just("acc"),
        until_message_id=st.just("m"),
        summary=st.text(max_size=5),
        summarised_at_ms=st.integers(0, 9),
    ),
)
TIGHT = {"conversations_max": 2, "window_chars_max": 20_000, "notes_max": 3, "deadline_ms": 5_000_000}


def state(drive: Driver) -> Any:
    turns = drive.step
    assert isinstance(turns, Turns)
    shard = turns.shard(NUMBER)
    return list(shard.held.items()), sorted(shard.notes.items()), shard.chars, shard.due


@given(st.lists(st.lists(EVENTS, max_size=4), max_size=25))
def test_a_restart_anywhere_gives_exactly_the_same_state(batches: list[list[Event]]) -> None:
    drive = driver(**TIGHT)
    for batch in batches:
        drive.now_ms += 1_000
        drive.take(*batch)
        before = state(drive)
        drive.restart()
        assert state(drive) == before


@given(st.lists(EVENTS, max_size=60), st.data())
def test_with_or_without_crashes_the_same_is_written(events: list[Event], data: st.DataObject) -> None:
    plain, crashing = driver(**TIGHT), driver(**TIGHT)
    for event in events:
        plain.now_ms = crashing.now_ms = plain.now_ms + 1_000
        expected = plain.take(event)
        arrived = crashing.arrived(event)
        for crash in data.draw(st.lists(st.sampled_from(["abort", "restart"]), max_size=2)):
            crashing.step.decide(NUMBER, [arrived], crashing.now_ms, 0)
            if crash == "restart":
                crashing.restart()
        decision = crashing.step.decide(NUMBER, [arrived], crashing.now_ms, 0)
        assert crashing.commit(decision) == expected
    assert state(plain) == state(crashing)


@given(st.lists(EVENTS, max_size=60))
def test_each_reply_is_admitted_once_at_most_while_its_conversation_is_held(events: list[Event]) -> None:
    drive = driver()
    written = [event for batch in events for event in drive.take(batch)]
    admissions = [event.reply_id for event in of(written, GenerationAdmitted)]
    assert len(set(admissions)) == len(admissions)


@given(st.lists(EVENTS.filter(lambda event: getattr(event, "conversation_id", "") == "conv_a"), max_size=40))
def test_positions_and_branches_are_those_of_the_fold_that_readers_use(events: list[Event]) -> None:
    """From a beginning on: the API asks for nothing in a conversation that was not begun."""
    events = list(itertools.dropwhile(lambda event: not getattr(event, "new_conversation", False), events))
    drive = driver(window_chars_max=10_000_000)
    for event in events:
        drive.take(event)
    theirs = fold([event for event in events if not isinstance(event, GenerationAdmitted)])
    turns = drive.step
    assert isinstance(turns, Turns)
    ours = turns.shard(NUMBER).held.get("conv_a")
    if theirs is None or ours is None:
        assert theirs is None
        assert ours is None
        return
    places = {m.id: (m.position, m.parent_id, m.status) for m in theirs.messages.values()}
    assert {m.id: (m.position, m.parent_id, m.status) for m in ours.conversation.messages.values()} == places
    assert ours.conversation.head_id == theirs.head_id


def test_a_message_whose_only_text_is_a_system_prompt_of_old_keeps_it() -> None:
    drive = driver(window_chars_max=20_000, models=(replace(SMOLLM2, context_tokens=200_000),))
    drive.take(submitted(1, system="be kind", content="x" * 9_000), stored(1))
    for number in range(2, 8):
        drive.take(submitted(number, content="y" * 4_000), stored(number))
    assert prompt(drive.take(submitted(9)))[0] == "be kind"
