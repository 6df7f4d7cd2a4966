"""The Responses API: a response object, and the stream of its events, from a reply's events.

Rules:

1. A `sequence_number` is a function of native offsets, so that a stream goes on after any number on any process:

       response.created 0, response.queued 1        from the request alone
       response.in_progress 2, …output_item.added 3, …content_part.added 4     with the first native `started`
       response.output_text.delta                   o + 3, at native offset o
       …output_text.done F + 3, …content_part.done F + 4, …output_item.done F + 5
       response.completed | .incomplete | .failed   F + 6, where F is the offset of `ended`

   Numbers rise and have gaps: `notice`, `reset` and a later `started` take theirs without an event.
2. A reply that ends before any `started` has created, queued and the last event only.
3. A reader without text goes on over a `reset`; one that has text of the attempt that is void gets the event `error`
   with the code `reply_restarted`, and nothing after it. Whoever reads from the beginning gets the attempt that counts.
4. A stream that breaks says so by an event `error` (`stream_interrupted`) with the number of the event before it, after
   which it can be resumed.
5. An expired stream is one delta with the whole text, at F + 2. Numbers from 5 to F + 1 may stand for a part of it:
   nothing can be served after them.

Source: https://platform.openai.com/docs/api-reference/responses-streaming
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from api.formats.exchange import Facts
from api.formats.format import RESTARTED, UNFINISHED, event_frame
from api.formats.openai_response_object import Told, item, item_id, part, response
from api.reading import HEARTBEAT
from schemas.stream import AnyStreamEvent, Delta, Ended, Reset, Started, parse_frame

OPENED = 3
"""What a native offset is less than the number of its delta."""
OPENING = 4
"""Number of the last event before the text."""
LAST = 6
"""What the offset of `ended` is less than the number of the last event."""
BEYOND = "The stream has ended; there is nothing after this number."

_LAST_TYPES = {"completed": "completed", "incomplete": "incomplete", "cancelled": "incomplete", "failed": "failed"}


class Unserved(msgspec.Struct, frozen=True):
    """No exact answer for this number."""

    why: Literal["expired", "beyond"]


class ResponseWriter:
    """A `Writer` for a reader that has every event up to the number `after` (-1: none).

    `void_until`: the offset of a `reset` before which no text is for this reader.
    """

    def __init__(self, facts: Facts, *, after: int = -1, void_until: int = 0) -> None:
        self.finished = False
        self._facts = facts
        self._after = after
        self._void_until = void_until
        self._newest = max(after, 0)
        self._offset = 0
        self._told = Told()

    def begin(self) -> bytes:
        """Created and queued."""
        first = response(self._facts, self._told)
        return self._event(0, "response.created", response=first) + self._event(1, "response.queued", response=first)

    def write(self, offset: int, event: AnyStreamEvent) -> bytes:
        """What the event at this offset gives."""
        dense = offset == self._offset + 1
        self._offset = offset
        match event:
            case Started() if not self._told.opened:
                self._told.take(event)
                return self._opening()
            case Delta():
                return self._delta(offset, event, dense=dense)
            case Reset() if self._told.texts:
                return self.restarted(offset)
            case Ended():
                self._told.take(event)
                return self._closing(offset)
            case _:
                self._told.take(event)
                return b""

    def beat(self) -> bytes:
        """A comment line, which the clients skip."""
        return HEARTBEAT

    def broken(self) -> bytes:
        """The error that asks to resume."""
        return self._error("stream_interrupted", UNFINISHED, self._newest)

    def restarted(self, offset: int) -> bytes:
        """The end of a stream whose text is void since the `reset` at this offset."""
        return self._error("reply_restarted", RESTARTED, max(offset + OPENED, self._newest + 1))

    def _opening(self) -> bytes:
        return (
            self._event(2, "response.in_progress", response=response(self._facts, self._told))
            + self._event(3, "response.output_item.added", output_index=0, item=item(self._facts, "in_progress", []))
            + self._event(4, "response.content_part.added", **self._place(), part=part(""))
        )

    def _delta(self, offset: int, event: Delta, *, dense: bool) -> bytes:
        if offset < self._void_until:
            return b""
        if not dense and OPENING < self._after < offset + OPENED:
            return self.broken()  # the whole text, to a reader that has a part of it
        self._told.take(event)
        place = self._place()
        return self._event(offset + OPENED, "response.output_text.delta", **place, delta=event.text, logprobs=[])

    def _closing(self, offset: int) -> bytes:
        last = offset + LAST
        if self._after > last:
            return self._error("cursor_gone", BEYOND, self._newest)
        final = response(self._facts, self._told)
        out = b""
        if self._told.opened:
            text = self._told.text
            done = {**self._place(), "text": text, "logprobs": []}
            out += self._event(last - 3, "response.output_text.done", **done)
            out += self._event(last - 2, "response.content_part.done", **self._place(), part=part(text))
            out += self._event(last - 1, "response.output_item.done", output_index=0, item=final["output"][0])
        out += self._event(last, f"response.{_LAST_TYPES[final['status']]}", response=final)
        self.finished = True
        return out

    def _event(self, number: int, kind: str, **members: Any) -> bytes:
        if number <= self._after:
            return b""
        self._newest = number
        return event_frame({"type": kind, "sequence_number": number, **members}, kind)

    def _error(self, code: str, message: str, number: int) -> bytes:
        self.finished = True
        error = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": number}
        return event_frame(error, "error")

    def _place(self) -> dict[str, Any]:
        return {"item_id": item_id(self._facts), "output_index": 0, "content_index": 0}


def begun(
    facts: Facts, frames: Sequence[bytes], *, stored: bool, after: int
) -> tuple[ResponseWriter, bytes] | Unserved:
    """The stream after a number, as it begins: what goes out at once, and the writer of what follows.

    Args:
        facts: of the reply.
        frames: all that there is of its stream.
        stored: they are those of an expired stream.
        after: the reader has every event up to this number; -1: none.
    """
    events = [parse_frame(data) for data in frames]
    last = events[-1] if events and isinstance(events[-1][1], Ended) else None
    if last is not None and after > last[0] + LAST:
        return Unserved("beyond")
    if last is not None and stored and OPENING < after < last[0] + OPENED - 1:
        return Unserved("expired")
    reset_at = max((offset for offset, event in events if isinstance(event, Reset)), default=0)
    writer = ResponseWriter(facts, after=after, void_until=reset_at)
    if _has_void_text(events, reset_at, after):
        return writer, writer.restarted(reset_at)
    out = [writer.begin()]
    for offset, event in events:
        out.append(writer.write(offset, event))
        if writer.finished:
            break
    return writer, b"".join(out)


def _has_void_text(events: Iterable[tuple[int, AnyStreamEvent]], reset_at: int, after: int) -> bool:
    """Whether a reader up to this number was given text before the last reset, and nothing behind it."""
    if after > reset_at + OPENED:
        return False
    return any(
        isinstance(event, Delta) and event.text and offset < reset_at and offset + OPENED <= after
        for offset, event in events
    )
