"""What counts of a reply's events: the same text, offsets and end for every reader, whatever was written twice."""

import copy

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.events import Event, GenerationQueued, NoticeGiven
from schemas.examples import EXAMPLES
from schemas.reply import Openings, Reply, apply
from schemas.stream import Delta, Ended, Notified, Reset, Started
from schemas.values import Notice, Usage
from tests.schemas.histories import (
    dispatches,
    ended,
    generations,
    histories,
    interleaved,
    piece,
    queued,
    repeated,
    reset,
    seen,
    started,
)
from tests.schemas.strategies import TEXT, struct

HELLO = [queued(), started("g", 1), piece("g", 1, 1, "hel"), piece("g", 1, 2, "lo"), ended("g", 1, 3)]


def kinds(events):
    return [type(event).__name__ for _, event in seen(events).stream]


def check_stream(outcome):
    """What holds for every stream, whatever was in the log."""
    offsets = [offset for offset, _ in outcome.stream]
    assert offsets == list(range(1, len(offsets) + 1))
    if outcome.reply is None:
        assert not outcome.stream
        return
    assert outcome.reply.offset == len(offsets)
    text, attempt, running = "", 1, False
    for number, (_, event) in enumerate(outcome.stream):
        match event:
            case Started():
                assert not running
                assert event.attempt == attempt
                running = True
            case Delta():
                assert running
                text += event.text
            case Reset():
                assert event.attempt > attempt
                text, attempt, running = "", event.attempt, False
            case Ended():
                assert number == len(offsets) - 1
    assert outcome.reply.text == text
    assert outcome.reply.attempt == attempt
    assert (outcome.reply.phase == "ended") == any(isinstance(event, Ended) for _, event in outcome.stream)


def test_a_start_without_a_generation_starts_nothing():
    assert kinds([queued(), started("", 1), started("", 2), started("g", 1), started("", 1)]) == ["Started"]


@given(histories())
def test_streams_are_dense_and_their_text_is_the_deltas_since_the_last_reset(history):
    check_stream(seen(history))


@given(st.lists(st.sampled_from(sorted(EXAMPLES, key=str)).flatmap(struct), max_size=12))
def test_the_fold_is_total(events):
    check_stream(seen(events))
    check_stream(seen([queued(), *events]))


@given(histories().flatmap(lambda history: st.tuples(st.just(history), repeated(history))))
def test_whatever_is_written_again_changes_nothing(pair):
    history, log = pair
    assert seen(log) == seen(history)


@given(histories(), st.data())
def test_a_zombie_changes_nothing(history, data):
    """A worker that comes late to an attempt is dropped, wherever its events fall after the owner's start."""
    owner_at = next((at for at, event in enumerate(history) if seen(history[: at + 1]).reply.generation_id), None)
    if owner_at is None:
        return
    attempt = seen(history[: owner_at + 1]).reply.attempt
    zombie = [
        msgspec.structs.replace(event, attempt=data.draw(st.integers(1, attempt)))
        for event in data.draw(generations(9, "r"))
    ]
    log = [*history[: owner_at + 1], *data.draw(interleaved([history[owner_at + 1 :], zombie]))]
    assert seen(log) == seen(history)


@given(histories(), st.lists(st.one_of(generations(7, "r"), dispatches("r")), max_size=3))
def test_the_first_accepted_end_is_final(history, later):
    closed = [*history, ended("", 9, 0)]
    assert seen([*closed, *(event for writer in later for event in writer)]) == seen(closed)


@given(histories())
def test_events_of_a_reply_that_was_not_opened_are_dropped(history):
    assert seen(history[1:]).reply is None
    assert seen(history[1:]).stream == ()


@given(histories(), st.data())
def test_a_fold_can_be_split_anywhere(history, data):
    at = data.draw(st.integers(0, len(history)))
    first = seen(history[:at])
    rest = seen(history[at:], first.reply)
    assert (rest.reply, first.stream + rest.stream) == (seen(history).reply, seen(history).stream)


@given(histories())
def test_the_fold_changes_nothing_that_it_was_given(history):
    reply: Reply | None = None
    for event in history:
        before = copy.deepcopy(reply)
        after, _ = apply(reply, event)
        assert reply == before
        reply = after


# --- a partition with many replies, read from a checkpoint ------------------------------------------------------


class Reader:
    """Holds the open replies of a partition and forgets the ended ones, as settlement and the buffer do."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[int, Reply]] = {}
        self.frames: dict[str, list] = {}
        self.openings = Openings()
        self.last_opening: dict[str, int] = {}

    def read(self, log: list[Event], first: int, after: int) -> None:
        for at in range(first, after):
            reply_id = log[at].reply_id
            opened_at, reply = self.open.get(reply_id, (at, None))
            reply, given = apply(reply, log[at])
            if reply is None:
                continue
            if isinstance(log[at], GenerationQueued):
                self.last_opening[reply_id] = at
            first_offset = reply.offset - len(given) + 1
            self.frames.setdefault(reply_id, []).extend(enumerate(given, start=first_offset))
            self.open[reply_id] = (opened_at, reply)
            if reply.phase == "ended":
                del self.open[reply_id]
                self.openings.ended(opened_at, self.last_opening[reply_id])

    def checkpoint(self, position: int) -> int:
        return self.openings.checkpoint(min((opened_at for opened_at, _ in self.open.values()), default=position))


@st.composite
def partitions(draw):
    """Replies interleaved; repetitions too, except that nobody opens a reply again after its end."""
    logs = [draw(histories(f"r{number}")) for number in range(draw(st.integers(1, 4)))]
    logs = [draw(repeated(log)) if draw(st.booleans()) else log for log in logs]
    return draw(interleaved([without_late_openings(log) for log in logs]))


def without_late_openings(log):
    end = next((at for at in range(len(log)) if seen(log[: at + 1]).reply.phase == "ended"), len(log))
    return [event for at, event in enumerate(log) if at <= end or not isinstance(event, GenerationQueued)]


@given(partitions(), st.data())
def test_reading_again_from_the_checkpoint_gives_the_same_frames(log, data):
    whole = Reader()
    whole.read(log, 0, len(log))
    crash = data.draw(st.integers(0, len(log)))
    before = Reader()
    before.read(log, 0, crash)
    again = Reader()
    again.read(log, before.checkpoint(crash), crash)
    assert again.open == before.open
    for reply_id, frames in again.frames.items():
        assert frames == before.frames[reply_id]
    again.read(log, crash, len(log))
    assert again.open == whole.open
    stored: dict[str, dict] = {}
    for reader in (before, again):
        for reply_id, frames in reader.frames.items():
            for offset, event in frames:
                assert stored.setdefault(reply_id, {}).setdefault(offset, event) == event
    assert stored == {reply_id: dict(frames) for reply_id, frames in whole.frames.items() if frames}


def test_nobody_begins_between_two_openings_of_a_reply_that_has_ended():
    openings = Openings()
    assert openings.checkpoint(7) == 7
    openings.ended(3, 3)
    openings.ended(5, 9)
    assert [openings.checkpoint(position) for position in (4, 5, 6, 9)] == [4, 5, 5, 5]
    openings.ended(2, 5)
    assert openings.checkpoint(9) == 2, "one leads to the other"
    assert openings.checkpoint(10) == 10


# --- each rule by example ---------------------------------------------------------------------------------------


def test_a_reply_is_its_start_its_pieces_and_its_end():
    outcome = seen(HELLO)
    assert kinds(HELLO) == ["Started", "Delta", "Delta", "Ended"]
    assert (outcome.reply.text, outcome.reply.offset, outcome.reply.phase) == ("hello", 4, "ended")
    assert outcome.reply.end == Ended(status="completed", usage=Usage(input_tokens=5, output_tokens=2))
    assert outcome.reply.model == "model of g"


def test_the_second_worker_of_an_attempt_is_dropped():
    log = [*HELLO[:3], started("z", 1), piece("z", 1, 1, "BAD"), ended("z", 1, 2), *HELLO[3:]]
    assert seen(log) == seen(HELLO)


def test_text_after_a_reset_is_the_new_attempt_alone():
    log = [*HELLO[:4], reset(2), started("h", 2), piece("h", 2, 1, "bye"), piece("g", 1, 3, "?"), ended("h", 2, 2)]
    outcome = seen(log)
    assert kinds(log) == ["Started", "Delta", "Delta", "Reset", "Started", "Delta", "Ended"]
    assert (outcome.reply.text, outcome.reply.attempt, outcome.reply.end.usage.output_tokens) == ("bye", 2, 1)


def test_a_start_that_overtakes_its_reset_gives_one_reset():
    overtaken = [*HELLO[:3], started("h", 2), reset(2), piece("h", 2, 1, "x")]
    assert kinds(overtaken) == ["Started", "Delta", "Reset", "Started", "Delta"]


def test_a_missing_piece_ends_the_reply_the_same_for_every_reader():
    log = [*HELLO[:3], piece("g", 1, 3, "?"), *HELLO[3:]]
    outcome = seen(log)
    assert kinds(log) == ["Started", "Delta", "Ended"]
    assert (outcome.reply.end.status, outcome.reply.end.error.code) == ("failed", "stream_gap")
    assert outcome.reply.text == "hel"
    assert outcome.reply.end.usage == Usage(input_tokens=0, output_tokens=1, counted=False)


def test_an_end_that_does_not_follow_the_last_piece_is_a_gap():
    assert seen([*HELLO[:3], ended("g", 1, 3)]).reply.end.error.code == "stream_gap"


def test_an_end_before_the_last_piece_is_dropped():
    assert seen([*HELLO[:4], ended("g", 1, 2)]).reply.phase == "running"


def test_dispatch_ends_what_no_worker_will_end():
    log = [*HELLO[:3], ended("", 1, 0, "cancelled")]
    outcome = seen(log)
    assert (outcome.reply.end.status, outcome.reply.text) == ("cancelled", "hel")
    assert outcome.reply.end.usage == Usage(input_tokens=0, output_tokens=1, counted=False)


def test_dispatch_cannot_end_an_attempt_that_is_over():
    assert seen([*HELLO[:2], reset(2), ended("", 1, 0)]).reply.phase == "queued"


def test_a_reply_that_never_ran_can_end():
    outcome = seen([queued(), ended("", 1, 0, "refused")])
    assert [type(event) for _, event in outcome.stream] == [Ended]
    assert outcome.reply.offset == 1


def test_a_notice_is_given_once_a_code():
    notice = NoticeGiven(reply_id="r", conversation_id="c", notice=Notice(code="shortened", detail="d"))
    log = [queued(), notice, *HELLO[1:3], notice, *HELLO[3:]]
    assert kinds(log) == ["Notified", "Started", "Delta", "Delta", "Ended"]
    assert seen(log).stream[0] == (1, Notified(code="shortened", detail="d"))


@pytest.mark.parametrize("event", [event for event in EXAMPLES.values() if event.TOPIC != "tokens"], ids=str)
def test_events_of_other_topics_change_nothing(event):
    reply = seen(HELLO[:3]).reply
    assert apply(reply, event) == (reply, ())


@given(st.lists(TEXT, max_size=30))
def test_the_text_is_the_pieces_whatever_is_in_them(texts):
    pieces = [piece("g", 1, seq, text) for seq, text in enumerate(texts, start=1)]
    outcome = seen([*HELLO[:2], *pieces, ended("g", 1, len(texts) + 1)])
    assert outcome.reply.text == "".join(texts)
    assert outcome.reply.tokens == len(texts)
