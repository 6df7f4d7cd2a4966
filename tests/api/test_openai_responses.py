"""The Responses API over HTTP: what is taken and refused; how a response is read, resumed, cancelled and deleted."""

import asyncio
import json
from typing import Any

import pytest
from openai.types.responses import Response
from openai.types.responses.response_item_list import ResponseItemList

from schemas.events import ReplyStored
from schemas.limits import (
    CONTENT_BYTES_MAX,
    HISTORY_MESSAGES_MAX,
    METADATA_NAME_CHARS_MAX,
    METADATA_PAIRS_MAX,
    METADATA_VALUE_CHARS_MAX,
    SYSTEM_BYTES_MAX,
)
from schemas.values import PromptMessage, Usage
from tests.api.openai_calls import RESPONSES, answered, error_of, events_of, place_of, refused, submitted
from tests.api.world import ALICE, BOB, PATIENCE, Process, World, eventually


def request(said: Any = "hello", **members: Any) -> dict[str, Any]:
    return {"model": "auto", "input": said} | members


def item(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


async def test_a_response_is_answered_once_it_has_ended(world: World, api: Process) -> None:
    asked = request(instructions="Be brief.", temperature=1, top_p=0.5, max_output_tokens=9, metadata={"tag": "x"})
    event, answer = await answered(world, api, RESPONSES, asked)
    assert Response.model_validate(answer, strict=True).output_text == "Rivers flow."
    assert (answer["id"], answer["status"]) == (event.reply_id, "completed")
    assert answer["conversation"] == {"id": event.conversation_id}
    assert (answer["instructions"], answer["metadata"]) == ("Be brief.", {"tag": "x"})
    assert (answer["temperature"], answer["top_p"], answer["max_output_tokens"]) == (1, 0.5, 9)
    assert answer["usage"]["total_tokens"] == 5
    assert (event.content, event.system, event.metadata) == ("hello", "Be brief.", {"tag": "x"})
    assert event.new_conversation


async def test_it_is_read_again_the_same_from_the_buffer_and_when_it_is_stored(world: World, api: Process) -> None:
    event, answer = await answered(world, api, RESPONSES, request())
    path = f"{RESPONSES}/{event.reply_id}"
    assert (await api.call("GET", path)).json == answer
    world.store(event.reply_id)
    world.project()
    world.hot.lose()
    read = await api.call("GET", path)
    assert read.json == answer
    assert read.headers["x-reply-id"] == event.reply_id


async def test_in_the_background_it_is_answered_at_once_and_can_be_polled(world: World, api: Process) -> None:
    answer = await api.call("POST", RESPONSES, body=request(background=True))
    assert answer.status == 200
    assert Response.model_validate(answer.json, strict=True).status == "queued"
    event = await submitted(world)
    path = f"{RESPONSES}/{event.reply_id}"

    async def polled() -> tuple[str, str]:
        response = Response.model_validate((await api.call("GET", path)).json, strict=True)
        return str(response.status), response.output_text

    assert await polled() == ("queued", "")
    world.queue(place_of(event))
    world.start(event.reply_id)
    assert await polled() == ("in_progress", "")
    world.say(event.reply_id, "Rivers")
    assert await polled() == ("in_progress", "Rivers")
    world.end(event.reply_id)
    assert await polled() == ("completed", "Rivers")


async def test_the_stream_begins_at_once_and_can_be_gone_on_with_after_every_number(world: World, api: Process) -> None:
    call = api.begin("POST", RESPONSES, body=request(stream=True))
    event = await submitted(world)
    await call.until(2)
    assert call.headers["x-reply-id"] == event.reply_id
    world.whole(place_of(event), *(f"{number} " for number in range(20)))
    await call.end()
    events = events_of(call.received)
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    path = f"{RESPONSES}/{event.reply_id}?stream=true"
    assert (await api.call("GET", path)).body == call.received
    other = world.process()
    for after in range(len(events)):
        rest = await other.call("GET", f"{path}&starting_after={after}")
        assert rest.status == 200
        assert events_of(rest.body) == events[after + 1 :]
    beyond = await api.call("GET", f"{path}&starting_after={len(events)}")
    error = error_of(beyond, 410)
    assert f"GET {RESPONSES}/{event.reply_id}" in error["message"]
    assert error["param"] == "starting_after"
    assert beyond.headers["x-should-retry"] == "false"


async def test_an_expired_stream_is_served_whole_or_not_at_all(world: World, api: Process) -> None:
    event, answer = await answered(world, api, RESPONSES, request())
    world.store(event.reply_id)
    world.project()
    world.hot.lose()
    world.time_ms += 3_600_000
    path = f"{RESPONSES}/{event.reply_id}?stream=true"
    events = events_of((await api.call("GET", path)).body)
    assert events[-1]["response"] == answer
    assert error_of(await api.call("GET", f"{path}&starting_after=5"), 410)["code"] == "cursor_gone"
    last = await api.call("GET", f"{path}&starting_after=9")
    assert [one["type"] for one in events_of(last.body)] == ["response.completed"]


async def test_a_reply_that_outgrew_its_buffer_is_read_from_what_is_stored(world: World, api: Process) -> None:
    await api.call("POST", RESPONSES, body=request(background=True))
    event = await submitted(world)
    reply_id = world.queue(place_of(event))
    world.start(reply_id)
    world.say(reply_id, "Riv", "ers")
    world.hot.publish(reply_id, 4, b"", {"status": "cut"})
    stored = ReplyStored(
        conversation_id=event.conversation_id,
        reply_id=reply_id,
        message_id=event.message_id,
        account_id="alice",
        tier="paid",
        pool="default",
        model="m",
        status="completed",
        text="Rivers flow.",
        attempt=1,
        final_offset=6,
        usage=Usage(input_tokens=1, output_tokens=4),
        submitted_at_ms=1,
        ended_at_ms=2,
    )
    world.append(stored)
    world.project()
    path = f"{RESPONSES}/{reply_id}?stream=true"
    events = events_of((await api.call("GET", path)).body)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Rivers flow."
    assert error_of(await api.call("GET", f"{path}&starting_after=6"), 410)["code"] == "cursor_gone"
    assert (await api.call("GET", f"{RESPONSES}/{reply_id}")).json == events[-1]["response"]


async def test_it_is_followed_while_the_views_are_away(world: World, api: Process) -> None:
    await api.call("POST", RESPONSES, body=request(background=True))
    event = await submitted(world)
    world.views.down = True
    path = f"{RESPONSES}/{event.reply_id}"
    call = api.begin("GET", f"{path}?stream=true")
    await call.until(2)
    world.whole(place_of(event), "Rivers", " flow.")
    await call.end()
    assert (await api.call("GET", path)).json == events_of(call.received)[-1]["response"]


async def test_what_redis_has_is_not_called_gone_while_redis_is_away(world: World, api: Process) -> None:
    event, answer = await answered(world, api, RESPONSES, request())
    world.store(event.reply_id)
    world.project()
    world.hot.down = True
    path = f"{RESPONSES}/{event.reply_id}"
    assert (await api.call("GET", path)).json == answer
    assert events_of((await api.call("GET", f"{path}?stream=true")).body)[-1]["response"] == answer
    error = error_of(await api.call("GET", f"{path}?stream=true&starting_after=5"), 503)
    assert error["code"] == "redis_unavailable"
    world.hot.down = False
    rest = events_of((await api.call("GET", f"{path}?stream=true&starting_after=5")).body)
    assert [one["sequence_number"] for one in rest] == [6, 7, 8, 9, 10]


async def test_a_disconnect_does_not_cancel_and_a_reader_that_left_goes_on(world: World, api: Process) -> None:
    call = api.begin("POST", RESPONSES, body=request(stream=True))
    event = await submitted(world)
    world.queue(place_of(event))
    world.start(event.reply_id)
    world.say(event.reply_id, "Rivers")
    await call.until(6)
    await call.leave()
    back = api.begin("GET", f"{RESPONSES}/{event.reply_id}?stream=true&starting_after=5")
    world.say(event.reply_id, " flow.")
    world.end(event.reply_id)
    await back.end()
    assert [one["sequence_number"] for one in events_of(back.received)] == [6, 7, 8, 9, 10]
    assert world.events("cancellations") == []


async def test_a_reset_ends_the_stream_of_who_has_text_and_no_other(world: World, api: Process) -> None:
    call = api.begin("POST", RESPONSES, body=request(stream=True))
    event = await submitted(world)
    world.queue(place_of(event))
    world.start(event.reply_id)
    await call.until(5)
    world.reset(event.reply_id)
    world.start(event.reply_id, 2)
    world.say(event.reply_id, "Riv")
    await call.until(6)
    world.reset(event.reply_id)
    await call.end()
    assert events_of(call.received)[-1]["code"] == "reply_restarted"
    path = f"{RESPONSES}/{event.reply_id}?stream=true"
    resumed = await api.call("GET", f"{path}&starting_after=7")
    assert [one["code"] for one in events_of(resumed.body)] == ["reply_restarted"]
    again = api.begin("GET", path)
    world.start(event.reply_id, 3)
    world.say(event.reply_id, "Rivers flow.")
    world.end(event.reply_id)
    await again.end()
    assert events_of(again.received)[-1]["response"]["output"][0]["content"][0]["text"] == "Rivers flow."


async def test_a_stream_says_when_the_process_stops(world: World, api: Process) -> None:
    call = api.begin("POST", RESPONSES, body=request(stream=True))
    await call.until(2)
    await api.open_streams.stop(5)
    await call.end()
    last = events_of(call.received)[-1]
    assert (last["code"], last["sequence_number"]) == ("stream_interrupted", 1)


async def test_heartbeats_are_one_line_between_events(world: World) -> None:
    api = world.process(
        PATIENCE.__class__(
            **{name: getattr(PATIENCE, name) for name in ("send_timeout_s", "outage_s", "idle_s", "page")},
            heartbeat_s=0.02,
        )
    )
    keeping = asyncio.ensure_future(api.open_streams.keep())
    call = api.begin("POST", RESPONSES, body=request(stream=True))
    event = await submitted(world)
    await eventually("a heartbeat", lambda: b": hb\n" in call.received)
    world.whole(place_of(event), "x")
    await call.end()
    keeping.cancel()
    assert b": hb\n\n" not in call.received
    assert events_of(call.received)[-1]["type"] == "response.completed"


async def test_cancel_waits_for_the_end_and_can_be_repeated(world: World, api: Process) -> None:
    await api.call("POST", RESPONSES, body=request(background=True))
    event = await submitted(world)
    world.queue(place_of(event))
    world.start(event.reply_id)
    world.say(event.reply_id, "Riv")
    path = f"{RESPONSES}/{event.reply_id}/cancel"
    call = api.begin("POST", path)
    await eventually("it is asked to stop", lambda: world.events("cancellations"))
    world.end(event.reply_id, "cancelled")
    await call.end()
    cancelled = json.loads(call.received)
    assert (call.status, cancelled["status"]) == (200, "cancelled")
    assert cancelled["output"][0]["content"][0]["text"] == "Riv"
    assert (await api.call("POST", path)).json == cancelled
    assert (await api.call("GET", path.removesuffix("/cancel"))).json == cancelled
    assert len(world.events("cancellations")) == 1


async def test_cancel_answers_as_it_stands_where_the_end_does_not_come(world: World, api: Process) -> None:
    await api.call("POST", RESPONSES, body=request(background=True))
    event = await submitted(world)
    answer = await api.call("POST", f"{RESPONSES}/{event.reply_id}/cancel")
    assert (answer.status, answer.json["status"]) == (200, "queued")
    world.queue(place_of(event))
    world.end(event.reply_id, "cancelled")
    answer = await api.call("POST", f"{RESPONSES}/{event.reply_id}/cancel")
    assert (answer.json["status"], answer.json["output"]) == ("cancelled", [])


async def test_cancel_goes_through_while_the_views_are_away(world: World, api: Process) -> None:
    await api.call("POST", RESPONSES, body=request(background=True))
    event = await submitted(world)
    world.project()
    world.hot.lose()
    world.views.down = True
    answer = await api.call("POST", f"{RESPONSES}/{event.reply_id}/cancel")
    assert error_of(answer, 503)["code"] == "clickhouse_unavailable"
    assert len(world.events("cancellations")) == 1


async def test_a_response_that_stands_alone_can_be_deleted(world: World, api: Process) -> None:
    event, _ = await answered(world, api, RESPONSES, request())
    path = f"{RESPONSES}/{event.reply_id}"
    answer = await api.call("DELETE", path)
    assert answer.json == {"id": event.reply_id, "object": "response", "deleted": True}
    for method, at in (("GET", path), ("GET", f"{path}?stream=true"), ("DELETE", path), ("POST", f"{path}/cancel")):
        assert error_of(await api.call(method, at), 404)["code"] == "not_found"


async def test_a_response_that_others_build_on_is_not_deleted(world: World, api: Process) -> None:
    event, _ = await answered(world, api, RESPONSES, request())
    await answered(world, api, RESPONSES, request(previous_response_id=event.reply_id))
    answer = await api.call("DELETE", f"{RESPONSES}/{event.reply_id}")
    assert f"DELETE /v1/conversations/{event.conversation_id}" in error_of(answer, 409)["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert (await api.call("GET", f"{RESPONSES}/{event.reply_id}")).status == 200


async def test_a_response_goes_on_from_another_without_its_instructions(world: World, api: Process) -> None:
    first, _ = await answered(world, api, RESPONSES, request(instructions="Be brief."))
    second, answer = await answered(world, api, RESPONSES, request("two", previous_response_id=first.reply_id))
    assert answer["previous_response_id"] == first.reply_id
    assert (second.conversation_id, second.parent_id) == (first.conversation_id, first.reply_id)
    assert second.system == ""
    third, answer = await answered(world, api, RESPONSES, request("three", conversation={"id": first.conversation_id}))
    assert (third.conversation_id, third.parent_id, third.system) == (first.conversation_id, None, "")
    assert answer["previous_response_id"] is None
    asked = request("four", conversation=first.conversation_id, instructions="Be long.")
    fourth, answer = await answered(world, api, RESPONSES, asked)
    assert (fourth.system, answer["instructions"]) == ("Be long.", "Be long.")


async def test_what_it_goes_on_from_must_be_ones_own_and_one_thing(world: World, api: Process) -> None:
    first, _ = await answered(world, api, RESPONSES, request())
    asked = request(previous_response_id=first.reply_id)
    for key, previous in ((BOB, first.reply_id), (ALICE, "resp_1"), (ALICE, first.message_id)):
        error = await refused(api, RESPONSES, request(previous_response_id=previous), 404, key=key)
        assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
    both = await refused(api, RESPONSES, asked | {"conversation": first.conversation_id})
    assert both["param"] == "previous_response_id"
    assert (await refused(api, RESPONSES, request(conversation="conv_x"), 404))["code"] == "not_found"
    history = [item("user", "a"), item("assistant", "b"), item("user", "c")]
    for named in ({"previous_response_id": first.reply_id}, {"conversation": first.conversation_id}):
        error = await refused(api, RESPONSES, request(history, **named))
        assert error["param"] == "input"
    assert len(world.submitted()) == 1


async def test_items_are_history_system_prompt_and_the_new_message(world: World, api: Process) -> None:
    echoed = {
        "id": "item_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "phase": None,
        "content": [{"type": "output_text", "text": "two", "annotations": [], "logprobs": []}],
    }
    said = [
        item("system", "First."),
        item("user", "one"),
        echoed,
        item("developer", [{"type": "input_text", "text": "Second."}]),
        item("user", "three"),
        item("user", [{"type": "input_text", "text": "four"}, {"type": "text", "text": "five"}]),
    ]
    event, answer = await answered(world, api, RESPONSES, request(said, instructions="Zeroth."))
    assert event.history == (
        PromptMessage(role="user", content="one"),
        PromptMessage(role="assistant", content="two"),
        PromptMessage(role="user", content="three"),
    )
    assert event.content == "four\n\nfive"
    assert event.system == answer["instructions"] == "Zeroth.\n\nFirst.\n\nSecond."
    path = f"{RESPONSES}/{event.reply_id}/input_items"
    listed = (await api.call("GET", path)).json
    ResponseItemList.model_validate(listed, strict=True)
    assert [one["content"][0]["text"] for one in listed["data"]] == ["four\n\nfive", "three", "two", "one"]
    page = (await api.call("GET", f"{path}?order=asc&limit=2")).json
    assert page["has_more"]
    rest = (await api.call("GET", f"{path}?order=asc&after={page['last_id']}")).json
    assert not rest["has_more"]
    assert [*page["data"], *rest["data"]] == listed["data"][::-1]
    assert error_of(await api.call("GET", f"{path}?after=x"), 400)["param"] == "after"


@pytest.mark.parametrize(
    ("said", "param", "told"),
    [
        ([{"type": "function_call", "name": "f"}], "input[0].type", "'function_call' is not supported"),
        ([item("user", [{"type": "input_image"}])], "input[0].content[0]", "'input_image' is not supported"),
        ([item("user", "a"), item("user", [{"type": "input_file"}])], "input[1].content[0]", "'input_file'"),
        ([item("user", [{"text": "a"}])], "input[0].content[0]", "what has no type"),
        ([item("user", [{"type": "text"}])], "input[0].content[0].text", "must be a text"),
        ([item("user", [5])], "input[0].content[0]", "must be a text part"),
        ([item("user", 5)], "input[0].content", "must be a text or a list"),
        ([item("tool", "a")], "input[0].role", "'tool' is not supported"),
        ([item("user", "a") | {"name": "b"}], "input[0].name", "is not supported"),
        (["a"], "input[0]", "must be a message"),
        ([item("user", "a"), item("assistant", "b")], "input", "must end with a message of the user"),
        ([], "input", "must end with a message of the user"),
        ([item("system", "a")], "input", "must end with a message of the user"),
        ([item("user", "")], "input[0]", "must not be empty"),
        ("", "input", "must not be empty"),
        (5, "input", "must be a text or a list of items"),
        ("x" * (CONTENT_BYTES_MAX + 1), "input", "must have at most"),
        ([item("user", "a"), item("user", "ö" * (CONTENT_BYTES_MAX // 2) + "x")], "input[1]", "must have at most"),
        ([item("user", "a")] * (HISTORY_MESSAGES_MAX + 2), "input", "must have at most 1000"),
    ],
)
async def test_what_is_no_text_is_refused_by_its_place(api: Process, said: Any, param: str, told: str) -> None:
    error = await refused(api, RESPONSES, request(said))
    assert error["param"] == param
    assert told in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("member", "value", "told"),
    [
        ("tools", [{"type": "function", "name": "f"}], "is not supported; leave it out"),
        ("tool_choice", "required", "is not supported"),
        ("text", {"format": {"type": "json_object"}}, "format is not supported"),
        ("text", {"verbosity": "high"}, "verbosity is not supported"),
        ("text", "plain", "is not supported"),
        ("reasoning", {"effort": "high"}, "effort is not supported"),
        ("top_logprobs", 1, "is not supported"),
        ("top_logprobs", False, "is not supported"),
        ("include", ["message.output_text.logprobs"], "is not supported"),
        ("service_tier", "flex", "is not supported"),
        ("stream_options", {"include_obfuscation": True}, "is not supported"),
        ("prompt", {"id": "p"}, "is not supported"),
        ("max_tool_calls", 3, "is not supported"),
        ("moderation", {}, "is not supported"),
        ("truncation", "disabled", "must be auto or absent"),
        ("store", False, "must be true or absent"),
        ("max_output_token", 5, "is not known; known are"),
        ("max_output_tokens", 0, "greater than or equal to 1"),
        ("max_output_tokens", 4097, "this model gives at most 4096"),
        ("temperature", 2.1, "less than or equal to 2"),
        ("temperature", "1", "must be a number"),
        ("top_p", 0, "greater than 0"),
        ("conversation", {"id": "a", "b": 1}, "must be a text"),
        ("metadata", {str(n): "" for n in range(METADATA_PAIRS_MAX + 1)}, "at most 16"),
        ("instructions", "x" * (SYSTEM_BYTES_MAX + 1), "must have at most"),
        ("stream", "yes", "valid boolean"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(api: Process, member: str, value: Any, told: str) -> None:
    error = await refused(api, RESPONSES, request(**{member: value}))
    assert error["param"].split(".")[0] == member
    assert told in error["message"]
    assert error["code"] == "invalid_request"


@pytest.mark.parametrize(
    "metadata",
    [{"n" * (METADATA_NAME_CHARS_MAX + 1): "v"}, {"n": "v" * (METADATA_VALUE_CHARS_MAX + 1)}, {"": "v"}, {"n": 1}],
)
async def test_metadata_has_limits(api: Process, metadata: Any) -> None:
    error = await refused(api, RESPONSES, request(metadata=metadata))
    assert error["param"].startswith("metadata")


async def test_everything_at_its_limit_or_neutral_is_taken(world: World, api: Process) -> None:
    metadata = {f"{n:0{METADATA_NAME_CHARS_MAX}}": "v" * METADATA_VALUE_CHARS_MAX for n in range(METADATA_PAIRS_MAX)}
    said = [item("user", "a")] * HISTORY_MESSAGES_MAX + [item("user", "ö" * (CONTENT_BYTES_MAX // 2))]
    neutral: dict[str, Any] = {
        "tools": [],
        "tool_choice": "auto",
        "text": {"format": {"type": "text"}},
        "reasoning": None,
        "top_logprobs": 0,
        "parallel_tool_calls": True,
        "service_tier": "auto",
        "include": [],
        "truncation": "auto",
        "store": True,
        "stream_options": {"include_obfuscation": False},
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "previous_response_id": None,
        "conversation": None,
        "background": False,
        "stream": False,
    }
    asked = request(said, metadata=metadata, instructions="x" * SYSTEM_BYTES_MAX, max_output_tokens=4096, **neutral)
    event, answer = await answered(world, api, RESPONSES, asked | {"temperature": 2.0, "top_p": 1.0})
    assert event.metadata == answer["metadata"] == metadata
    assert len(event.history) == HISTORY_MESSAGES_MAX


async def test_a_key_makes_it_idempotent(world: World, api: Process) -> None:
    headers = {"idempotency-key": "one"}
    event, answer = await answered(world, api, RESPONSES, request(), **headers)
    assert event.client_message_id == "one"
    for how in ({}, {"background": True}):
        assert (await api.call("POST", RESPONSES, body=request(**how), headers=headers)).json == answer
    streamed = await api.call("POST", RESPONSES, body=request(stream=True), headers=headers)
    assert streamed.body == (await api.call("GET", f"{RESPONSES}/{event.reply_id}?stream=true")).body
    assert len(world.submitted()) == 1
    other = await api.call("POST", RESPONSES, body=request("other"), headers=headers)
    assert error_of(other, 409)["code"] == "client_message_id_conflict"
    assert other.headers["x-should-retry"] == "false"
    for key in ("", "k" * 129):
        error = await refused(api, RESPONSES, request(), headers={"idempotency-key": key})
        assert error["param"] == "Idempotency-Key"


async def test_others_find_nothing(world: World, api: Process) -> None:
    event, _ = await answered(world, api, RESPONSES, request())
    path = f"{RESPONSES}/{event.reply_id}"
    for key, at in ((BOB, path), (ALICE, f"{RESPONSES}/resp_1"), (ALICE, f"{RESPONSES}/{event.message_id}")):
        for method, call in (
            ("GET", at),
            ("GET", f"{at}?stream=true"),
            ("GET", f"{at}/input_items"),
            ("POST", f"{at}/cancel"),
            ("DELETE", at),
        ):
            assert error_of(await api.call(method, call, key=key), 404)["code"] == "not_found"
    assert world.events("cancellations") == []


@pytest.mark.parametrize("said", [r'"\ud800"', r'[{"role": "user", "content": "\ud800"}]', r'[{"role": "\ud800"}]'])
async def test_what_is_not_unicode_is_refused(api: Process, said: str) -> None:
    raw = f'{{"model": "auto", "input": {said}}}'.encode()
    answer = await api.call("POST", RESPONSES, raw=raw, headers={"content-type": "application/json"})
    assert error_of(answer, 400)["code"] == "invalid_request"


async def test_a_reply_of_another_format_is_read_and_followed_as_a_response(world: World, api: Process) -> None:
    sent = await api.send("hello", system="Be brief.", temperature=0.5)
    first = world.whole(sent, "Seas wait.")
    regenerated = (await api.call("POST", f"/v1/messages/{first}/regenerate", body={"temperature": 1})).json
    second = world.whole(regenerated, "Rivers flow.")
    for reply_id, text, temperature in ((first, "Seas wait.", 0.5), (second, "Rivers flow.", 1)):
        path = f"{RESPONSES}/{reply_id}"
        read = Response.model_validate((await api.call("GET", path)).json, strict=True)
        assert (read.output_text, read.temperature) == (text, temperature)
        events = events_of((await api.call("GET", f"{path}?stream=true")).body)
        assert events[-1]["response"] == read.to_dict()
        (item_,) = (await api.call("GET", f"{path}/input_items")).json["data"]
        assert (item_["id"], item_["content"][0]["text"]) == (sent["message"]["id"], "hello")


async def test_the_rate_limit_is_told_as_openai_does(api: Process) -> None:
    for _ in range(60):
        answer = await api.call("POST", RESPONSES, body=request(background=True), key=BOB)
        assert answer.status == 200
    answer = await api.call("POST", RESPONSES, body=request(background=True), key=BOB)
    error = error_of(answer, 429)
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limited")
    assert int(answer.headers["retry-after"]) >= 1


async def test_errors_have_openais_shape(api: Process) -> None:
    assert (await refused(api, RESPONSES, request(), 401, key="wrong"))["type"] == "authentication_error"
    assert error_of(await api.call("GET", "/openai/v1/none"), 404)["code"] == "no_such_address"
    assert error_of(await api.call("PUT", RESPONSES), 405)["code"] == "method_not_allowed"
    unknown = await refused(api, RESPONSES, request(model="gpt-6"), 404)
    assert (unknown["code"], unknown["param"]) == ("model_not_found", "model")
    assert "auto, smollm2-135m-instruct" in unknown["message"]
    assert error_of(await api.call("POST", RESPONSES, raw=b"{", headers={"content-type": "text/plain"}), 415)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=true&starting_after=" + "9" * 19, "starting_after"),
        ("starting_after=4", "starting_after"),
        ("stream=perhaps", "stream"),
        ("include%5B%5D=message.output_text.logprobs", "include[]"),
        ("include_obfuscation=true", "include_obfuscation"),
    ],
)
async def test_a_query_is_checked(world: World, api: Process, query: str, param: str) -> None:
    event, _ = await answered(world, api, RESPONSES, request())
    error = error_of(await api.call("GET", f"{RESPONSES}/{event.reply_id}?{query}"), 400)
    assert error["param"] == param


async def test_a_failed_response_is_a_response(world: World, api: Process) -> None:
    call = api.begin("POST", RESPONSES, body=request())
    event = await submitted(world)
    world.queue(place_of(event))
    world.end(event.reply_id, "refused")
    await call.end()
    answer = json.loads(call.received)
    assert (call.status, answer["status"], answer["output"]) == (200, "failed", [])
    assert answer["error"]["code"] == "server_error"
    assert (await api.call("GET", f"{RESPONSES}/{event.reply_id}")).json == answer
