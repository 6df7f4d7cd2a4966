"""The stream of a reply as its readers see it: events with dense offsets from 1, and their native SSE frames.

A frame is `id: <offset>`, `event: <type>`, `data: <one JSON object>` and a blank line. The frames that the buffer
stores are final bytes: every reader, on any process, at any time, gets the same ones.
"""

from typing import Any

import msgspec

from schemas.values import EndStatus, Failure, Timings, Usage


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=lambda name: name.lower()):
    """Base of the stream events."""


class Started(StreamEvent, frozen=True):
    message_id: str
    """The reply's id: a reply is a message whose role is assistant."""
    conversation_id: str
    model: str
    attempt: int


class Delta(StreamEvent, frozen=True):
    text: str


class Reset(StreamEvent, frozen=True, omit_defaults=True):
    """Throw away the text so far."""

    attempt: int
    reason: str
    detail: str = ""
    """A sentence for people, where the engine or a provider said why; where none did its frame has no such member."""


class Notified(StreamEvent, frozen=True, tag="notice"):
    code: str
    detail: str


class Ended(StreamEvent, frozen=True):
    """Always the last event."""

    status: EndStatus
    usage: Usage
    timings: Timings | None = None
    error: Failure | None = None


AnyStreamEvent = Started | Delta | Reset | Notified | Ended

_ENCODER = msgspec.json.Encoder()
_NAMES: dict[type, bytes] = {
    Started: b"started",
    Delta: b"delta",
    Reset: b"reset",
    Notified: b"notice",
    Ended: b"ended",
}
_CLASSES: dict[bytes, type] = {name: cls for cls, name in _NAMES.items()}
# Escaped because some SSE clients take them for line ends: NEL, LINE SEPARATOR, PARAGRAPH SEPARATOR.
_LINE_ENDS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def frame(offset: int, event: AnyStreamEvent) -> bytes:
    """The native SSE frame of the event at this offset."""
    data = one_line(_ENCODER.encode(_members(event)))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (offset, _NAMES[type(event)], data)


def one_line(data: bytes) -> bytes:
    """JSON without anything that a reader of server-sent events could take for a line's end."""
    for raw, escaped in _LINE_ENDS:
        if raw in data:
            data = data.replace(raw, escaped)
    return data


def parse_frame(data: bytes) -> tuple[int, AnyStreamEvent]:
    """The offset and the event of a frame made by `frame`.

    Raises:
        ValueError: not such a frame.
    """
    try:
        first, second, third = data.rstrip(b"\n").split(b"\n")
        cls = _CLASSES[second.removeprefix(b"event: ")]
        members = msgspec.json.decode(third.removeprefix(b"data: "), type=dict[str, Any])
        event: AnyStreamEvent = msgspec.convert(members | {"type": _NAMES[cls].decode()}, cls)
        return int(first.removeprefix(b"id: ")), event
    except (KeyError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ValueError(f"not a frame: {data[:80]!r}") from error


def _members(event: AnyStreamEvent) -> dict[str, Any]:
    members: dict[str, Any] = msgspec.to_builtins(event)
    del members["type"]
    return members
