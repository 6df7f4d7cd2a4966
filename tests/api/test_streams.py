"""Streams: every event once, in order, the same bytes, whatever happens in between."""

import asyncio
from typing import Any

import pytest

from api.memory_hot import MemoryHot
from api.reading import HEARTBEAT, Patience
from api.stores import Page, PageLimit
from schemas.stream import Delta, Ended, frame, parse_frame
from schemas.values import Usage
from tests.api.world import PATIENCE, Call, Process, World, eventually

WORDS = [f"word {number} " for number in range(40)]


def patience(**changed: float) -> Patience:
    values: dict[str, Any] = {name: getattr(PATIENCE, name) for name in PATIENCE.__struct_fields__}
    return Patience(**(values | changed))


async def test_any_offset_gives_the_same_bytes_before_during_and_after_from_two_processes(world: World) -> None:
    one, other = world.process(), world.process()
    sent = await one.send()
    reply_id = sent["reply"]["id"]
    before = asyncio.ensure_future(one.follow(reply_id))
    world.queue(sent)
    world.start(reply_id)
    world.say(reply_id, *WORDS[:20])
    during = [asyncio.ensure_future(process.follow(reply_id, n)) for process in (one, other) for n in (0, 1, 7, 21)]
    await asyncio.sleep(0)
    for word in WORDS[20:]:
        world.say(reply_id, word)
        await asyncio.sleep(0)
    world.end(reply_id)
    whole = await before
    assert len(whole) == len(WORDS) + 2
    assert [parse_frame(each)[0] for each in whole] == list(range(1, len(WORDS) + 3))
    for task, after in zip(during, [0, 1, 7, 21] * 2, strict=True):
        assert await task == whole[after:]
    for after in range(len(whole) + 1):
        assert await one.follow(reply_id, after) == whole[after:]
        assert await other.follow(reply_id, after) == whole[after:]


async def test_the_same_cursor_may_be_used_again_and_again(world: World, api: Process) -> None:
    reply_id = world.whole(await api.send(), *WORDS)
    assert len({tuple(await api.follow(reply_id, 9)) for _ in range(5)}) == 1
    assert world.events("usage") == []


async def test_at_the_end_there_is_nothing_and_beyond_it_is_gone(world: World, api: Process) -> None:
    reply_id = world.whole(await api.send(), "a")
    path = f"/v1/messages/{reply_id}/events"
    assert (await api.call("GET", f"{path}?after=3")).status == 204
    beyond = await api.call("GET", f"{path}?after=4")
    assert (beyond.status, beyond.json["message_url"]) == (410, f"/v1/messages/{reply_id}")


async def test_of_a_reply_that_outgrew_the_buffer_what_is_there_is_served_and_the_rest_is_gone(
    world: World,
) -> None:
    api = world.process(patience(heartbeat_s=0.02))
    keeper = asyncio.ensure_future(api.open_streams.keep())
    sent = await api.send()
    reply_id = world.queue(sent)
    world.start(reply_id)
    world.say(reply_id, "a", "b")
    follower = asyncio.ensure_future(api.follow(reply_id))
    await eventually("it follows", lambda: api.metrics.streams_open._value.get() == 1)
    world.hot.publish(reply_id, 4, b"", {"status": "cut"})
    assert [parse_frame(each)[0] for each in await follower] == [1, 2, 3]
    path = f"/v1/messages/{reply_id}/events"
    gone = await api.call("GET", f"{path}?after=3")
    assert (gone.status, gone.json["code"], gone.json["message_url"]) == (
        410,
        "cursor_gone",
        f"/v1/messages/{reply_id}",
    )
    assert [parse_frame(each)[0] for each in await api.follow(reply_id, 2)] == [3]
    keeper.cancel()


async def test_the_header_wins_over_the_query(world: World, api: Process) -> None:
    reply_id = world.whole(await api.send(), "a", "b")
    call = api.begin("GET", f"/v1/messages/{reply_id}/events?after=0", headers={"Last-Event-ID": "3"})
    await call.end()
    assert [parse_frame(each)[0] for each in call.frames] == [4]


@pytest.mark.parametrize("cursor", ["-1", "x", "1.5", "9" * 19, "1e3", "\u00b2"])
async def test_a_bad_cursor_is_refused_by_name(world: World, api: Process, cursor: str) -> None:
    reply_id = world.whole(await api.send(), "a")
    path = f"/v1/messages/{reply_id}/events"
    answer = await api.call("GET", path, headers={"Last-Event-ID": cursor})
    assert (answer.status, answer.json["code"]) == (400, "invalid_cursor")
    assert answer.json["errors"][0]["field"] == "Last-Event-ID"
    answer = await api.call("GET", f"{path}?after={cursor}")
    assert (answer.status, answer.json["errors"][0]["field"]) == (400, "after")


class LaggingHot(MemoryHot):
    """A store that answers a page late: `meanwhile` happens after it was read and before it arrives."""

    meanwhile: Any = None

    async def page(self, reply_id: str, conversation_id: str, after: int, limit: PageLimit) -> Page:
        page = await super().page(reply_id, conversation_id, after, limit)
        if self.meanwhile is not None:
            self.meanwhile()
        await asyncio.sleep(0)
        return page


async def test_what_comes_between_replay_and_live_is_delivered_once() -> None:
    world = World()
    world.hot = hot = LaggingHot(lambda: 0)
    async with world.running():
        api = world.process()
        sent = await api.send()
        reply_id = world.queue(sent)
        world.start(reply_id)
        world.say(reply_id, *WORDS[:10])
        left = list(WORDS[10:])

        def meanwhile() -> None:
            world.say(reply_id, left.pop(0), left.pop(0))

        hot.meanwhile = meanwhile
        call = api.begin("GET", f"{sent['events_url']}?after=4")
        await call.until(11)
        hot.meanwhile = None
        assert len(left) <= 26
        world.say(reply_id, *left)
        world.end(reply_id)
        await call.end()
        frames = call.frames
        assert [parse_frame(each)[0] for each in frames] == list(range(5, len(WORDS) + 3))


async def test_a_reader_is_there_before_the_first_token(world: World, api: Process) -> None:
    sent = await api.send()
    call = api.begin("GET", sent["events_url"])
    await eventually("the reader follows", lambda: world.hot.followed == (sent["reply"]["id"],))
    assert call.status == 200
    world.whole(sent, "a", "b")
    await call.end()
    assert len(call.frames) == 4


async def test_after_expiry_the_stored_reply_is_served_and_a_cursor_inside_it_is_gone(
    world: World, api: Process
) -> None:
    sent = await api.send()
    reply_id = world.whole(sent, *WORDS)
    whole = await api.follow(reply_id)
    world.store(reply_id)
    world.project()
    world.hot.lose()
    again = await api.follow(reply_id)
    assert [parse_frame(each)[0] for each in again] == [1, 41, 42]
    assert again[0] == whole[0]
    assert again[-1] == whole[-1]
    assert parse_frame(again[1])[1].text == "".join(WORDS)  # type: ignore[union-attr]
    assert await api.follow(reply_id, 1) == again[1:]
    assert await api.follow(reply_id, 41) == whole[-1:]
    assert await api.follow(reply_id, 42) == []
    for after in (2, 20, 40, 43):
        gone = await api.call("GET", f"/v1/messages/{reply_id}/events?after={after}")
        assert (gone.status, gone.json["code"]) == (410, "cursor_gone")


async def test_after_expiry_the_answer_comes_at_once_also_while_the_conversation_is_hot(
    world: World, api: Process
) -> None:
    reply_id = world.whole(await api.send(), *WORDS)
    world.store(reply_id)
    world.project()
    world.hot.expire(reply_id)
    world.time_ms += 11_000
    assert (await api.call("GET", f"/v1/messages/{reply_id}/events?after=3")).status == 410
    assert [parse_frame(each)[0] for each in await api.follow(reply_id)] == [1, 41, 42]


async def test_a_reset_is_seen_once_and_the_text_is_that_of_the_second_attempt(world: World, api: Process) -> None:
    sent = await api.send()
    reply_id = world.queue(sent)
    world.start(reply_id)
    world.say(reply_id, "first")
    world.reset(reply_id)
    assert (await api.call("GET", f"/v1/messages/{reply_id}")).json["text"] == ""
    world.start(reply_id, 2)
    world.say(reply_id, "second")
    world.end(reply_id)
    kinds = [type(parse_frame(each)[1]).__name__ for each in await api.follow(reply_id)]
    assert kinds == ["Started", "Delta", "Reset", "Started", "Delta", "Ended"]
    message = (await api.call("GET", f"/v1/messages/{reply_id}")).json
    assert (message["text"], message["attempt"], message["status"]) == ("second", 2, "completed")


async def test_heartbeats_are_one_line_and_only_between_events(world: World) -> None:
    api = world.process(patience(heartbeat_s=0.02))
    keeper = asyncio.ensure_future(api.open_streams.keep())
    sent = await api.send()
    call = api.begin("GET", sent["events_url"])
    reply_id = world.queue(sent)
    await eventually("a heartbeat", lambda: HEARTBEAT in call.received)
    world.start(reply_id)
    for word in WORDS[:5]:
        world.say(reply_id, word)
        heartbeats = call.received.count(HEARTBEAT)
        await eventually("one more heartbeat", lambda n=heartbeats: call.received.count(HEARTBEAT) > n)
    world.end(reply_id)
    await call.end()
    keeper.cancel()
    assert b": hb\n\n" not in call.received
    for number, block in enumerate(call.received.split(b"\n\n")[:-1]):
        lines = block.split(b"\n")
        while lines[0] == b": hb":
            lines.pop(0)
        names = [line.split(b":")[0] for line in lines]
        assert names == [b"retry"] * (number == 0) + [b"id", b"event", b"data"]


async def test_stalled_readers_cost_nothing_are_cut_off_and_resume_without_loss(world: World) -> None:
    api = world.process(patience(send_timeout_s=0.2))
    keeper = asyncio.ensure_future(api.open_streams.keep())
    sent = await api.send()
    reply_id = world.queue(sent)
    stalled = [api.begin("GET", sent["events_url"], takes=False) for _ in range(100)]
    quick = api.begin("GET", sent["events_url"])
    await eventually("all follow", lambda: api.metrics.streams_open._value.get() == 101)
    world.start(reply_id)
    for word in WORDS:
        world.say(reply_id, word * 100)
        await asyncio.sleep(0)
    world.end(reply_id)
    await quick.end()
    assert len(quick.frames) == 42
    for call in stalled:
        await call.end()
        assert not call.whole
    assert api.metrics.streams_cut_off._value.get() == 100
    assert api.metrics.streams_open._value.get() == 0
    assert world.hot.followed == ()
    keeper.cancel()
    assert await api.follow(reply_id, 0) == quick.frames


async def test_redis_may_go_and_come_back_in_the_middle(world: World, api: Process) -> None:
    sent = await api.send()
    reply_id = world.queue(sent)
    world.start(reply_id)
    world.say(reply_id, *WORDS[:5])
    call = api.begin("GET", sent["events_url"])
    await call.until(6)
    world.hot.down = True
    world.say(reply_id, *WORDS[5:20])
    await asyncio.sleep(0.01)
    assert len(call.frames) == 6
    world.hot.down = False
    await call.until(21)
    world.say(reply_id, *WORDS[20:])
    world.end(reply_id)
    await call.end()
    assert [parse_frame(each)[0] for each in call.frames] == list(range(1, 43))


async def test_redis_may_lose_everything_and_be_filled_again(world: World, api: Process) -> None:
    sent = await api.send()
    reply_id = world.queue(sent)
    world.start(reply_id)
    world.say(reply_id, *WORDS[:10])
    call = api.begin("GET", sent["events_url"])
    await call.until(11)
    frames = b"".join(call.frames)
    world.hot.lose()
    late = api.begin("GET", f"{sent['events_url']}?after=9")
    await eventually("the late reader waits", lambda: late.status == 200)
    world.hot.publish(reply_id, 1, frames)
    world.say(reply_id, *WORDS[10:])
    world.end(reply_id)
    await call.end()
    await late.end()
    assert [parse_frame(each)[0] for each in call.frames] == list(range(1, 43))
    assert late.frames == call.frames[9:]


async def test_a_store_that_stays_away_ends_the_stream_without_an_end(world: World) -> None:
    api = world.process(patience(heartbeat_s=0.02, outage_s=0.05))
    keeper = asyncio.ensure_future(api.open_streams.keep())
    sent = await api.send()
    world.queue(sent)
    call = api.begin("GET", sent["events_url"])
    await eventually("it follows", lambda: world.hot.followed)
    world.hot.down = True
    await call.end()
    assert call.whole
    assert b"event: ended" not in call.received
    keeper.cancel()


async def test_shutdown_ends_streams_at_an_event(world: World, api: Process) -> None:
    sent = await api.send()
    reply_id = world.queue(sent)
    world.start(reply_id)
    world.say(reply_id, *WORDS[:3])
    call = api.begin("GET", sent["events_url"])
    await call.until(4)
    await api.open_streams.stop(1.0)
    await call.end()
    assert call.whole
    assert call.received.endswith(b"\n\n")
    refused = await api.call("GET", sent["events_url"])
    assert (refused.status, refused.json["code"]) == (503, "streams_unavailable")
    other = world.process()
    world.end(reply_id)
    assert [parse_frame(each)[0] for each in await other.follow(reply_id, 4)] == [5]


async def test_a_disconnect_cancels_nothing_and_leaves_nothing(world: World, api: Process) -> None:
    sent = await api.send()
    reply_id = world.queue(sent)
    world.start(reply_id)
    call = api.begin("GET", sent["events_url"])
    await call.until(1)
    await call.leave()
    assert world.hot.followed == ()
    assert world.events("cancellations") == []
    world.say(reply_id, "a")
    world.end(reply_id)
    assert len(await api.follow(reply_id)) == 3


async def test_the_headers_are_those_that_proxies_and_clients_need(world: World, api: Process) -> None:
    reply_id = world.whole(await api.send(), "a")
    call: Call = api.begin("GET", f"/v1/messages/{reply_id}/events")
    await call.end()
    assert call.headers["content-type"] == "text/event-stream"
    assert call.headers["cache-control"] == "no-cache, no-transform"
    assert call.headers["x-accel-buffering"] == "no"
    assert call.headers["x-request-id"]


async def test_fifty_readers_of_one_stream_share_it(world: World, api: Process) -> None:
    sent = await api.send()
    calls = [api.begin("GET", sent["events_url"]) for _ in range(50)]
    await eventually("all follow", lambda: api.metrics.streams_open._value.get() == 50)
    world.whole(sent, *WORDS)
    for call in calls:
        await call.end()
    assert len({tuple(call.frames) for call in calls}) == 1


async def test_ten_thousand_events_at_once_have_unique_increasing_ids(world: World, api: Process) -> None:
    sent = await api.send()
    call = api.begin("GET", sent["events_url"])
    await eventually("it follows", lambda: world.hot.followed)
    reply_id = world.queue(sent)
    world.start(reply_id)
    frames = [frame(n, Delta(text="x")) for n in range(2, 10_002)]
    ended = Ended(status="completed", usage=Usage(input_tokens=1, output_tokens=10_000))
    world.hot.publish(reply_id, 2, b"".join((*frames, frame(10_002, ended))))
    await call.end()
    assert [parse_frame(each)[0] for each in call.frames] == list(range(1, 10_003))
