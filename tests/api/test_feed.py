"""The feed of a conversation: in memory, and on a real ClickHouse that the projection's own step fills."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from api.clickhouse_views import ClickHouseViews
from api.feed import LIVE_MAX
from api.memory_views import MemoryViews
from api.metrics import Metrics
from api.reading import HEARTBEAT
from projections.clickhouse import migrations
from projections.clickhouse.client import Database
from projections.views.pace import Pace
from projections.views.step import Batch, ViewsStep
from schemas.codec import decode
from schemas.events import ConversationRenamed
from streams.log.steps import Arrived, Partition
from tests.api.test_streams import patience
from tests.api.world import BOB, Call, Process, World, eventually


@dataclass
class Fed:
    """A world, and the hand of its projection."""

    world: World
    project: Callable[[], Awaitable[None]]


@pytest.fixture(params=["memory", pytest.param("clickhouse", marks=pytest.mark.servers)])
async def fed(request: pytest.FixtureRequest) -> AsyncIterator[Fed]:
    world = World()
    if request.param == "memory":

        async def keep() -> None:
            world.project()

        async with world.running():
            yield Fed(world, keep)
        return
    deployment = request.getfixturevalue("deployment")
    migrations.apply(deployment.clickhouse_url, deployment.database)
    database = Database(deployment.clickhouse_url, deployment.database)
    world.views = views = ClickHouseViews(deployment.clickhouse_url, deployment.database, Metrics())  # type: ignore[assignment]
    step = ViewsStep(database, Batch(), Pace(burst=1e9, per_s=1e9, left=1e9))
    taken = {Partition("messages", number): 0 for number in range(world.log.partitions("messages"))}
    step.assigned(taken)

    async def insert() -> None:
        records = [record for _, record in world.raw("messages")]
        new = [r for r in records if r.offset >= taken[Partition(r.topic, r.partition)]]
        taken.update({Partition(r.topic, r.partition): r.offset + 1 for r in new})
        step.submit([Arrived(r, decode(r.value, r.headers)) for r in new], 0)
        await asyncio.to_thread(step.poll, world.time_ms)
        assert not step.trouble

    async with world.running():
        yield Fed(world, insert)
    await views.close()
    database.close()


def feed(api: Process, conversation_id: str, after: int = 0, **how: Any) -> Call:
    return api.begin("GET", f"/v1/conversations/{conversation_id}/events", headers={"Last-Event-ID": str(after)}, **how)


def parsed(frame: bytes) -> tuple[int, str, dict[str, Any]]:
    number, kind, data = (line.split(": ", 1)[1] for line in frame.decode().strip().split("\n"))
    return int(number), kind, json.loads(data)


def kinds(frames: list[bytes]) -> list[str]:
    return [parsed(frame)[1] for frame in frames]


async def ended(fed: Fed, sent: dict[str, Any], *texts: str) -> str:
    """The reply ends, and everything is in the views."""
    reply_id = fed.world.whole(sent, *texts)
    fed.world.store(reply_id)
    await fed.project()
    return reply_id


async def patched(api: Process, conversation_id: str, **body: Any) -> None:
    answer = await api.call("PATCH", f"/v1/conversations/{conversation_id}", body=body)
    assert answer.status == 200, answer.body


async def test_a_feed_tells_what_happens_and_resumes_after_each_cursor_with_the_same_rest(fed: Fed) -> None:
    one, other = fed.world.process(), fed.world.process()
    sent = await one.send("Name a river.", client_message_id="first")
    conversation_id = sent["conversation_id"]
    live = feed(other, conversation_id)
    await eventually("it is open, before the views know the conversation", lambda: live.status == 200)
    reply_id = await ended(fed, sent, "The ", "Rhine")
    await live.until(2)
    await patched(one, conversation_id, title="Rivers")
    again = await one.call("POST", f"/v1/messages/{reply_id}/regenerate", body={"client_message_id": "again"})
    await fed.project()
    await live.until(4)
    second = await ended(fed, again.json | {"message": sent["message"]}, "The Elbe")
    await patched(one, conversation_id, branch=reply_id)
    edited = await one.send("Name a lake.", conversation_id=conversation_id, parent_id=conversation_id)
    await fed.project()
    await live.until(7)

    whole = live.frames
    told = [parsed(frame) for frame in whole]
    assert [kind for _, kind, _ in told] == [
        "message", "reply_ended", "renamed", "message", "reply_ended", "branch", "message",
    ]  # fmt: skip
    ids = [number for number, _, _ in told]
    assert ids == sorted(set(ids))
    first, end, renamed, regenerated, end_again, branch, root = (data for _, _, data in told)
    assert first["message"] == {
        "id": sent["message"]["id"],
        "conversation_id": conversation_id,
        "role": "user",
        "status": "completed",
        "text": "Name a river.",
        "parent_id": None,
        "position": 1,
        "created_at": sent["message"]["created_at"],
        "client_message_id": "first",
    }
    assert (first["reply"]["id"], first["reply"]["status"]) == (reply_id, "queued")
    assert first["reply"]["parent_id"] == sent["message"]["id"]
    assert (end["id"], end["status"], end["text"], end["offset"]) == (reply_id, "completed", "The Rhine", 4)
    assert end["usage"]["output_tokens"] == 2
    assert renamed == {"title": "Rivers"}
    assert regenerated["message"] is None
    assert (regenerated["reply"]["id"], regenerated["reply"]["regenerated_id"]) == (second, reply_id)
    assert regenerated["reply"]["client_message_id"] == "again"
    assert (end_again["id"], end_again["text"]) == (second, "The Elbe")
    assert branch == {"message_id": reply_id}
    assert (root["message"]["id"], root["message"]["parent_id"]) == (edited["message"]["id"], None)

    resumed = [(after, feed(api, conversation_id, after)) for api in (one, other) for after in (0, *ids)]
    await asyncio.gather(*(call.until(sum(number > after for number in ids)) for after, call in resumed))
    assert (await one.call("DELETE", f"/v1/conversations/{conversation_id}")).status == 204
    await fed.project()
    for after, call in [(0, live), *resumed]:
        await call.end()
        assert call.whole
        assert call.frames[:-1] == [frame for frame, number in zip(whole, ids, strict=True) if number > after]
        assert parsed(call.frames[-1])[1:] == ("deleted", {})
    assert (await one.call("GET", f"/v1/conversations/{conversation_id}/events")).status == 404
    fed.world.hot.lose()
    assert (await other.call("GET", f"/v1/conversations/{conversation_id}/events")).status == 404
    assert not one.feeds.following
    assert not other.feeds.following


async def test_what_is_in_the_log_again_is_shown_once_wherever_one_begins(fed: Fed) -> None:
    api = fed.world.process()
    sent = await api.send()
    conversation_id = sent["conversation_id"]
    reply_id = fed.world.whole(sent, "a")
    stored = fed.world.store(reply_id)
    await fed.project()
    live = feed(api, conversation_id)
    await live.until(2)
    await fed.project()  # nothing new
    for event in (*fed.world.submitted(), stored, *fed.world.submitted()):
        fed.world.append(event)
        await fed.project()
    rename = ConversationRenamed(
        conversation_id=conversation_id, account_id="alice", title="same", renamed_at_ms=1, request_id="r"
    )
    for _ in range(2):
        fed.world.append(rename)
    await fed.project()
    await live.until(4)
    assert kinds(live.frames) == ["message", "reply_ended", "renamed", "renamed"]
    late = feed(api, conversation_id)
    last = parsed(live.frames[1])[0]
    resumed = feed(api, conversation_id, last + 1)
    await late.until(4)
    await resumed.until(2)
    assert late.frames == live.frames
    assert resumed.frames == live.frames[2:]
    for call in (live, late, resumed):
        await call.leave()


async def test_a_feed_shows_its_own_conversation_only(fed: Fed) -> None:
    api = fed.world.process()
    sent = [await api.send(f"number {n}") for n in range(4)]
    foreign = await api.send("of another", key=BOB)
    await fed.project()
    calls = [feed(api, each["conversation_id"]) for each in sent]
    await asyncio.gather(*(call.until(1) for call in calls))
    for each in sent:
        await ended(fed, each, f"to {each['message']['text']}")
    await asyncio.gather(*(call.until(2) for call in calls))
    for number, call in enumerate(calls):
        _, (_, _, end) = (parsed(frame) for frame in call.frames)
        assert end["text"] == f"to number {number}"
        await call.leave()
    assert (await api.call("GET", f"/v1/conversations/{foreign['conversation_id']}/events")).status == 404
    await eventually("nobody follows", lambda: not api.feeds.following)


class HeldViews(MemoryViews):
    """Views in the middle of a flush: rows are there that the progress does not cover yet."""

    held: Mapping[int, int] | None = None
    asked = 0

    async def progress(self) -> Mapping[int, int]:
        self.asked += 1
        return await super().progress() if self.held is None else self.held


async def test_nothing_turns_up_behind_a_reader_when_rows_come_out_of_order() -> None:
    world = World()
    world.views = views = HeldViews()
    async with world.running():
        api = world.process()
        sent = await api.send()
        conversation_id = sent["conversation_id"]
        world.project()
        live = feed(api, conversation_id)
        await live.until(1)
        views.held = await views.progress()
        for title in ("first", "second"):
            await patched(api, conversation_id, title=title)
        (first, second) = [
            (offset, event, partition)
            for partition, offset, event in world._records("messages")
            if isinstance(event, ConversationRenamed)
        ]
        views.write(*second)
        late = feed(api, conversation_id)
        await late.until(1)
        views.asked = 0
        await eventually("the follower has looked", lambda: views.asked > 3)
        assert len(live.frames) == len(late.frames) == 1
        views.write(*first)
        views.held = None
        for call in (live, late):
            await call.until(3)
            assert [parsed(frame)[2]["title"] for frame in call.frames[1:]] == ["first", "second"]
            await call.leave()


async def test_feeds_are_refused_as_everything_else(world: World, api: Process) -> None:
    sent = await api.send()
    path = f"/v1/conversations/{sent['conversation_id']}/events"
    assert (await api.call("GET", path, key=None)).status == 401
    assert (await api.call("GET", path, key=BOB)).status == 404
    assert (await api.call("GET", f"/v1/conversations/{sent['reply']['id']}/events")).status == 404
    unused = world.ids.conversation("alice", None)
    assert (await api.call("GET", f"/v1/conversations/{unused}/events")).status == 404
    assert (await api.call("GET", f"{path}?after=x")).json["code"] == "invalid_cursor"
    world.views.down = True
    refused = await api.call("GET", path)
    assert (refused.status, refused.json["code"]) == (503, "clickhouse_unavailable")
    assert not api.feeds.following


async def test_an_open_feed_outlives_clickhouse(world: World) -> None:
    api = world.process(patience(heartbeat_s=0.02))
    sent = await api.send()
    world.project()
    call = feed(api, sent["conversation_id"])
    await call.until(1)
    world.views.down = True
    beats = call.received.count(HEARTBEAT)
    reply_id = world.whole(sent, "a")
    world.store(reply_id)
    await eventually("heartbeats go on", lambda: call.received.count(HEARTBEAT) > beats + 2)
    world.views.down = False
    world.project()
    await call.until(2)
    assert kinds(call.frames) == ["message", "reply_ended"]
    await call.leave()


async def test_heartbeats_and_headers_are_those_of_every_stream(world: World) -> None:
    api = world.process(patience(heartbeat_s=0.02))
    sent = await api.send()
    world.project()
    call = feed(api, sent["conversation_id"])
    await eventually("heartbeats", lambda: call.received.count(HEARTBEAT) > 2)
    assert b": hb\n\n" not in call.received
    assert b"\r" not in call.received
    assert b"retry:" not in call.received
    assert call.headers.pop("x-request-id")
    assert call.headers == {
        "content-type": "text/event-stream",
        "cache-control": "no-cache, no-transform",
        "x-accel-buffering": "no",
    }
    await call.leave()
    assert b"turnlog_api_streams_open 0.0" in api.metrics.page()


async def test_a_slow_client_costs_little_and_loses_nothing(world: World, api: Process) -> None:
    sent = await api.send()
    world.project()
    call = feed(api, sent["conversation_id"], takes=False)
    await eventually("it is open", lambda: call.status == 200)
    titles = [f"title {n}" for n in range(3 * LIVE_MAX)]
    for number, title in enumerate(titles):
        world.append(
            ConversationRenamed(
                conversation_id=sent["conversation_id"],
                account_id="alice",
                title=title,
                renamed_at_ms=1,
                request_id=str(number),
            )
        )
        if number % 50 == 0:
            world.project()
            await asyncio.sleep(0.02)
    (held,) = api.feeds._all()
    await eventually("it keeps no more", lambda: held._again)
    assert len(held._live) == 0
    world.project()
    call.takes.set()
    await call.until(1 + len(titles))
    assert [parsed(frame)[2]["title"] for frame in call.frames[1:]] == titles
    await call.leave()


async def test_a_client_that_takes_nothing_is_cut_off_and_resumes(world: World) -> None:
    api = world.process(patience(send_timeout_s=0.05))
    sent = await api.send()
    world.project()
    call = feed(api, sent["conversation_id"], takes=False)
    await call.end()
    assert not call.whole
    assert b"turnlog_api_streams_cut_off_total 1.0" in api.metrics.page()
    assert b"turnlog_api_streams_open 0.0" in api.metrics.page()
    again = feed(api, sent["conversation_id"])
    await again.until(1)
    await again.leave()
    assert not api.feeds.following


async def test_feeds_end_at_an_event_when_the_process_stops(world: World, api: Process) -> None:
    sent = await api.send()
    world.project()
    call = feed(api, sent["conversation_id"])
    await call.until(1)
    await api.open_streams.stop(5)
    await call.end()
    assert call.whole
    assert call.received == call.frames[0]
    refused = await api.call("GET", f"/v1/conversations/{sent['conversation_id']}/events")
    assert (refused.status, refused.json["code"]) == (503, "streams_unavailable")
