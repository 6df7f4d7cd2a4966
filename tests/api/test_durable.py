"""Durable Streams: what a client of the protocol may rely on, read from replies and conversations."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.formats import durable, durable_reading
from api.formats.durable import Slice
from schemas.reply import apply
from schemas.stream import frame, parse_frame
from tests.api.world import BOB, Answer, Call, Process, World, eventually
from tests.schemas.histories import histories

PATH = "/durable/messages/{}"


def at(offset: int) -> str:
    return f"{offset:016d}"


def texts(answer: Answer) -> list[str]:
    return [item["text"] for item in answer.json if item["type"] == "delta"]


def controls(call: Call) -> list[dict[str, Any]]:
    frames = [frame.decode() for frame in call.frames]
    return [json.loads(one.split("data: ", 1)[1]) for one in frames if one.startswith("event: control")]


def items(call: Call) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for one in call.frames:
        if one.startswith(b"event: data"):
            lines = [line.removeprefix("data: ") for line in one.decode().split("\n")[1:]]
            found += json.loads("".join(lines))
    return found


async def test_a_reply_that_ended_is_a_closed_stream(world: World, api: Process) -> None:
    reply_id = world.whole(await api.send(), "a", "b")
    answer = await api.call("GET", PATH.format(reply_id))
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert [item["type"] for item in answer.json] == ["started", "delta", "delta", "ended"]
    assert [item["offset"] for item in answer.json] == [1, 2, 3, 4]
    assert answer.headers["stream-next-offset"] == at(4)
    assert answer.headers["stream-closed"] == answer.headers["stream-up-to-date"] == "true"
    end = await api.call("GET", PATH.format(reply_id) + f"?offset={at(4)}")
    assert (end.status, end.json) == (200, [])
    assert end.headers["stream-closed"] == "true"


async def test_reading_goes_on_behind_any_offset(world: World, api: Process) -> None:
    reply_id = world.whole(await api.send(), *"abcdef")
    whole: list[Any] = []
    for offset in range(9):
        got: list[Any] = []
        place = at(offset)
        while True:
            answer = await api.call("GET", PATH.format(reply_id) + f"?offset={place}")
            got += answer.json
            place = answer.headers["stream-next-offset"]
            if "stream-closed" in answer.headers:
                break
        whole = whole or got
        assert [item["offset"] for item in got] == list(range(offset + 1, 9))
        assert got == [item for item in whole if item["offset"] > offset]


async def test_a_part_is_not_up_to_date(world: World, api: Process) -> None:
    reply_id = world.whole(await api.send(), *"abcdefghij")
    answer = await api.call("GET", PATH.format(reply_id))
    assert len(answer.json) == 7  # a page
    assert "stream-up-to-date" not in answer.headers
    assert "stream-closed" not in answer.headers


async def test_a_reply_that_runs_is_open_and_its_entity_tag_tells(world: World, api: Process) -> None:
    reply_id = world.queue(await api.send())
    nothing = await api.call("GET", PATH.format(reply_id))
    assert (nothing.status, nothing.json, nothing.headers["stream-next-offset"]) == (200, [], at(0))
    world.start(reply_id)
    world.say(reply_id, "a")
    some = await api.call("GET", PATH.format(reply_id))
    assert some.headers["stream-up-to-date"] == "true"
    assert "stream-closed" not in some.headers
    again = await api.call("GET", PATH.format(reply_id), headers={"If-None-Match": some.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    at_tail = await api.call("GET", PATH.format(reply_id) + f"?offset={at(2)}")
    world.end(reply_id)
    more = await api.call("GET", PATH.format(reply_id), headers={"If-None-Match": some.headers["etag"]})
    assert more.status == 200
    closed = await api.call(
        "GET", PATH.format(reply_id) + f"?offset={at(3)}", headers={"If-None-Match": at_tail.headers["etag"]}
    )
    assert (closed.status, closed.headers["stream-closed"]) == (200, "true")


async def test_head_tells_the_tail(world: World, api: Process) -> None:
    sent = await api.send()
    reply_id = world.queue(sent)
    head = await api.call("HEAD", PATH.format(reply_id))
    assert (head.status, head.headers["stream-next-offset"]) == (200, at(0))
    assert "stream-closed" not in head.headers
    world.start(reply_id)
    world.end(reply_id)
    head = await api.call("HEAD", PATH.format(reply_id))
    assert (head.headers["stream-next-offset"], head.headers["stream-closed"]) == (at(2), "true")
    assert head.headers["cache-control"] == "no-store"
    world.project()
    feed = await api.call("HEAD", f"/durable/conversations/{sent['conversation_id']}")
    assert (feed.status, "stream-closed" in feed.headers) == (200, False)


async def test_now_begins_at_the_tail(world: World, api: Process) -> None:
    reply_id = world.queue(await api.send())
    world.start(reply_id)
    world.say(reply_id, "unseen")
    answer = await api.call("GET", PATH.format(reply_id) + "?offset=now")
    assert (answer.json, answer.headers["stream-next-offset"]) == ([], at(2))
    assert answer.headers["stream-up-to-date"] == "true"
    assert "etag" not in answer.headers
    polling = api.begin("GET", PATH.format(reply_id) + "?live=long-poll&offset=now")
    await eventually("it waits", lambda: reply_id in world.hot.followed)
    world.say(reply_id, "seen")
    await polling.end()
    assert [item["text"] for item in json.loads(polling.received)] == ["seen"]


async def test_a_long_poll_waits_for_what_comes(world: World, api: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    reply_id = world.queue(await api.send())
    polling = api.begin("GET", PATH.format(reply_id) + f"?live=long-poll&offset={at(0)}")
    await eventually("it waits", lambda: reply_id in world.hot.followed)
    world.start(reply_id)
    await polling.end()
    assert (polling.status, polling.headers["stream-next-offset"]) == (200, at(1))
    cursor = polling.headers["stream-cursor"]
    monkeypatch.setattr(durable_reading, "LONG_POLL_S", 0.05)
    nothing = await api.call("GET", PATH.format(reply_id) + f"?live=long-poll&offset={at(1)}&cursor={cursor}")
    assert (nothing.status, nothing.body) == (204, b"")
    assert nothing.headers["stream-up-to-date"] == "true"
    assert nothing.headers["stream-next-offset"] == at(1)
    assert int(nothing.headers["stream-cursor"]) > int(cursor)
    world.end(reply_id)
    last = await api.call("GET", PATH.format(reply_id) + f"?live=long-poll&offset={at(1)}")
    assert (last.status, last.headers["stream-closed"]) == (200, "true")
    monkeypatch.setattr(durable_reading, "LONG_POLL_S", 60)
    closed = await asyncio.wait_for(api.call("GET", PATH.format(reply_id) + f"?live=long-poll&offset={at(2)}"), 5)
    assert (closed.status, closed.headers["stream-closed"]) == (204, "true")


async def test_sse_gives_items_and_says_how_far_they_are(world: World, api: Process) -> None:
    reply_id = world.queue(await api.send())
    call = api.begin("GET", PATH.format(reply_id) + "?live=sse&offset=-1")
    await eventually("it waits", lambda: reply_id in world.hot.followed)
    world.start(reply_id)
    world.say(reply_id, "a", "b\u2028c")
    await call.until(3)
    world.end(reply_id)
    await call.end()
    assert call.headers["content-type"] == "text/event-stream"
    assert [item["type"] for item in items(call)] == ["started", "delta", "delta", "ended"]
    assert items(call)[2]["text"] == "b\u2028c"
    told = controls(call)
    assert told[0] | {"streamCursor": ""} == {"streamNextOffset": at(0), "streamCursor": "", "upToDate": True}
    assert told[-1] == {"streamNextOffset": at(4), "upToDate": True, "streamClosed": True}
    closed = api.begin("GET", PATH.format(reply_id) + f"?live=sse&offset={at(4)}")
    await closed.end()
    assert controls(closed) == [{"streamNextOffset": at(4), "upToDate": True, "streamClosed": True}]


async def test_sse_ends_after_a_while_and_goes_on_where_it_was(
    world: World, api: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_reading, "SSE_S", 0.05)
    reply_id = world.queue(await api.send())
    world.start(reply_id)
    call = api.begin("GET", PATH.format(reply_id) + "?live=sse")
    await call.end()
    assert "streamClosed" not in controls(call)[-1]
    world.end(reply_id)
    rest = api.begin("GET", PATH.format(reply_id) + f"?live=sse&offset={controls(call)[-1]['streamNextOffset']}")
    await rest.end()
    assert [item["type"] for item in items(rest)] == ["ended"]


async def test_what_cannot_be_served_exactly_is_gone(world: World, api: Process) -> None:
    reply_id = world.whole(await api.send(), *"abcdef")
    world.store(reply_id)
    world.project()
    world.hot.expire(reply_id)
    world.time_ms += 60_000
    whole = await api.call("GET", PATH.format(reply_id))
    assert texts(whole) == ["abcdef"]
    assert (whole.headers["stream-next-offset"], whole.headers["stream-closed"]) == (at(8), "true")
    middle = await api.call("GET", PATH.format(reply_id) + f"?offset={at(3)}")
    assert (middle.status, middle.json["message_url"]) == (410, f"/v1/messages/{reply_id}")
    assert (await api.call("GET", PATH.format(reply_id) + f"?offset={at(8)}")).headers["stream-closed"] == "true"


async def test_a_conversation_is_a_stream_that_its_deletion_closes(world: World, api: Process) -> None:
    sent = await api.send("first")
    path = f"/durable/conversations/{sent['conversation_id']}"
    world.project()
    answer = await api.call("GET", path)
    assert [(item["type"], item["message"]["text"]) for item in answer.json] == [("message", "first")]
    polling = api.begin("GET", f"{path}?live=long-poll&offset={answer.headers['stream-next-offset']}")
    await eventually("somebody follows", lambda: api.feeds.following)
    await api.call("PATCH", f"/v1/conversations/{sent['conversation_id']}", body={"title": "T"})
    world.project()
    await polling.end()
    assert [item["title"] for item in json.loads(polling.received)] == ["T"]


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH"])
async def test_writing_is_refused_clearly(api: Process, method: str) -> None:
    answer = await api.call(method, PATH.format("rep_x"))
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    assert "POST /v1/messages" in answer.json["detail"]


@pytest.mark.parametrize("offset", ["x", "1", "00000000000000001", "-2", "1.0"])
async def test_a_bad_offset_is_refused(world: World, api: Process, offset: str) -> None:
    reply_id = world.whole(await api.send(), "a")
    answer = await api.call("GET", PATH.format(reply_id) + f"?offset={offset}")
    assert (answer.status, answer.json["code"]) == (400, "invalid_cursor")


async def test_strangers_see_nothing(world: World, api: Process) -> None:
    sent = await api.send()
    reply_id = world.whole(sent, "a")
    for path in (PATH.format(reply_id), f"/durable/conversations/{sent['conversation_id']}"):
        for method in ("GET", "HEAD"):
            assert (await api.call(method, path, key=BOB)).status == 404
            assert (await api.call(method, path, key=None)).status == 401


async def test_a_ticket_opens_it(world: World, api: Process) -> None:
    reply_id = world.whole(await api.send(), "a")
    ticket = (await api.call("POST", "/v1/tickets", body={"id": reply_id})).json["ticket"]
    assert (await api.call("GET", PATH.format(reply_id) + f"?ticket={ticket}", key=None)).status == 200


@given(histories())
def test_items_are_the_native_events(history: Any) -> None:
    reply, offset = None, 0
    for event in history:
        reply, seen = apply(reply, event)
        for one in seen:
            offset += 1
            native = frame(offset, one)
            made = json.loads(durable.item(native))
            assert made.pop("offset") == offset == durable.native_offset(native)
            kind = native.split(b"\n")[1].removeprefix(b"event: ").decode()
            assert made.pop("type") == kind
            assert made == json.loads(native.split(b"\n")[2].removeprefix(b"data: "))
            assert durable.is_last(native) == (kind == "ended")
            assert parse_frame(native)[1] == one


@given(
    st.integers(durable.EPOCH_S * 1000, 10**13),
    st.none() | st.integers(0, 10**10).map(str) | st.text(max_size=20),
    st.integers(1, 3600),
)
def test_a_cursor_never_goes_back(now_ms: int, given_: str | None, jitter_s: int) -> None:
    made = durable.cursor(now_ms, given_, jitter_s)
    if given_ and given_.isascii() and given_.isdigit() and len(given_) <= durable.DIGITS:
        assert int(made) > int(given_)
    else:
        assert int(made) == (now_ms // 1000 - durable.EPOCH_S) // durable.INTERVAL_S


@given(st.lists(st.integers(0, 10**15), min_size=2, max_size=20))
def test_offsets_sort_as_text(offsets: list[int]) -> None:
    assert sorted(map(durable.written, offsets)) == [durable.written(offset) for offset in sorted(offsets)]
    for offset in offsets:
        assert durable.offset_of(durable.written(offset)) == offset


def test_the_entity_tag_changes_with_the_closing() -> None:
    open_ = Slice(frames=(), start=3, end=3, up_to_date=True, closed=False)
    closed = Slice(frames=(), start=3, end=3, up_to_date=True, closed=True)
    assert durable.etag("rep_a", open_) != durable.etag("rep_a", closed)
