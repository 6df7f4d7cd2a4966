"""Sends: accepted means in the log, and once."""

import asyncio
import json

import pytest

from api.limits import Demand
from api.memory_hot import MemoryHot
from api.stores import Claim, Entry
from schemas.events import CancellationRequested, RegenerationRequested
from schemas.stream import parse_frame
from streams.log.steps import NotAppended
from streams.log.trace import trace_id
from tests.api.world import BOB, Process, World, eventually


async def test_the_answer_names_what_is_in_the_log(world: World, api: Process) -> None:
    answer = await api.call("POST", "/v1/messages", body={"content": "hello", "client_message_id": "one"})
    assert answer.status == 202
    sent = answer.json
    (event,) = world.submitted()
    assert (event.message_id, event.reply_id) == (sent["message"]["id"], sent["reply"]["id"])
    assert (event.conversation_id, event.account_id, event.tier) == (sent["conversation_id"], "alice", "paid")
    assert sent["events_url"] == f"/v1/messages/{event.reply_id}/events"
    assert sent["message"]["client_message_id"] == "one"
    assert sent["message"]["created_at"].endswith("Z")
    assert (sent["message"]["position"], sent["reply"]["position"]) == (1, 2)
    assert sent["reply"]["status"] == "queued"


async def test_the_header_idempotency_key_is_the_client_message_id(world: World, api: Process) -> None:
    key = {"Idempotency-Key": "one"}
    sent = (await api.call("POST", "/v1/messages", body={"content": "hello"}, headers=key)).json
    assert sent["message"]["client_message_id"] == "one"
    again = await api.call("POST", "/v1/messages", body={"content": "hello", "client_message_id": "one"}, headers=key)
    assert (again.status, again.json["reply"]["id"]) == (200, sent["reply"]["id"])
    both = await api.call("POST", "/v1/messages", body={"content": "hello", "client_message_id": "two"}, headers=key)
    assert (both.status, both.json["errors"][0]["field"]) == (400, "Idempotency-Key")
    world.whole(sent, "a")
    path = f"/v1/messages/{sent['reply']['id']}/regenerate"
    ids = {(await api.call("POST", path, headers={"Idempotency-Key": "r"})).json["reply"]["id"] for _ in range(2)}
    assert len(ids) == 1
    long = await api.call("POST", "/v1/messages", body={"content": "x"}, headers={"Idempotency-Key": "k" * 129})
    assert long.status == 400


async def test_fifty_sends_at_once_with_one_id_are_one_message_also_when_redis_is_flushed(world: World) -> None:
    processes = [world.process(), world.process()]
    body = {"client_message_id": "same", "content": "hello"}

    async def send(index: int) -> tuple[int, str, str]:
        if index == 25:
            world.hot.lose()
        answer = await processes[index % 2].call("POST", "/v1/messages", body=body)
        return answer.status, answer.json["message"]["id"], answer.json["reply"]["id"]

    answers = await asyncio.gather(*(send(index) for index in range(50)))
    assert len({ids for _, *ids in map(list, answers) for ids in [tuple(ids)]}) == 1
    assert {status for status, _, _ in answers} <= {200, 202}
    folded = world.messages_of(world.submitted()[0].conversation_id)
    assert folded is not None
    assert len(folded.messages) == 2


async def test_a_repeated_send_answers_200_and_appends_nothing(world: World, api: Process) -> None:
    first = await api.send(client_message_id="one")
    again = await api.call("POST", "/v1/messages", body={"content": "hello", "client_message_id": "one"})
    assert again.status == 200
    assert again.json["reply"]["id"] == first["reply"]["id"]
    assert again.json["message"]["created_at"] == first["message"]["created_at"]
    assert len(world.submitted()) == 1


async def test_the_same_id_with_another_body_is_a_conflict_also_after_redis_was_lost(
    world: World, api: Process
) -> None:
    await api.send("one thing", client_message_id="one")
    world.project()
    for _ in range(2):
        answer = await api.call("POST", "/v1/messages", body={"content": "another", "client_message_id": "one"})
        assert (answer.status, answer.json["code"]) == (409, "client_message_id_conflict")
        assert answer.headers["x-should-retry"] == "false"
        world.hot.lose()
    again = await api.call("POST", "/v1/messages", body={"content": "one thing", "client_message_id": "one"})
    assert again.status == 200
    folded = world.messages_of(world.submitted()[0].conversation_id)
    assert folded is not None
    assert [message.text for message in folded.messages.values()] == ["one thing", ""]


async def test_what_is_refused_as_a_conflict_is_not_in_the_log(world: World, api: Process) -> None:
    first = await api.send("one thing", client_message_id="one")
    other = await api.send("elsewhere")
    world.hot.lose()  # the views do not have it yet
    for body in ({"content": "another"}, {"content": "another", "conversation_id": other["conversation_id"]}):
        answer = await api.call("POST", "/v1/messages", body=body | {"client_message_id": "one"})
        assert answer.status == 409
    path = f"/v1/messages/{other['reply']['id']}/regenerate"
    assert (await api.call("POST", path, body={"client_message_id": "one"})).status == 409
    assert len(world.submitted()) == 2
    assert len(world.events("messages")) == 2
    again = await api.call("POST", "/v1/messages", body={"content": "one thing", "client_message_id": "one"})
    assert (again.status, again.json["reply"]["id"]) == (200, first["reply"]["id"])


async def test_ids_are_per_account(world: World, api: Process) -> None:
    mine = await api.send("a", client_message_id="one")
    theirs = await api.send("b", client_message_id="one", key=BOB)
    assert mine["reply"]["id"] != theirs["reply"]["id"]


async def test_a_regeneration_shares_the_ids_of_sends(world: World, api: Process) -> None:
    sent = await api.send("a", client_message_id="one")
    path = f"/v1/messages/{sent['reply']['id']}/regenerate"
    assert (await api.call("POST", path, body={"client_message_id": "one"})).status == 409
    first = await api.call("POST", path, body={"client_message_id": "two"})
    again = await api.call("POST", path, body={"client_message_id": "two"})
    assert (first.status, again.status) == (202, 200)
    assert first.json["reply"]["id"] == again.json["reply"]["id"]
    events = [event for event in world.events("messages") if isinstance(event, RegenerationRequested)]
    assert len(events) == 1


async def test_while_redis_is_away_sends_work_and_ids_still_count(world: World, api: Process) -> None:
    world.hot.down = True
    answer = await api.call("POST", "/v1/messages", body={"content": "a", "client_message_id": "one"})
    assert answer.status == 202
    world.project()
    other = await api.call("POST", "/v1/messages", body={"content": "b", "client_message_id": "one"})
    assert other.status == 409
    again = await api.call("POST", "/v1/messages", body={"content": "a", "client_message_id": "one"})
    assert (again.status, again.json["reply"]["id"]) == (200, answer.json["reply"]["id"])


async def test_a_stream_that_began_while_redis_is_away_goes_on_when_it_is_back(world: World, api: Process) -> None:
    world.hot.down = True
    call = api.begin(
        "POST",
        "/v1/messages",
        body={"content": "a"},
        headers={"Accept": "text/event-stream"},
    )
    await eventually("it is accepted", lambda: call.status == 200)
    world.hot.down = False
    event = world.submitted()[0]
    world.whole({"reply": {"id": event.reply_id}, "message": None, "conversation_id": event.conversation_id}, "x")
    await call.end()
    assert len(call.frames) == 3


async def test_without_kafka_nothing_is_accepted(world: World, api: Process) -> None:
    def refuse(point: str, who: str) -> None:
        if point == "append":
            raise NotAppended("no broker")

    world.log.at_point = refuse
    body = {"content": "a", "client_message_id": "one"}
    answer = await api.call("POST", "/v1/messages", body=body)
    assert (answer.status, answer.json["code"]) == (503, "kafka_unavailable")
    assert answer.headers["retry-after"] == "2"
    world.log.at_point = lambda point, who: None
    assert (await api.call("POST", "/v1/messages", body=body)).status == 200
    assert len(world.submitted()) == 1


async def test_a_log_that_does_not_acknowledge_is_not_waited_for(world: World) -> None:
    world.append_timeout_s = 0.05
    api = world.process()
    world.log.down = True
    answer = await api.call("POST", "/v1/messages", body={"content": "a"})
    world.log.down = False
    assert (answer.status, answer.json["code"]) == (503, "kafka_unavailable")


async def test_with_accept_the_answer_is_the_stream_and_a_repeat_is_the_same_stream(world: World, api: Process) -> None:
    how = {"body": {"content": "a", "client_message_id": "one"}, "headers": {"Accept": "text/event-stream"}}
    call = api.begin("POST", "/v1/messages", **how)  # type: ignore[arg-type]
    event = (await eventually("it is in the log", world.submitted))[0]
    world.whole({"reply": {"id": event.reply_id}, "message": None, "conversation_id": event.conversation_id}, "x", "y")
    await call.end()
    assert call.status == 200
    assert call.headers["location"] == f"/v1/messages/{event.reply_id}/events"
    assert [parse_frame(each)[0] for each in call.frames] == [1, 2, 3, 4]
    again = api.begin("POST", "/v1/messages", **how)  # type: ignore[arg-type]
    await again.end()
    assert again.frames == call.frames


async def test_the_rate_is_limited_with_a_true_retry_after(world: World, api: Process) -> None:
    await world.hot.claims_begin(0)
    for _ in range(60):
        await api.send(key=BOB)
    refused = await api.call("POST", "/v1/messages", key=BOB, body={"content": "a", "client_message_id": "x"})
    assert (refused.status, refused.json["code"]) == (429, "rate_limited")
    wait_ms = refused.json["retry_after_s"] * 1000
    assert int(refused.headers["retry-after"]) * 1000 >= wait_ms > 0
    limits = (await api.call("GET", "/v1/limits", key=BOB)).json["data"][0]
    assert (limits["capacity"], limits["available"], limits["refill_per_s"]) == (60, 0, 1.0)
    world.time_ms += int(wait_ms) - 10
    assert (await api.call("POST", "/v1/messages", key=BOB, body={"content": "a"})).status == 429
    world.time_ms += 10
    accepted = await api.call("POST", "/v1/messages", key=BOB, body={"content": "other", "client_message_id": "x"})
    assert accepted.status == 202, "a refused send claims nothing"


async def test_a_cancel_is_in_the_log_and_may_be_repeated(world: World, api: Process) -> None:
    sent = await api.send()
    reply_id = world.queue(sent)
    world.start(reply_id)
    world.say(reply_id, "partial")
    other = world.process()
    for process in (api, other):
        answer = await process.call("POST", f"/v1/messages/{reply_id}/cancel")
        assert (answer.status, answer.json["status"], answer.json["text"]) == (202, "running", "partial")
    events = world.events("cancellations")
    assert all(isinstance(event, CancellationRequested) and event.reply_id == reply_id for event in events)
    world.end(reply_id, "cancelled")
    ended = await api.call("POST", f"/v1/messages/{reply_id}/cancel")
    assert (ended.status, ended.json["status"], ended.json["text"]) == (200, "cancelled", "partial")
    assert ended.json["usage"]["output_tokens"] == 1
    assert len(world.events("cancellations")) == len(events)


async def test_a_cancel_comes_through_while_redis_and_clickhouse_are_away(world: World, api: Process) -> None:
    sent = await api.send()
    world.hot.down = world.views.down = True
    answer = await api.call("POST", f"/v1/messages/{sent['reply']['id']}/cancel")
    assert answer.status == 202
    assert len(world.events("cancellations")) == 1


async def test_the_callers_trace_is_on_the_record_and_its_request_id_on_the_answer(world: World, api: Process) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "X-Request-Id": "my-1"}
    answer = await api.call("POST", "/v1/messages", body={"content": "a"}, headers=headers)
    assert answer.headers["x-request-id"] == "my-1"
    (record,) = [r for _, r in world.raw("messages")]
    assert trace_id(dict(record.headers)["traceparent"].decode()) == trace  # type: ignore[union-attr]
    made = await api.call("GET", "/v1/models", headers={"traceparent": "bad", "X-Request-Id": "no spaces\u00e9"})
    assert len(made.headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    "text", ["a", "\u0000\u0007 tab\t nl\n cr\r", "𝕏🦜👩‍👩‍👧", "שלום עולם", "\u2028\u2029\u0085", "e\u0301", "\ufffd"]
)
async def test_text_of_every_kind_comes_back_unchanged(world: World, api: Process, text: str) -> None:
    sent = await api.send(text)
    assert world.submitted()[0].content == text
    message = await api.call("GET", f"/v1/messages/{sent['message']['id']}")
    assert message.json["text"] == text
    assert json.loads(message.body)["text"] == text


class SlowHot(MemoryHot):
    """Its first answer to a claim comes when it is let go."""

    def __init__(self) -> None:
        super().__init__(lambda: 1_796_000_000_000_000)
        self.first = True
        self.claimed, self.answers = asyncio.Event(), asyncio.Event()

    async def enter(self, demand: Demand, claim: Claim | None) -> Entry:
        entry = await super().enter(demand, claim)
        if self.first:
            self.first = False
            self.claimed.set()
            await self.answers.wait()
        return entry


async def test_a_refused_try_leaves_the_claim_of_an_accepted_one(world: World) -> None:
    hot = SlowHot()
    await hot.claims_begin(0)
    api = world.process(hot=hot)
    body = {"content": "hello", "client_message_id": "one"}
    first = api.begin("POST", "/v1/messages", body=body)
    await asyncio.wait_for(hot.claimed.wait(), 5)
    second = await api.call("POST", "/v1/messages", body=body)
    assert second.status == 200
    world.measure("refuse")
    hot.answers.set()
    await first.end()
    assert first.status == 503
    world.measure("full")
    other = await api.call("POST", "/v1/messages", body={"content": "other", "client_message_id": "one"})
    assert other.status == 409
    again = await api.call("POST", "/v1/messages", body=body)
    assert (again.status, again.json["reply"]["id"]) == (200, second.json["reply"]["id"])
    assert len(world.submitted()) == 1
