"""What a reader gets of a reply whose buffer has expired: the stored reply as `started`, one `delta`, `ended`.

Rules:

1. The final offset stays what it was. From the beginning (cursor 0) all is served: `started` at 1, the whole text as
   one `delta` just before the end, `ended` at the final offset.
2. A reader that has everything but the end gets the end. One that has the end gets nothing.
3. A reader that has the first event alone, so no text, gets the text and the end; of a reply that needed several
   attempts after a `reset` and `started` of the last one, since nobody knows which one it saw begin. (It may have the
   event from here: a reply can be stored before its buffer has it, and a connection can break after any event.)
4. Any other cursor cannot be served exactly: the pieces are gone.
"""

from typing import Literal

import msgspec

from schemas.events import ReplyStored
from schemas.stream import AnyStreamEvent, Delta, Ended, Reset, Started, frame
from schemas.values import VoidAttempt


class Unserved(msgspec.Struct, frozen=True):
    """No exact answer for this cursor."""

    why: Literal["expired", "beyond"]


def stored_events(stored: ReplyStored) -> tuple[tuple[int, AnyStreamEvent], ...]:
    """The stored reply as stream events with their offsets."""
    final = stored.final_offset
    events: list[tuple[int, AnyStreamEvent]] = []
    if final > 1:
        events.append((1, _started(stored)))
    if final > 2 and stored.text:
        events.append((final - 1, Delta(text=stored.text)))
    events.append((final, _ended(stored)))
    return tuple(events)


def stored_frames(stored: ReplyStored, after: int) -> tuple[bytes, ...] | Unserved:
    """The frames for a reader that has everything up to `after`."""
    if after > stored.final_offset:
        return Unserved("beyond")
    if 1 < after < stored.final_offset - 1:
        return Unserved("expired")
    events = _afresh(stored) if after == 1 and stored.attempt > 1 else stored_events(stored)
    return tuple(frame(offset, event) for offset, event in events if offset > after)


def _afresh(stored: ReplyStored) -> tuple[tuple[int, AnyStreamEvent], ...]:
    """The last attempt alone, behind its reset."""
    void = stored.void_attempts[-1] if stored.void_attempts else VoidAttempt(attempt=0, reason="restarted")
    text = [Delta(text=stored.text)] if stored.text else []
    reset = Reset(attempt=stored.attempt, reason=void.reason, detail=void.detail)
    events: list[AnyStreamEvent] = [reset, _started(stored), *text, _ended(stored)]
    return tuple(enumerate(events, stored.final_offset - len(events) + 1))


def _started(stored: ReplyStored) -> Started:
    return Started(
        message_id=stored.reply_id,
        conversation_id=stored.conversation_id,
        model=stored.model,
        attempt=stored.attempt,
    )


def _ended(stored: ReplyStored) -> Ended:
    return Ended(status=stored.status, usage=stored.usage, timings=stored.timings, error=stored.error)
