"""The state of the buffer: the same frames as the one fold gives, and the offset that may be committed."""

from hypothesis import given
from hypothesis import strategies as st

from projections.buffer.frames import delta_frame
from projections.buffer.replies import Limits, Replies
from schemas.stream import Delta, frame
from tests.projections.logs import AT_MS, expected
from tests.schemas.histories import ended, histories, interleaved, piece, queued, repeated, reset, started
from tests.schemas.strategies import TEXT

HELLO = [queued(), started("g", 1), piece("g", 1, 1, "hel"), piece("g", 1, 2, "lo"), ended("g", 1, 3)]


def fold(events, replies=None, first=0, limits=Limits()):  # noqa: B008 - frozen
    """Fold the events; the state, and all frames by reply."""
    replies = replies or Replies(first, limits, "ns")
    frames = {}
    for offset, event in enumerate(events, first):
        replies.take(offset, AT_MS, event)
        for held in replies.dirty():
            found = frames.setdefault(held.reply.queued.reply_id, [])
            assert held.base == len(found) + 1
            found += held.frames
        replies.written()
    return replies, frames


@given(st.integers(1, 10**9), TEXT)
def test_the_quick_frame_of_a_piece_is_the_frame(offset, text):
    assert delta_frame(offset, text) == frame(offset, Delta(text=text))


@st.composite
def logs(draw):
    """A partition: several replies, with repetitions."""
    return draw(repeated(draw(interleaved([draw(histories(f"r{n}")) for n in range(draw(st.integers(1, 3)))]))))


@st.composite
def single_openings(draw):
    """A partition in which each reply is opened once (what a second opening after the end does, the store decides)."""
    return draw(interleaved([draw(histories(f"r{n}")) for n in range(draw(st.integers(1, 3)))]))


@given(logs())
def test_frames_are_those_of_the_one_fold(log):
    _, frames = fold(log)
    assert frames == expected(log)


@given(single_openings(), st.data())
def test_a_restart_from_the_settled_offset_gives_the_same_frames(log, data):
    whole = expected(log)
    stop = data.draw(st.integers(0, len(log)))
    before, _ = fold(log[:stop], limits=Limits(grace_ms=0))
    before.pass_time(AT_MS + 1)
    start = before.settled()
    after, frames = fold(log[start:], first=start)
    # A reply that ended before the settled offset stays as it was; every other one comes out whole again.
    for reply_id, found in frames.items():
        assert found == whole[reply_id]
    assert set(whole) - set(frames) <= {getattr(event, "reply_id", "") for event in log[:start]}
    assert after.settled() >= start


def test_text_bytes_count_the_current_attempt():
    replies, _ = fold([queued(), started("g", 1), piece("g", 1, 1, "wörld"), reset(2), started("h", 2)])
    replies.take(5, AT_MS, piece("h", 2, 1, "né"))
    [held] = replies.dirty()
    assert (held.text_bytes, held.attempt, held.status) == (3, 2, "running")


def test_the_settled_offset_is_never_between_two_openings_of_a_reply_that_was_let_go():
    log = [queued("a"), queued("b"), started("g", 1, "a"), queued("a"), ended("g", 1, 1, reply_id="a"), queued("c")]
    replies, _ = fold(log, limits=Limits(grace_ms=0))
    replies.pass_time(AT_MS + 1)
    assert replies.settled() == 0
    replies, _ = fold([started("h", 1, "b"), ended("h", 1, 1, reply_id="b")], replies, len(log))
    replies.pass_time(AT_MS + 1)
    assert replies.settled() == 5


def test_the_settled_offset_is_the_opening_of_the_oldest_reply_held():
    replies, _ = fold([started("x", 1), *HELLO[:2]])
    assert replies.settled() == 1
    replies, _ = fold(HELLO)
    assert replies.settled() == 0
    replies.pass_time(AT_MS + 59_999)
    assert replies.settled() == 0
    replies.pass_time(AT_MS + 60_000)
    assert replies.settled() == 5


def test_a_reply_that_outgrows_its_bound_is_cut_once_and_at_the_same_frame_again():
    log = [*HELLO[:2], *(piece("g", 1, seq, "x") for seq in range(1, 20)), ended("g", 1, 20)]
    for _ in range(2):
        replies, frames = fold(log, limits=Limits(frames_max=5))
        assert len(frames["r"]) == 5
        assert len(replies) == 0
        assert replies.settled() == len(log)


def test_when_too_many_replies_are_open_the_oldest_is_cut():
    replies, _ = fold([queued("a"), queued("b"), queued("c")], limits=Limits(open_max=2))
    assert len(replies) == 2
    assert replies.settled() == 1


def test_a_reply_that_is_open_for_too_long_is_cut():
    replies, _ = fold(HELLO[:3], limits=Limits(open_ms=1_000))
    replies.pass_time(AT_MS + 1_000)
    [held] = replies.dirty()
    assert held.status == "cut"
    replies.written()
    assert replies.settled() == 3
