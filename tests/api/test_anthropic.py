"""Anthropic Messages over HTTP: what is taken, ignored and refused, and how a reply is come back to."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from schemas.events import MessageSubmitted
from schemas.limits import CONTENT_BYTES_MAX, HISTORY_MESSAGES_MAX, METADATA_VALUE_CHARS_MAX, SYSTEM_BYTES_MAX
from schemas.values import PromptMessage
from tests.api.world import ALICE, BOB, Answer, Call, Process, World, eventually

PATH = "/anthropic/v1/messages"


def body(*said: str, **members: Any) -> dict[str, Any]:
    """A request in which user and assistant take turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(said or ("hello",))]
    return {"model": "auto", "max_tokens": 100, "messages": messages} | members


def begin(api: Process, request: dict[str, Any], **headers: str) -> Call:
    return api.begin("POST", PATH, key=None, body=request, headers={"x-api-key": ALICE} | headers)


async def submitted(world: World, before: Sequence[MessageSubmitted] = ()) -> MessageSubmitted:
    """The send that was not there before."""
    known = {event.message_id for event in before}
    new = await eventually("a send", lambda: [e for e in world.submitted() if e.message_id not in known])
    return new[0]  # type: ignore[no-any-return]


def place_of(event: MessageSubmitted) -> dict[str, Any]:
    return {
        "reply": {"id": event.reply_id},
        "message": {"id": event.message_id},
        "conversation_id": event.conversation_id,
    }


async def answered(world: World, api: Process, request: dict[str, Any], **headers: str) -> tuple[MessageSubmitted, Any]:
    """The event and the answer of a request whose reply is `Rivers flow.`."""
    before = world.submitted()
    call = begin(api, request, **headers)
    event = await submitted(world, before)
    world.whole(place_of(event), "Rivers", " flow.")
    await call.end()
    assert call.status == 200, call.received
    return event, json.loads(call.received)


async def refused(api: Process, request: Any, status: int = 400) -> str:
    answer = await api.call("POST", PATH, body=request)
    assert answer.status == status, answer.body
    assert answer.json["type"] == "error"
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    return str(answer.json["error"]["message"])


async def test_a_message_is_answered_once_it_has_ended(world: World, api: Process) -> None:
    event, message = await answered(world, api, body("hello", system="Be brief.", stop_sequences=["."], top_p=0.5))
    assert message == {
        "id": event.reply_id,
        "type": "message",
        "role": "assistant",
        "model": "smollm2-135m-instruct",
        "content": [{"type": "text", "text": "Rivers flow."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 3,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 2,
        },
    }
    assert (event.content, event.system, event.stop, event.top_p) == ("hello", "Be brief.", (".",), 0.5)
    assert (event.max_output_tokens, event.history, event.new_conversation) == (100, (), True)


async def test_what_was_said_before_is_the_clients(world: World, api: Process) -> None:
    blocks = [
        {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "three"},
    ]
    request = body("one", "", "x") | {"cache_control": {"type": "ephemeral"}}
    request["messages"][2]["content"] = blocks
    request["messages"].insert(1, {"role": "assistant", "content": "ay"})
    event, _ = await answered(world, api, request)
    assert event.history == (PromptMessage(role="user", content="one"), PromptMessage(role="assistant", content="ay"))
    assert event.content == "two\n\nthree"
    assert event.system == "", "no system prompt of the conversation holds beside the client's history"


async def test_the_header_goes_on_in_a_conversation(world: World, api: Process) -> None:
    first, _ = await answered(world, api, body("one"))
    second, _ = await answered(world, api, body("two"), **{"x-conversation-id": first.conversation_id})
    assert second.conversation_id == first.conversation_id
    assert not second.new_conversation
    call = await api.call("POST", PATH, key=BOB, body=body(), headers={"x-conversation-id": first.conversation_id})
    assert (call.status, call.json["error"]["type"]) == (404, "not_found_error")


async def test_the_stream_begins_at_once_and_names_the_reply(world: World, api: Process) -> None:
    call = api.begin("POST", f"{PATH}?beta=true", body=body(stream=True), headers={"anthropic-version": "2023-06-01"})
    await call.until(1)
    event = await submitted(world)
    assert call.headers["x-reply-id"] == event.reply_id
    assert call.headers["x-conversation-id"] == event.conversation_id
    assert call.headers["request-id"] == call.headers["x-request-id"]
    world.whole(place_of(event), "Rivers", " flow.")
    await call.end()
    assert call.frames[0].startswith(b"event: message_start\n")
    assert call.frames[-1] == b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    back = await api.call("GET", f"{PATH}/{event.reply_id}?stream=true")
    assert (back.status, back.body) == (200, call.received)
    assert back.headers["x-conversation-id"] == event.conversation_id


async def test_a_reader_that_left_comes_back_for_the_same_message(world: World, api: Process) -> None:
    call = begin(api, body(stream=True))
    event = await submitted(world)
    world.queue(place_of(event))
    world.start(event.reply_id)
    world.say(event.reply_id, "Rivers")
    await call.until(3)
    await call.leave()
    back = api.begin("GET", f"{PATH}/{event.reply_id}")
    again = api.begin("GET", f"{PATH}/{event.reply_id}?stream=true")
    await again.until(3)
    world.say(event.reply_id, " flow.")
    world.end(event.reply_id)
    await asyncio.gather(back.end(), again.end())
    assert json.loads(back.received)["content"][0]["text"] == "Rivers flow."
    assert again.received.startswith(call.received)
    world.store(event.reply_id)
    world.hot.lose()
    world.project()
    stored = await api.call("GET", f"{PATH}/{event.reply_id}")
    assert stored.body == back.received


async def test_others_find_nothing(world: World, api: Process) -> None:
    event, _ = await answered(world, api, body())
    for path in (f"{PATH}/{event.reply_id}", f"{PATH}/{event.reply_id}?stream=true"):
        answer = await api.call("GET", path, key=BOB)
        assert (answer.status, answer.json["error"]["type"]) == (404, "not_found_error")
    answer = await api.call("GET", f"{PATH}/{event.message_id}")
    assert answer.status == 400, "a user's message is no reply"
    answer = await api.call("POST", PATH, key="wrong", body=body())
    assert (answer.status, answer.json["error"]["type"]) == (401, "authentication_error")


@pytest.mark.parametrize(("status", "code"), [("refused", 400), ("failed", 500)])
async def test_a_reply_that_failed_is_an_error_that_is_not_tried_again(
    world: World, api: Process, status: Any, code: int
) -> None:
    call = begin(api, body())
    event = await submitted(world)
    world.queue(place_of(event))
    world.start(event.reply_id)
    world.end(event.reply_id, status)
    await call.end()
    assert call.status == code
    assert json.loads(call.received)["type"] == "error"
    assert call.headers["x-should-retry"] == "false"
    assert call.headers["x-reply-id"] == event.reply_id


async def test_a_cancelled_reply_is_a_message_without_a_reason(world: World, api: Process) -> None:
    call = begin(api, body())
    event = await submitted(world)
    world.queue(place_of(event))
    world.start(event.reply_id)
    world.say(event.reply_id, "Riv")
    answer = await api.call("POST", f"/v1/messages/{event.reply_id}/cancel")
    assert answer.status == 202
    world.end(event.reply_id, "cancelled")
    await call.end()
    message = json.loads(call.received)
    assert (message["content"][0]["text"], message["stop_reason"]) == ("Riv", None)


async def test_a_key_makes_it_idempotent(world: World, api: Process) -> None:
    event, message = await answered(world, api, body(), **{"idempotency-key": "one"})
    again = await api.call("POST", PATH, body=body(), headers={"Idempotency-Key": "one"})
    assert again.json == message
    stream = await api.call("POST", PATH, body=body(stream=True), headers={"Idempotency-Key": "one"})
    assert event.reply_id.encode() in stream.body
    assert len(world.submitted()) == 1
    other = await api.call("POST", PATH, body=body("other"), headers={"Idempotency-Key": "one"})
    assert (other.status, other.headers["x-should-retry"]) == (409, "false")


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"tools": [{"name": "t"}]}, "tools: is not supported"),
        ({"tool_choice": {"type": "auto"}}, "tool_choice: is not supported"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking: is not supported, except as disabled"),
        ({"top_k": 5}, "top_k: is not supported"),
        ({"mcp_servers": [{}]}, "mcp_servers: is not supported"),
        ({"max_token": 5}, "max_token: is not known"),
        ({"max_tokens": 4097}, "max_tokens: this model gives at most 4096"),
        ({"max_tokens": 0}, "max_tokens: "),
        ({"temperature": 1.01}, "temperature: "),
        ({"metadata": {"user": "x"}}, "metadata.user: is not known; known are"),
        ({"metadata": {"user_id": "x" * (METADATA_VALUE_CHARS_MAX + 1)}}, "metadata.user_id: "),
        ({"messages": []}, "messages: "),
        ({"system": "x" * (SYSTEM_BYTES_MAX + 1)}, f"system: must have at most {SYSTEM_BYTES_MAX} bytes"),
        ({"system": [{"type": "image"}]}, "system: block 0 is of type image; only text blocks are supported"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(api: Process, members: dict[str, Any], told: str) -> None:
    assert told in await refused(api, body(**members))


async def test_a_model_that_is_not_served_is_not_found(api: Process) -> None:
    answer = await api.call("POST", "/anthropic/v1/messages", body=body(model="claude-opus-4-5"))
    assert (answer.status, answer.json["error"]["type"]) == (404, "not_found_error")
    assert answer.json["error"]["message"].endswith("is not served; served are auto, smollm2-135m-instruct.")


async def test_a_base_url_without_the_prefix_is_told(api: Process) -> None:
    version = {"anthropic-version": "2023-06-01"}
    answer = await api.call("POST", "/v1/messages", body=body(), headers=version)
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
    assert "/anthropic" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        (
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
            "the last of messages must be the user's",
        ),
        ([{"role": "user", "content": [{"type": "document"}]}], "messages.0.content: block 0 is of type document"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content: block 0 is not a text block"),
        ([{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}], "messages.0.content: block 0 has x"),
        ([{"role": "user", "content": ["a"]}], "messages.0.content: block 0 is not a text block"),
        ([{"role": "user", "content": ""}], "messages.0: content must not be empty"),
        ([{"role": "user", "content": 5}], "messages.0.content: must be a text"),
        ([{"role": "system", "content": "a"}], "messages.0.role: "),
        ([{"role": "user", "content": "a" * (CONTENT_BYTES_MAX + 1)}], "messages.0.content: must have at most"),
    ],
)
async def test_messages_that_cannot_be_answered_are_refused_by_name(
    api: Process, messages: list[Any], told: str
) -> None:
    assert told in await refused(api, body(messages=messages))


@pytest.mark.parametrize(
    "members",
    [
        {"max_tokens": 1},
        {"max_tokens": 4096},
        {"temperature": 0},
        {"temperature": 1},
        {"tools": []},
        {"thinking": {"type": "disabled"}},
        {"thinking": None, "top_k": None},
        {"service_tier": "auto"},
        {"system": []},
        {"system": "x" * SYSTEM_BYTES_MAX},
        {"metadata": {"user_id": "x" * METADATA_VALUE_CHARS_MAX}},
        {"messages": [{"role": "user", "content": "a" * CONTENT_BYTES_MAX}]},
        {"messages": [{"role": "user", "content": "a"}] * (HISTORY_MESSAGES_MAX + 1)},
    ],
)
async def test_limits_are_reached_and_what_says_nothing_is_taken(
    world: World, api: Process, members: dict[str, Any]
) -> None:
    await answered(world, api, body(**members))


async def test_too_many_messages_are_refused(api: Process) -> None:
    told = await refused(api, body(messages=[{"role": "user", "content": "a"}] * (HISTORY_MESSAGES_MAX + 2)))
    assert told.startswith("messages: ")


async def test_the_users_id_is_kept(world: World, api: Process) -> None:
    event, _ = await answered(world, api, body(metadata={"user_id": "u-1"}))
    assert event.metadata == {"user_id": "u-1"}


async def test_models_are_listed_on_one_page(api: Process) -> None:
    page = (await api.call("GET", "/anthropic/v1/models?limit=20&beta=true")).json
    (model,) = page["data"]
    assert (page["has_more"], page["last_id"]) == (False, model["id"])
    assert (model["type"], model["max_tokens"]) == ("model", 4096)
    assert (await api.call("GET", f"/anthropic/v1/models?after_id={model['id']}")).json["data"] == []
    assert (await api.call("GET", f"/anthropic/v1/models/{model['id']}")).json == model
    assert (await api.call("GET", "/anthropic/v1/models/claude")).status == 404


async def test_what_is_not_offered_says_so(api: Process) -> None:
    answer: Answer = await api.call("POST", f"{PATH}/count_tokens", body=body())
    assert (answer.status, answer.json["error"]["type"]) == (404, "not_found_error")
    assert "not offered" in answer.json["error"]["message"]
    assert (await api.call("GET", "/anthropic/v1/nothing")).json["error"]["type"] == "not_found_error"


async def test_a_reply_that_begins_again_behind_text_is_an_error_and_can_be_read_again(
    world: World, api: Process
) -> None:
    call = begin(api, body(stream=True))
    event = await submitted(world)
    world.queue(place_of(event))
    world.start(event.reply_id)
    world.say(event.reply_id, "Riv")
    await call.until(3)
    world.reset(event.reply_id)
    await call.end()
    assert b'"overloaded_error"' in call.frames[-1]
    back = api.begin("GET", f"{PATH}/{event.reply_id}?stream=true")
    world.start(event.reply_id, attempt=2)
    world.say(event.reply_id, "Rivers", " flow.")
    world.end(event.reply_id)
    await back.end()
    assert b'Riv"' not in back.received
    assert back.frames[-1].startswith(b"event: message_stop")


async def test_a_process_that_stops_says_that_the_reply_goes_on(world: World, api: Process) -> None:
    call, whole = begin(api, body(stream=True)), begin(api, body("other"))
    event = await submitted(world)
    await eventually("both are sent", lambda: len(world.submitted()) == 2)
    await call.until(1)
    await api.open_streams.stop(5)
    await asyncio.gather(call.end(), whole.end())
    assert call.frames[-1].startswith(b'event: error\ndata: {"type":"error","error":{"type":"api_error"')
    assert whole.status == 503
    assert "rep_" in json.loads(whole.received)["error"]["message"]
    other = world.process()
    world.whole(place_of(event), "Rivers")
    assert (await other.call("GET", f"{PATH}/{event.reply_id}")).json["content"][0]["text"] == "Rivers"
