"""Frames: one event, one offset, and nothing in the data that a reader could take for a line's end."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.stream import Delta, Ended, Notified, Reset, Started, frame, parse_frame
from schemas.values import Failure, Timings, Usage
from tests.schemas.strategies import struct

EVENTS = st.one_of(*(struct(cls) for cls in (Started, Delta, Reset, Notified, Ended)))
OFFSETS = st.integers(min_value=1, max_value=2**53)
ENDED = (
    b'{"status":"failed","usage":{"input_tokens":3,"output_tokens":1,"cached_input_tokens":0,"cache_write_tokens":0,'
    b'"cache_write_long_tokens":0,"reasoning_tokens":0,"counted":true},"timings":{"queued_ms":1,"first_token_ms":null,"total_ms":2},"error":{"code":"c","detail":"d"}}'
)
LINE_END = re.compile("[\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029]")


@given(OFFSETS, EVENTS)
def test_a_frame_is_read_as_what_was_written(offset, event):
    assert parse_frame(frame(offset, event)) == (offset, event)


@given(OFFSETS, EVENTS)
def test_a_frame_has_three_lines_and_a_blank_one_for_every_reader(offset, event):
    lines = frame(offset, event).decode().splitlines()
    assert len(lines) == 4
    assert lines[0] == f"id: {offset}"
    assert lines[1].startswith("event: ")
    assert lines[2].startswith("data: {")
    assert lines[3] == ""
    assert not LINE_END.search(lines[2])


@given(OFFSETS, EVENTS)
def test_the_data_is_the_events_json(offset, event):
    data = frame(offset, event).split(b"\n")[2].removeprefix(b"data: ")
    members = {name: msgspec.to_builtins(getattr(event, name)) for name in event.__struct_fields__}
    if isinstance(event, Reset) and not event.detail:
        del members["detail"]
    assert msgspec.json.decode(data) == members


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            Started(message_id="r", conversation_id="c", model="m", attempt=1),
            b'id: 7\nevent: started\ndata: {"message_id":"r","conversation_id":"c","model":"m","attempt":1}\n\n',
        ),
        (Delta(text="Grüße\n"), 'id: 7\nevent: delta\ndata: {"text":"Grüße\\n"}\n\n'.encode()),
        (
            Delta(text="\x85\u2028\u2029\\u2028"),
            b'id: 7\nevent: delta\ndata: {"text":"\\u0085\\u2028\\u2029\\\\u2028"}\n\n',
        ),
        (
            Reset(attempt=2, reason="worker_lost"),
            b'id: 7\nevent: reset\ndata: {"attempt":2,"reason":"worker_lost"}\n\n',
        ),
        (
            Reset(attempt=2, reason="interrupted", detail="HTTP 502"),
            b'id: 7\nevent: reset\ndata: {"attempt":2,"reason":"interrupted","detail":"HTTP 502"}\n\n',
        ),
        (Notified(code="c", detail="d"), b'id: 7\nevent: notice\ndata: {"code":"c","detail":"d"}\n\n'),
        (
            Ended(
                status="failed",
                usage=Usage(input_tokens=3, output_tokens=1),
                timings=Timings(queued_ms=1, first_token_ms=None, total_ms=2),
                error=Failure(code="c", detail="d"),
            ),
            b"id: 7\nevent: ended\ndata: " + ENDED + b"\n\n",
        ),
    ],
)
def test_frames_have_exactly_these_bytes(event, expected):
    assert frame(7, event) == expected


@given(st.binary(max_size=80))
def test_what_is_no_frame_is_refused(data):
    with pytest.raises(ValueError, match="not a frame"):
        parse_frame(data)


@pytest.mark.parametrize(
    "data",
    [
        b'id: x\nevent: delta\ndata: {"text":""}\n\n',
        b'id: 1\nevent: other\ndata: {"text":""}\n\n',
        b"id: 1\nevent: delta\ndata: {}\n\n",
        b"id: 1\nevent: delta\ndata: []\n\n",
        b"id: 1\nevent: delta\ndata: 7\n\n",
        b'id: 1\nevent: delta\ndata: {"text":1}\n\n',
        b'event: delta\ndata: {"text":""}\n\n',
        b"id: 1\nevent: delta\ndata: " + b"[" * 100_000 + b"\n\n",
    ],
)
def test_what_is_almost_a_frame_is_refused(data):
    with pytest.raises(ValueError, match="not a frame"):
        parse_frame(data)
