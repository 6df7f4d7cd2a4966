"""What a reader gets of a reply whose buffer has expired: the stored reply as `started`, one `delta`, `ended`.

Rules:

1. The final offset stays what it was. From the beginning (cursor 0) all is served: `started` at 1, the whole text as
   one `delta` just before the end, `ended` at the final offset.
2. A reader that has everything but the end gets the end. One that has the end gets nothing.
3. A reader that has `started` alone, of a reply that needed one attempt, gets the text and the end. (It may have it
   from here: a reply can be stored before its buffer has it, and a connection can break after any event.)
4. Any other cursor cannot be served exactly: the pieces are gone.
"""

from typing import Literal

import msgspec

from schemas.events import ReplyStored
from schemas.stream import AnyStreamEvent, Delta, Ended, Started, frame


class Unserved(msgspec.Struct, frozen=True):
    """No exact answer for this cursor."""

    why: Literal["expired", "beyond"]


def stored_events(stored: ReplyStored) -> tuple[tuple[int, AnyStreamEvent], ...]:
    """The stored reply as stream events with their offsets."""
    final = stored.final_offset
    ended = Ended(status=stored.status, usage=stored.usage, timings=stored.timings, error=stored.error)
    events: list[tuple[int, AnyStreamEvent]] = []
    if final > 1:
        started = Started(
            message_id=stored.reply_id,
            conversation_id=stored.conversation_id,
            model=stored.model,
            attempt=stored.attempt,
        )
        events.append((1, started))
    if final > 2 and stored.text:
        events.append((final - 1, Delta(text=stored.text)))
    events.append((final, ended))
    return tuple(events)


def stored_frames(stored: ReplyStored, after: int) -> tuple[bytes, ...] | Unserved:
    """The frames for a reader that has everything up to `after`."""
    if after > stored.final_offset:
        return Unserved("beyond")
    begun = after == 1 and stored.attempt == 1
    if 0 < after < stored.final_offset - 1 and not begun:
        return Unserved("expired")
    return tuple(frame(offset, event) for offset, event in stored_events(stored) if offset > after)
