"""Reads: one's own writes at once, running replies as they are, strangers nothing."""

import json

import pytest

from api.formats.ai_sdk import AiSdkWriter
from api.formats.exchange import Facts
from schemas.stream import parse_frame
from schemas.values import Failure
from tests.api.world import ALICE, BOB, Process, World


async def get(api: Process, path: str, key: str = ALICE) -> dict[str, object]:
    answer = await api.call("GET", path, key=key)
    assert answer.status == 200, answer.body
    return dict(answer.json)


async def test_a_send_is_in_the_next_read_of_everything(world: World, api: Process) -> None:
    sent = await api.send("first line\nsecond")
    conversation_id = sent["conversation_id"]
    other = world.process()
    assert [item["id"] for item in (await get(other, "/v1/conversations"))["data"]] == [conversation_id]  # type: ignore[index, attr-defined]
    conversation = await get(other, f"/v1/conversations/{conversation_id}")
    assert conversation["title"] == "first line"
    assert conversation["branch"] == [sent["message"]["id"], sent["reply"]["id"]]
    page = await get(other, f"/v1/conversations/{conversation_id}/messages")
    assert [(m["role"], m["position"], m["status"]) for m in page["data"]] == [  # type: ignore[attr-defined]
        ("user", 1, "completed"),
        ("assistant", 2, "queued"),
    ]


async def test_a_reply_is_read_as_it_runs_and_after(world: World, api: Process) -> None:
    sent = await api.send()
    reply_id = world.queue(sent)
    path = f"/v1/messages/{reply_id}"
    assert (await get(api, path))["status"] == "queued"
    world.start(reply_id)
    world.say(reply_id, "a", "b")
    running = await get(api, path)
    assert (running["status"], running["text"], running["offset"]) == ("running", "ab", 3)
    world.end(reply_id)
    ended = await get(api, path)
    assert (ended["status"], ended["text"], ended["offset"]) == ("completed", "ab", 4)
    world.store(reply_id)
    world.project()
    world.hot.lose()
    stored = await get(api, path)
    assert stored == ended


async def test_a_reply_of_which_only_the_stream_is_known_can_be_read(world: World, api: Process) -> None:
    sent = await api.send()
    reply_id = world.queue(sent)
    world.start(reply_id)
    world.say(reply_id, "a")
    world.hot._hot.clear()
    for world.views.down in (False, True):
        found = await get(api, f"/v1/messages/{reply_id}")
        assert (found["status"], found["text"], found["position"]) == ("running", "a", None)


async def test_branches_siblings_and_positions(world: World, api: Process) -> None:
    first = await api.send("one")
    conversation_id = first["conversation_id"]
    second = await api.send("two", conversation_id=conversation_id)
    again = await api.call("POST", f"/v1/messages/{second['reply']['id']}/regenerate", body={})
    assert again.status == 202
    assert again.json["message"]["id"] == second["message"]["id"]
    edited = await api.send("one, edited", conversation_id=conversation_id, parent_id=conversation_id)
    page = (await get(api, f"/v1/conversations/{conversation_id}/messages"))["data"]
    assert [m["position"] for m in page] == [1, 2, 3, 4, 5, 6, 7]  # type: ignore[attr-defined]
    new = again.json["reply"]["id"]
    assert (await get(api, f"/v1/messages/{new}"))["siblings"] == [second["reply"]["id"], new]
    roots = (await get(api, f"/v1/messages/{edited['message']['id']}"))["siblings"]
    assert roots == [first["message"]["id"], edited["message"]["id"]]
    assert (await get(api, f"/v1/conversations/{conversation_id}"))["branch"] == [
        edited["message"]["id"],
        edited["reply"]["id"],
    ]
    chosen = await api.call(
        "PATCH", f"/v1/conversations/{conversation_id}", body={"branch": first["reply"]["id"], "title": "T"}
    )
    assert (chosen.status, chosen.json["title"], chosen.json["branch"][-1]) == (200, "T", new)
    assert await get(api, f"/v1/conversations/{conversation_id}") == chosen.json


async def test_pages_go_through_all_messages_and_conversations_once(world: World, api: Process) -> None:
    ids = [(await api.send(f"c{n}"))["conversation_id"] for n in range(7)]
    world.project()
    world.hot.lose()
    ids += [(await api.send(f"h{n}"))["conversation_id"] for n in range(3)]
    for n in range(4):
        await api.send(f"more {n}", conversation_id=ids[0])
    found: list[str] = []
    cursor = ""
    while cursor is not None:
        page = await get(api, f"/v1/conversations?limit=3{cursor and '&cursor=' + cursor}")
        assert len(page["data"]) <= 3  # type: ignore[arg-type]
        found += [item["id"] for item in page["data"]]  # type: ignore[attr-defined]
        cursor = page["next_cursor"]  # type: ignore[assignment]
    assert found == [ids[0], *reversed(ids[1:])]
    first = await get(api, f"/v1/conversations/{ids[0]}/messages?limit=4")
    rest = await get(api, f"/v1/conversations/{ids[0]}/messages?limit=200&cursor={first['next_cursor']}")
    positions = [m["position"] for m in (*first["data"], *rest["data"])]  # type: ignore[misc]
    assert positions == list(range(1, 11))
    assert rest["next_cursor"] is None


@pytest.mark.parametrize("path", ["/v1/conversations", "/v1/usage/records"])
@pytest.mark.parametrize("cursor", ["x", "AAAA", "WzEsMl0", "bnVsbA"])
async def test_a_bad_cursor_is_refused(api: Process, path: str, cursor: str) -> None:
    answer = await api.call("GET", f"{path}?cursor={cursor}")
    assert (answer.status, answer.json["code"]) == (400, "invalid_cursor")


async def test_a_deleted_conversation_is_gone_at_once_for_every_reader(world: World, api: Process) -> None:
    sent = await api.send()
    world.whole(sent, "a")
    kept = await api.send("kept")
    conversation_id, reply_id = sent["conversation_id"], sent["reply"]["id"]
    other = world.process()
    assert (await api.call("DELETE", f"/v1/conversations/{conversation_id}")).status == 204
    for projected in (False, True):
        if projected:
            world.project()
            world.hot._deleted.clear()
            world.hot._hot.clear()
        for path in (
            f"/v1/conversations/{conversation_id}",
            f"/v1/conversations/{conversation_id}/messages",
            f"/v1/messages/{reply_id}",
            f"/v1/messages/{sent['message']['id']}",
        ):
            assert (await other.call("GET", path)).status == 404, path
        listed = (await get(other, "/v1/conversations"))["data"]
        assert [item["id"] for item in listed] == [kept["conversation_id"]]  # type: ignore[attr-defined]
    world.hot.lose()
    assert (await other.call("GET", f"/v1/messages/{reply_id}/events")).status == 404
    assert (await other.call("DELETE", f"/v1/conversations/{conversation_id}")).status == 404


async def test_deleting_cancels_what_runs_and_takes_no_more_sends(world: World, api: Process) -> None:
    sent = await api.send()
    conversation_id = sent["conversation_id"]
    assert (await api.call("DELETE", f"/v1/conversations/{conversation_id}")).status == 204
    assert [event.reply_id for event in world.events("cancellations")] == [sent["reply"]["id"]]  # type: ignore[attr-defined]
    body = {"content": "more", "conversation_id": conversation_id}
    assert (await api.call("POST", "/v1/messages", body=body)).status == 404
    assert (await api.call("GET", sent["events_url"])).status == 404


async def test_what_is_anothers_answers_exactly_as_what_does_not_exist(world: World, api: Process) -> None:
    sent = await api.send()
    world.whole(sent, "secret")
    reply_id, conversation_id = sent["reply"]["id"], sent["conversation_id"]
    for method, path, body in (
        ("GET", "/v1/messages/{m}", None),
        ("GET", "/v1/messages/{m}/events", None),
        ("POST", "/v1/messages/{m}/cancel", None),
        ("POST", "/v1/messages/{m}/regenerate", {}),
        ("GET", "/v1/conversations/{c}", None),
        ("GET", "/v1/conversations/{c}/messages", None),
        ("PATCH", "/v1/conversations/{c}", {"title": "x"}),
        ("DELETE", "/v1/conversations/{c}", None),
        ("POST", "/v1/messages", {"content": "x", "conversation_id": "{c}"}),
    ):
        answers = []
        for message, conversation in ((reply_id, conversation_id), ("rep_nothing", "conv_nothing")):
            filled = {k: v.format(c=conversation) for k, v in body.items()} if body else body
            answers.append(await api.call(method, path.format(m=message, c=conversation), key=BOB, body=filled))
        assert answers[0].status == answers[1].status == 404
        assert answers[0].body == answers[1].body
    assert (await get(api, "/v1/conversations", BOB))["data"] == []
    assert len(world.events("messages")) == 1


async def test_no_key_and_a_wrong_key_are_refused(api: Process) -> None:
    for key in (None, "wrong", ""):
        answer = await api.call("GET", "/v1/conversations", key=key)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.headers["content-type"] == "application/problem+json"


async def test_while_clickhouse_is_away_lists_say_so_and_the_rest_goes_on(world: World, api: Process) -> None:
    sent = await api.send()
    old = sent["conversation_id"]
    world.project()
    world.hot.lose()
    world.views.down = True
    for path in ("/v1/conversations", f"/v1/conversations/{old}", "/v1/usage", "/v1/usage/records"):
        answer = await api.call("GET", path)
        assert (answer.status, answer.json["code"]) == (503, "clickhouse_unavailable"), path
        assert "ClickHouse" in answer.json["detail"]
    more = await api.send("more", conversation_id=old)
    reply_id = world.whole(more, "a", "b")
    assert (await get(api, f"/v1/messages/{reply_id}"))["text"] == "ab"
    assert len(await api.follow(reply_id)) == 4
    assert (await api.call("POST", f"/v1/messages/{reply_id}/cancel")).status == 200


async def test_while_redis_is_away_a_reply_that_is_not_stored_says_so(world: World, api: Process) -> None:
    sent = await api.send()
    world.project()
    world.hot.down = True
    answer = await api.call("GET", f"/v1/messages/{sent['reply']['id']}")
    assert (answer.status, answer.json["code"]) == (503, "redis_unavailable")
    assert (await get(api, f"/v1/messages/{sent['message']['id']}"))["text"] == "hello"
    assert (await get(api, "/v1/limits"))["data"][0]["available"] is None  # type: ignore[index]
    deleted = await api.call("DELETE", f"/v1/conversations/{sent['conversation_id']}")
    assert (deleted.status, deleted.json["code"]) == (503, "redis_unavailable")


async def test_a_users_message_has_no_stream(world: World, api: Process) -> None:
    sent = await api.send()
    for method, call in (("GET", "events"), ("POST", "cancel"), ("POST", "regenerate")):
        answer = await api.call(method, f"/v1/messages/{sent['message']['id']}/{call}")
        assert (answer.status, answer.json["code"]) == (400, "not_a_reply")


async def test_what_is_missing_is_named_when_not_ready(world: World, api: Process) -> None:
    await api.health.look()
    assert (await api.call("GET", "/readyz", key=None)).json == {"status": "ready", "missing": []}
    world.hot.down = world.views.down = True
    await api.health.look()
    answer = await api.call("GET", "/readyz", key=None)
    assert (answer.status, answer.json["missing"]) == (503, ["redis", "clickhouse"])
    assert (await api.call("GET", "/healthz", key=None)).body == b"ok\n"


async def test_metrics_have_few_labels(world: World, api: Process) -> None:
    sent = await api.send()
    await api.call("GET", f"/v1/messages/{sent['reply']['id']}")
    await api.call("GET", "/somewhere/else")
    text = (await api.call("GET", "/metrics", key=None)).body.decode()
    assert 'route="/v1/messages/{message_id}"' in text
    assert sent["reply"]["id"] not in text
    assert "somewhere" not in text


async def test_each_time_that_a_reply_began_again_is_told_while_it_runs_and_after(world: World, api: Process) -> None:
    sent = await api.send()
    path = f"/v1/messages/{sent['reply']['id']}"
    assert sent["reply"]["resets"] == []
    assert sent["message"]["resets"] is None
    reply_id = world.queue(sent)
    for attempt, reason, detail in ((1, "worker_lost", ""), (2, "interrupted", "HTTP 502")):
        world.start(reply_id, attempt)
        world.say(reply_id, "partial")
        world.reset(reply_id, reason, detail)
    told = [
        {"attempt": 2, "reason": "worker_lost", "detail": None},
        {"attempt": 3, "reason": "interrupted", "detail": "HTTP 502"},
    ]
    waiting = (await api.call("GET", path)).json
    assert (waiting["status"], waiting["attempt"], waiting["resets"]) == ("queued", 3, told)
    world.start(reply_id, 3)
    world.say(reply_id, "whole")
    world.end(reply_id)
    ended = (await api.call("GET", path)).json
    world.store(reply_id)
    world.project()
    stored = (await api.call("GET", path)).json
    assert (stored["attempt"], stored["resets"]) == (3, told)
    assert stored == ended | {"siblings": stored["siblings"], "position": stored["position"]}
    feed = api.begin("GET", f"/v1/conversations/{sent['conversation_id']}/events")
    await feed.until(2)
    begun, end = (json.loads(each.split(b"data: ")[1]) for each in feed.frames)
    await feed.leave()
    assert "resets" not in begun["reply"]
    assert end["resets"] == [{name: value for name, value in reset.items() if value is not None} for reset in told]


async def test_an_error_says_after_how_long_it_is_worth_another_try(world: World, api: Process) -> None:
    sent = await api.send()
    path = f"/v1/messages/{sent['reply']['id']}"
    reply_id = world.queue(sent)
    world.end(reply_id, "refused", Failure(code="high_demand", detail="Too much.", retry_after_s=9))
    world.store(reply_id)
    told = {"code": "high_demand", "detail": "Too much.", "retry_after_s": 9}
    assert (await api.call("GET", path)).json["error"] == told
    (frame,) = await api.follow(reply_id)
    assert json.loads(frame.split(b"data: ")[1])["error"] == told
    for query in ("", "?stream=true"):
        answer = await api.call("GET", f"/openai/v1/chat/completions/{reply_id}{query}")
        assert b'"code":"high_demand"' in answer.body
        assert answer.status == (200 if query else 503)
        assert (b'"retry_after_s":9' in answer.body) if query else (answer.headers["retry-after"] == "9")
        answer = await api.call("GET", f"/anthropic/v1/messages/{reply_id}{query}")
        assert b'"type":"overloaded_error"' in answer.body
        assert answer.status == (200 if query else 529)
        assert (b'"retry_after_s":9' in answer.body) if query else (answer.headers["retry-after"] == "9")
    response = (await api.call("GET", f"/openai/v1/responses/{reply_id}")).json
    assert response["error"] == {
        "code": "rate_limit_exceeded",
        "message": "Too much.",
        "type": "high_demand",
        "retry_after_s": 9,
    }
    submitted = world.submitted()[0]
    facts = Facts(
        reply_id=reply_id, conversation_id=submitted.conversation_id, model="m", created_at_ms=1, request=submitted
    )
    ended = parse_frame(frame)[1]
    assert b'"retryAfterS":9' in AiSdkWriter(facts, resets=True).write(1, ended)
