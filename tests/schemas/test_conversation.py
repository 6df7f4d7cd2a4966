"""The fold of a conversation: positions are dense, a repeated event changes nothing, every branch is a path."""

import copy
import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.conversation import (
    DERIVED_TITLE_CHARS,
    apply,
    branch,
    derived_title,
    fold,
    newest_leaf,
    open_replies,
    siblings,
)
from schemas.events import (
    BranchChosen,
    ConversationDeleted,
    ConversationRenamed,
    ConversationSummarised,
    MessageSubmitted,
    RegenerationRequested,
    ReplyStored,
)
from schemas.examples import EXAMPLES
from tests.schemas.strategies import TEXT, struct

replace = msgspec.structs.replace


def submitted(number, *, parent=None, content=None):
    return replace(
        EXAMPLES[MessageSubmitted],
        conversation_id="c",
        message_id=f"m{number}",
        reply_id=f"r{number}",
        content=f"question {number}" if content is None else content,
        parent_id=parent,
        new_conversation=number == 0,
        submitted_at_ms=1_000 + number,
    )


def regenerated(number, of):
    return replace(EXAMPLES[RegenerationRequested], conversation_id="c", reply_id=f"r{number}", regenerated_id=of)


def stored(reply_id, text="answer", status="completed"):
    return replace(EXAMPLES[ReplyStored], conversation_id="c", reply_id=reply_id, text=text, status=status)


def renamed(title, request="1"):
    return replace(EXAMPLES[ConversationRenamed], conversation_id="c", title=title, request_id=request)


def chosen(message_id):
    return replace(EXAMPLES[BranchChosen], conversation_id="c", message_id=message_id)


DELETED = replace(EXAMPLES[ConversationDeleted], conversation_id="c")


@st.composite
def histories(draw, deletions=False):
    """A conversation's events, each once; parents and regenerated replies are ones that exist by then."""
    events = [submitted(0)]
    ids = ["m0", "r0"]
    replies = ["r0"]
    for number in range(1, draw(st.integers(1, 9))):
        match draw(st.sampled_from(["send", "send", "edit", "regenerate", "store", "choose", "rename", "summarise"])):
            case "send":
                events.append(submitted(number))
                ids += [f"m{number}", f"r{number}"]
                replies.append(f"r{number}")
            case "edit":
                events.append(submitted(number, parent=draw(st.sampled_from([*ids, "c"]))))
                ids += [f"m{number}", f"r{number}"]
                replies.append(f"r{number}")
            case "regenerate":
                events.append(regenerated(number, draw(st.sampled_from(replies))))
                ids.append(f"r{number}")
                replies.append(f"r{number}")
            case "store":
                events.append(stored(draw(st.sampled_from(replies)), text=f"answer {number}"))
            case "choose":
                events.append(chosen(draw(st.sampled_from(ids))))
            case "rename":
                events.append(renamed(draw(TEXT), request=str(number)))
            case "summarise":
                events.append(replace(EXAMPLES[ConversationSummarised], conversation_id="c", summary=str(number)))
    if deletions and draw(st.booleans()):
        events.insert(draw(st.integers(1, len(events))), DELETED)
    return events


GROWING = (MessageSubmitted, RegenerationRequested, ReplyStored, ConversationDeleted)


@given(histories())
def test_positions_are_dense_in_the_order_of_the_log(history):
    conversation = fold(history)
    messages = list(conversation.messages.values())
    assert [message.position for message in messages] == list(range(1, len(messages) + 1))
    assert conversation.next_position == len(messages) + 1
    for message in messages:
        if message.role == "assistant" and isinstance(message.request, MessageSubmitted):
            assert message.position == conversation.messages[message.request.message_id].position + 1


@given(histories(deletions=True), st.data())
def test_messages_replies_and_ends_written_again_change_nothing(history, data):
    log = list(history)
    for _ in range(3):
        again = data.draw(st.sampled_from([at for at, event in enumerate(log) if isinstance(event, GROWING)]))
        log.insert(data.draw(st.integers(again + 1, len(log))), log[again])
    assert fold(log) == fold(history)


@given(histories(deletions=True))
def test_a_duplicate_is_told_by_the_same_object(history):
    conversation = fold(history)
    for event in history:
        if isinstance(event, GROWING):
            assert apply(conversation, event) is conversation


@given(histories(deletions=True))
def test_the_whole_history_again_changes_no_message_and_no_position(history):
    once, twice = fold(history), fold([*history, *history])
    assert (twice.messages, twice.next_position, twice.deleted) == (once.messages, once.next_position, once.deleted)


@given(histories(deletions=True), st.data())
def test_a_fold_can_be_split_anywhere(history, data):
    at = data.draw(st.integers(0, len(history)))
    assert fold(history[at:], fold(history[:at])) == fold(history)
    one_by_one = None
    for event in history:
        one_by_one = apply(one_by_one, event)
    assert one_by_one == fold(history)


@given(histories(deletions=True))
def test_the_fold_changes_nothing_that_it_was_given(history):
    conversation = None
    for event in history:
        before = copy.deepcopy(conversation)
        after = apply(conversation, event)
        assert conversation == before
        conversation = after


@given(histories())
def test_every_branch_is_a_path_from_a_root_with_alternating_roles(history):
    conversation = fold(history)
    for message_id in conversation.messages:
        path = branch(conversation, message_id)
        assert path[-1].id == message_id
        assert path[0].parent_id is None
        for parent, child in itertools.pairwise(path):
            assert child.parent_id == parent.id
        assert len({message.id for message in path}) == len(path)
    assert branch(conversation)[-1].id == conversation.head_id


@given(histories())
def test_siblings_are_mutual_and_hold_the_message_itself(history):
    conversation = fold(history)
    for message_id in conversation.messages:
        group = siblings(conversation, message_id)
        assert message_id in group
        assert all(siblings(conversation, other) == group for other in group)


@given(histories())
def test_the_newest_leaf_is_below_and_has_nothing_below_it(history):
    conversation = fold(history)
    for message_id in conversation.messages:
        leaf = newest_leaf(conversation, message_id)
        assert message_id in [message.id for message in branch(conversation, leaf)]
        assert all(message.parent_id != leaf for message in conversation.messages.values())


@given(histories())
def test_a_deleted_conversation_holds_nothing_and_takes_nothing(history):
    gone = fold([*history, DELETED])
    assert gone.deleted
    assert (dict(gone.messages), gone.head_id, gone.title, gone.summaries) == ({}, None, "", ())
    assert fold(history, gone) is gone


@given(histories())
def test_open_replies_are_those_without_an_end(history):
    conversation = fold(history)
    ends = {event.reply_id for event in history if isinstance(event, ReplyStored)}
    replies = {message.id for message in conversation.messages.values() if message.role == "assistant"}
    assert {message.id for message in open_replies(conversation)} == replies - ends


@given(st.lists(st.sampled_from(sorted(EXAMPLES, key=str)).flatmap(struct), max_size=10))
def test_the_fold_is_total(events):
    conversation = fold([submitted(0), *events])
    for message_id in conversation.messages:
        assert branch(conversation, message_id)
        newest_leaf(conversation, message_id)


@given(TEXT)
def test_a_derived_title_is_one_short_line(text):
    title = derived_title(text)
    assert len(title) <= DERIVED_TITLE_CHARS
    assert len(title.splitlines()) <= 1


# --- each rule by example ---------------------------------------------------------------------------------------


def test_a_conversation_begins_with_a_message_that_says_so():
    assert fold([replace(submitted(0), new_conversation=False)]) is None
    assert fold([stored("r0"), renamed("x"), DELETED, submitted(0)]).messages.keys() == {"m0", "r0"}


def test_a_message_without_a_parent_answers_the_head():
    conversation = fold([submitted(0), submitted(1)])
    assert [message.id for message in branch(conversation)] == ["m0", "r0", "m1", "r1"]


def test_an_edit_of_the_first_message_is_its_sibling():
    conversation = fold([submitted(0), submitted(1), submitted(2, parent="c")])
    assert siblings(conversation, "m2") == ("m0", "m2")
    assert [message.id for message in branch(conversation)] == ["m2", "r2"]


def test_a_regenerated_reply_is_a_sibling_and_the_users_message_stays():
    conversation = fold([submitted(0), stored("r0"), regenerated(5, "r0")])
    assert siblings(conversation, "r0") == ("r0", "r5")
    assert [message.id for message in branch(conversation)] == ["m0", "r5"]
    assert sum(message.role == "user" for message in conversation.messages.values()) == 1


def test_a_message_sent_while_its_parents_reply_runs_stands_below_it():
    conversation = fold([submitted(0), submitted(1)])
    assert conversation.messages["m1"].parent_id == "r0"
    assert [reply.id for reply in open_replies(conversation)] == ["r0", "r1"]


def test_a_chosen_branch_is_shown_to_its_newest_leaf():
    history = [submitted(0), submitted(1), submitted(2, parent="c"), chosen("m0")]
    assert fold(history).head_id == "r1"
    assert fold([*history, submitted(3)]).messages["m3"].parent_id == "r1"


def test_choosing_what_is_not_there_changes_nothing():
    conversation = fold([submitted(0)])
    assert apply(conversation, chosen("m9")) is conversation


def test_the_first_end_of_a_reply_is_final():
    conversation = fold([submitted(0), stored("r0", "one"), stored("r0", "two", "failed")])
    assert (conversation.messages["r0"].text, conversation.messages["r0"].status) == ("one", "completed")


def test_a_title_is_the_owners_or_the_beginning_of_the_first_message():
    assert fold([submitted(0, content="\n  hi there \nmore")]).title == "hi there"
    assert fold([submitted(0), renamed("Mine"), renamed("", "2")]).title == ""
    assert len(fold([submitted(0, content="x" * 500)]).title) == DERIVED_TITLE_CHARS


@pytest.mark.parametrize("count", [1, 2, 50])
def test_a_long_conversation_alternates(count):
    conversation = fold([submitted(number) for number in range(count)])
    assert [message.role for message in branch(conversation)] == ["user", "assistant"] * count
