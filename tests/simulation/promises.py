"""The promises 1 to 6 as invariants over what can be seen from outside: the frames that readers got, what is stored,
what is billed. One function each; the simulation and the kills on the real stack share them.

Every function returns nothing, or raises `Broken`, which names it. Frames are those of `schemas.stream`. The engines of
the tests say numbered words (`word7`), with a tag of their generation where they can (`w7/2.1`), so that a missing, a
doubled or a stranger's token is seen in the text itself, without the fold that decides about it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import ParamSpec

from schemas.stream import Delta, Ended, Reset, Started
from schemas.values import EndStatus
from tests.simulation.frames import Kept, Read, end_of, events_of, parsed, text_of, words_of

_Checked = ParamSpec("_Checked")


class Broken(AssertionError):
    """A promise does not hold. `invariant` is the name of the function that says so."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


class Refused(Exception):
    """An invariant's finding, until it gets the invariant's name."""


def require(holds: object, detail: str) -> None:
    """Of an invariant: what must hold, and what is said where it does not."""
    if not holds:
        raise Refused(detail)


def invariant(check: Callable[_Checked, None]) -> Callable[_Checked, None]:
    """A function of this kind: what it finds is raised under its name."""

    @functools.wraps(check)
    def named(*args: _Checked.args, **kwargs: _Checked.kwargs) -> None:
        try:
            check(*args, **kwargs)
        except Refused as refused:
            raise Broken(check.__name__, str(refused)) from None

    return named


# --- 1: accepted is durable -------------------------------------------------------------------------------------------


@invariant
def an_accepted_message_ends_once(reply_id: str, frames: Sequence[bytes]) -> None:
    """The stream of an accepted reply has one end, and it is the last event."""
    ends = [offset for offset, event in events_of(frames) if isinstance(event, Ended)]
    require(ends, f"{reply_id} has no end after {len(frames)} events")
    require(ends == [len(frames)], f"{reply_id} has its ends at {ends} of {len(frames)}")


@invariant
def nobody_waits_for_ever(reply_id: str, ended_ms: int, since_ms: int, within_ms: int) -> None:
    """Where nothing fails any more, whoever waits is served: whatever others ask for, and however much."""
    require(ended_ms <= since_ms + within_ms, f"{reply_id} ended {ended_ms - since_ms} ms after it could have begun")


@invariant
def everybody_has_the_same_end(reply_id: str, frames: Sequence[bytes], kept: Sequence[Kept]) -> None:
    """What is stored and what is billed ended as readers saw it end."""
    end = end_of(frames)
    for one in kept:
        require(end and one.status == end.status, f"{reply_id} {one.where} as {one.status}, readers saw {end}")
        require(
            one.final_offset in (None, len(frames)),
            f"{reply_id} {one.where} with offset {one.final_offset}, readers saw {len(frames)}",
        )


@invariant
def a_completed_reply_is_whole(reply_id: str, frames: Sequence[bytes], words: int) -> None:
    """A reply that completed has every word that the engine was asked for."""
    end = end_of(frames)
    if end is not None and end.status == "completed":
        said = len(words_of(text_of(frames)))
        require(said == words, f"{reply_id} completed with {said} words of {words}")


# --- 2: resume is exact -----------------------------------------------------------------------------------------------


@invariant
def offsets_are_dense(reply_id: str, frames: Sequence[bytes]) -> None:
    """The offsets of a stream are 1, 2, 3…"""
    offsets = [offset for offset, _ in events_of(frames)]
    require(offsets == list(range(1, len(offsets) + 1)), f"{reply_id} has the offsets {offsets}")


@invariant
def a_reader_gets_each_event_once_and_in_order(read: Read) -> None:
    """Whatever broke in between: none missed, none doubled, none out of order."""
    offsets = [offset for offset, _ in events_of(read.frames)]
    wanted = list(range(read.after + 1, read.after + 1 + len(offsets)))
    require(offsets == wanted, f"{read.who} of {read.reply_id} after {read.after} got {offsets}")


@invariant
def every_reader_gets_the_same_bytes(read: Read, frames: Sequence[bytes]) -> None:
    """A frame is the same for each reader, at any time, from any process."""
    for data in read.frames:
        offset = parsed(data)[0]
        there = frames[offset - 1] if offset <= len(frames) else None
        require(data == there, f"{read.who} of {read.reply_id} got {data!r} where the stream has {there!r}")


@invariant
def a_reader_sees_the_end(read: Read, final_offset: int) -> None:
    """A reader that goes on comes to the end, or is told why it cannot."""
    if not read.told:
        require(read.cursor == final_offset, f"{read.who} of {read.reply_id} is at {read.cursor} of {final_offset}")
    if read.frames and not read.told:
        require(end_of(read.frames), f"{read.who} of {read.reply_id} has no end")


@invariant
def the_stored_reply_is_the_same_reply(read: Read, frames: Sequence[bytes], stored: Sequence[bytes]) -> None:
    """A reader that was served the stored reply has the same text and end at the same final offset."""
    for data in read.frames:
        offset = parsed(data)[0]
        known = [*frames[offset - 1 : offset], *(one for one in stored if parsed(one)[0] == offset)]
        require(data in known, f"{read.who} of {read.reply_id} got {data!r}, which is neither streamed nor stored")
    if read.after <= 1 and end_of(read.frames):
        seen, wanted = text_of(read.frames), text_of(frames)
        require(seen == wanted, f"{read.who} of {read.reply_id} has {seen!r}, the stream has {wanted!r}")


# --- 3: seen is stored is billed --------------------------------------------------------------------------------------


@invariant
def seen_is_stored(reply_id: str, frames: Sequence[bytes], stored: Kept) -> None:
    """The deltas since the last reset are the stored text."""
    text = text_of(frames)
    require(stored.text == text, f"{reply_id} is stored as {stored.text!r}, readers saw {text!r}")


@invariant
def seen_is_billed(reply_id: str, frames: Sequence[bytes], bills: Sequence[Kept]) -> None:
    """There is one bill, for the tokens of the end that readers saw."""
    require(len(bills) == 1, f"{reply_id} has {len(bills)} bills: {bills}")
    end = end_of(frames)
    used = end.usage.output_tokens if end else None
    require(
        bills[0].output_tokens == used, f"{reply_id} is billed {bills[0].output_tokens} tokens, its end says {used}"
    )


@invariant
def no_token_is_missed_or_doubled(reply_id: str, frames: Sequence[bytes]) -> None:
    """The words of each attempt are 1, 2, 3…, as the engine said them."""
    text = ""
    for _, event in [*events_of(frames), (0, Reset(attempt=0, reason=""))]:
        if isinstance(event, Delta):
            text += event.text
        elif isinstance(event, Reset):
            numbers = [number for number, _ in words_of(text)]
            require(numbers == list(range(1, len(numbers) + 1)), f"{reply_id} has the words {numbers}")
            text = ""


# --- 4: a send is idempotent ------------------------------------------------------------------------------------------


@invariant
def one_client_id_is_one_reply(client_id: str, reply_ids: Sequence[str]) -> None:
    """However often and wherever a message was sent, each answer named one reply."""
    require(len(set(reply_ids)) <= 1, f"{client_id} was answered with {sorted(set(reply_ids))}")


@invariant
def a_conversation_has_what_was_sent(
    conversation_id: str, positions: Sequence[int], has: set[str], sent: set[str]
) -> None:
    """Each accepted message is there once, at its own place, and nothing else is."""
    wanted = list(range(1, len(positions) + 1))
    require(list(positions) == wanted, f"{conversation_id} has the positions {list(positions)}")
    require(has == sent, f"{conversation_id} lacks {sorted(sent - has)} and has {sorted(has - sent)} too much")


# --- 5: cancel works --------------------------------------------------------------------------------------------------


@invariant
def a_cancelled_reply_stops(reply_id: str, status: EndStatus, ended_ms: int, cancelled_ms: int, within_ms: int) -> None:
    """What ends long after its cancellation ends as cancelled (or was refused)."""
    late = ended_ms > cancelled_ms + within_ms
    require(
        not late or status in ("cancelled", "refused"),
        f"{reply_id} ended as {status} {ended_ms - cancelled_ms} ms after its cancellation",
    )


# --- 6: failover is visible and fenced --------------------------------------------------------------------------------


@invariant
def a_reset_precedes_a_new_attempt(reply_id: str, frames: Sequence[bytes]) -> None:
    """Each attempt starts once, after the reset that announces it, and no text comes outside of it."""
    attempt, running = 1, False
    for offset, event in events_of(frames):
        match event:
            case Started():
                require(not running, f"{reply_id} starts again at {offset}")
                require(event.attempt == attempt, f"{reply_id} starts attempt {event.attempt} during {attempt}")
                running = True
            case Delta():
                require(running, f"{reply_id} has text before its start, at {offset}")
            case Reset():
                require(event.attempt > attempt, f"{reply_id} is reset from {attempt} to {event.attempt}")
                attempt, running = event.attempt, False


@invariant
def a_zombie_is_not_heard(reply_id: str, frames: Sequence[bytes]) -> None:
    """All words of an attempt were said by one generation."""
    heard: set[str] = set()
    for offset, event in events_of(frames):
        if isinstance(event, Delta):
            heard |= {tag for _, tag in words_of(event.text)}
            require(len(heard) <= 1, f"{reply_id} has words of {sorted(heard)} in one attempt, at {offset}")
        elif isinstance(event, Reset):
            heard = set()


@invariant
def one_attempt_is_charged(reply_id: str, frames: Sequence[bytes]) -> None:
    """The usage is of the last attempt: as many tokens as its text has words."""
    end = end_of(frames)
    words = len(words_of(text_of(frames)))
    used = end.usage.output_tokens if end else None
    require(used == words, f"{reply_id} is charged {used} tokens and has {words} words")


def of_a_stream(reply_id: str, frames: Sequence[bytes], words: int) -> None:
    """All that a stream says about itself."""
    offsets_are_dense(reply_id, frames)
    an_accepted_message_ends_once(reply_id, frames)
    a_reset_precedes_a_new_attempt(reply_id, frames)
    a_zombie_is_not_heard(reply_id, frames)
    no_token_is_missed_or_doubled(reply_id, frames)
    one_attempt_is_charged(reply_id, frames)
    a_completed_reply_is_whole(reply_id, frames, words)


def _is_from_the_stored_reply(read: Read, frames: Sequence[bytes], stored: Sequence[bytes]) -> bool:
    """It has what only the stored reply gives, or nothing but that behind the first event, with a gap before it."""
    if any(data in stored and data not in frames for data in read.frames):
        return True
    offsets = [parsed(data)[0] for data in read.frames]
    gap = offsets != list(range(read.after + 1, read.after + 1 + len(offsets)))
    behind = read.frames[1:] if read.after == 0 else read.frames
    return gap and read.after <= 1 and all(data in stored for data in behind)


def of_a_reader(read: Read, frames: Sequence[bytes], stored: Sequence[bytes] = ()) -> None:
    """All that must hold of one reader; `stored` are the frames of the stored reply, where it may have got those."""
    if _is_from_the_stored_reply(read, frames, stored):
        the_stored_reply_is_the_same_reply(read, frames, stored)
    else:
        a_reader_gets_each_event_once_and_in_order(read)
        every_reader_gets_the_same_bytes(read, frames)
    a_reader_sees_the_end(read, len(frames))
