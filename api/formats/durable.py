"""Durable Streams (protocol 1.0, JSON mode), reading: what a reply's stream and a conversation's feed are in it. Pure.

Source: https://github.com/durable-streams/durable-streams/blob/main/PROTOCOL.md

Rules:

1. An item is the native event as one JSON object: `{"offset", "type", …the members of its data}`.
2. An offset of the protocol is the native one with leading zeros, so that offsets sort as text. It names the place
   behind the event: reading from it gives what comes after.
3. A stream is closed by its last event: `ended` of a reply, `deleted` of a conversation.
"""

from collections.abc import Iterable

import msgspec

from api.problems import bad_request
from schemas.codec import to_json

DIGITS = 16
START = "-1"
NOW = "now"

INTERVAL_S = 20
EPOCH_S = 1_728_432_000
"""9 October 2024, from where the protocol counts its intervals."""

_LAST = frozenset({b"ended", b"deleted"})


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a stream: its events behind `start`, as far as `end`."""

    frames: tuple[bytes, ...]
    start: int
    end: int
    up_to_date: bool
    """It holds everything that there was."""
    closed: bool
    """Nothing will ever follow."""


def offset_of(text: str | None) -> int | None:
    """The native cursor of an offset; absent or `-1` is the beginning, None stands for `now`. Raises `Problem` 400."""
    if text is None or text == START:
        return 0
    if text == NOW:
        return None
    if not (text.isascii() and text.isdigit() and len(text) == DIGITS):
        reason = f"must be -1, now, or an offset as it came in Stream-Next-Offset ({DIGITS} digits)"
        raise bad_request([("offset", reason)], "invalid_cursor")
    return int(text)


def written(offset: int) -> str:
    """An offset as clients see it."""
    return f"{offset:0{DIGITS}d}"


def native_offset(frame: bytes) -> int:
    """The offset of a native frame."""
    return int(frame[4 : frame.index(b"\n")])


def is_last(frame: bytes) -> bool:
    """Whether nothing follows this native frame."""
    return frame.split(b"\n", 2)[1].removeprefix(b"event: ") in _LAST


def item(frame: bytes) -> bytes:
    """The JSON object of a native frame."""
    number, kind, data = frame.rstrip(b"\n").split(b"\n")
    members = data.removeprefix(b"data: ")[1:]
    comma = b"" if members == b"}" else b","
    head = b'{"offset":%b,"type":"%b"' % (number.removeprefix(b"id: "), kind.removeprefix(b"event: "))
    return head + comma + members


def body(frames: Iterable[bytes]) -> bytes:
    """The JSON array of these frames."""
    return b"[" + b",".join(map(item, frames)) + b"]"


def etag(stream_id: str, found: Slice) -> str:
    """The entity tag of a slice; it changes with the closing of the stream."""
    return f'"{stream_id}:{found.start}:{found.end}{":c" if found.closed else ""}"'


def headers(found: Slice) -> dict[str, str]:
    """What an answer says about the place that it reaches."""
    said = {"Stream-Next-Offset": written(found.end)}
    if found.up_to_date:
        said["Stream-Up-To-Date"] = "true"
    if found.closed:
        said["Stream-Closed"] = "true"
    return said


def cursor(now_ms: int, given: str | None, jitter_s: int) -> str:
    """The cursor of a live answer: the number of the interval, and always beyond the client's.

    Args:
        now_ms: wall clock.
        given: the client's, if any; what is no number is taken for none.
        jitter_s: 1 to 3,600, drawn.
    """
    interval = (now_ms // 1000 - EPOCH_S) // INTERVAL_S
    theirs = int(given) if given and given.isascii() and given.isdigit() and len(given) <= DIGITS else -1
    return str(interval if theirs < interval else theirs + max(1, jitter_s // INTERVAL_S))


def data_event(frames: Iterable[bytes]) -> bytes:
    """The SSE event with these items; empty where there are none."""
    items = list(map(item, frames))
    if not items:
        return b""
    lines = b",\ndata: ".join(items)
    return b"event: data\ndata: [\ndata: %b\ndata: ]\n\n" % lines


def control_event(found: Slice, cursor_: str) -> bytes:
    """The SSE event that says how far the client is."""
    said: dict[str, object] = {"streamNextOffset": written(found.end)}
    if not found.closed:
        said["streamCursor"] = cursor_
    if found.up_to_date:
        said["upToDate"] = True
    if found.closed:
        said["streamClosed"] = True
    return b"event: control\ndata: %b\n\n" % to_json(said)
