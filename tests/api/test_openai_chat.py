"""Chat Completions and Models over HTTP: what is taken, ignored and refused, and how a completion is come back to."""

import json
from typing import Any

import pytest
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from schemas.limits import HISTORY_MESSAGES_MAX, SEED_MAX, STOP_CHARS_MAX, STOP_SEQUENCES_MAX
from schemas.values import PromptMessage
from tests.api.openai_calls import CHAT, MODELS, RESPONSES, answered, error_of, events_of, place_of, refused, submitted
from tests.api.world import ALICE, BOB, Process, World, eventually

NAME = "smollm2-135m-instruct"


def request(*said: str, **members: Any) -> dict[str, Any]:
    """A request in which user and assistant take turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(said or ("hello",))]
    return {"model": "auto", "messages": messages} | members


async def test_a_completion_is_answered_once_it_has_ended_and_read_again(world: World, api: Process) -> None:
    asked = request(stop=".", max_completion_tokens=9, temperature=0.5, top_p=0.5, seed=3, metadata={"tag": "x"})
    event, answer = await answered(world, api, CHAT, asked)
    completion = ChatCompletion.model_validate(answer, strict=True)
    assert (completion.id, completion.model) == (event.reply_id, NAME)
    assert (completion.choices[0].message.content, completion.choices[0].finish_reason) == ("Rivers flow.", "stop")
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (3, 2)
    assert answer["metadata"] == {"tag": "x"}
    assert (event.content, event.stop, event.seed, event.max_output_tokens) == ("hello", (".",), 3, 9)
    path = f"{CHAT}/{event.reply_id}"
    read = await api.call("GET", path)
    assert (read.json, read.headers["x-reply-id"]) == (answer, event.reply_id)
    world.store(event.reply_id)
    world.project()
    world.hot.lose()
    assert (await api.call("GET", path)).json == answer


async def test_the_stream_begins_at_once_and_can_be_had_again(world: World, api: Process) -> None:
    call = api.begin("POST", CHAT, body=request(stream=True, stream_options={"include_usage": True}))
    event = await submitted(world)
    await call.until(1)
    assert call.headers["x-reply-id"] == event.reply_id
    assert call.headers["x-conversation-id"] == event.conversation_id
    world.whole(place_of(event), "Rivers", " flow.")
    await call.end()
    assert call.received.endswith(b"data: [DONE]\n\n")
    chunks = [ChatCompletionChunk.model_validate(one, strict=True) for one in events_of(call.received)]
    assert "".join(choice.delta.content or "" for one in chunks for choice in one.choices) == "Rivers flow."
    assert [one.usage is not None for one in chunks] == [False] * (len(chunks) - 1) + [True]
    path = f"{CHAT}/{event.reply_id}"
    assert (await api.call("GET", f"{path}?stream=true&include_usage=true")).body == call.received
    without = events_of((await api.call("GET", f"{path}?stream=true")).body)
    assert all("usage" not in one for one in without)
    assert error_of(await api.call("GET", f"{path}?include_usage=true"), 400)["param"] == "include_usage"


async def test_a_reader_that_left_comes_back_for_the_same_completion(world: World, api: Process) -> None:
    call = api.begin("POST", CHAT, body=request(stream=True))
    event = await submitted(world)
    world.queue(place_of(event))
    world.start(event.reply_id)
    world.say(event.reply_id, "Rivers")
    await call.until(2)
    await call.leave()
    whole = api.begin("GET", f"{CHAT}/{event.reply_id}")
    again = api.begin("GET", f"{CHAT}/{event.reply_id}?stream=true")
    await again.until(2)
    world.say(event.reply_id, " flow.")
    world.end(event.reply_id)
    await whole.end()
    await again.end()
    assert again.received.startswith(call.received)
    assert json.loads(whole.received)["choices"][0]["message"]["content"] == "Rivers flow."
    assert world.events("cancellations") == []


@pytest.mark.parametrize(
    ("status", "code", "kind"), [("refused", 400, "invalid_request_error"), ("failed", 500, "server_error")]
)
async def test_a_reply_that_failed_is_an_error_that_is_not_tried_again(
    world: World, api: Process, status: Any, code: int, kind: str
) -> None:
    call = api.begin("POST", CHAT, body=request())
    event = await submitted(world)
    world.queue(place_of(event))
    world.start(event.reply_id)
    world.end(event.reply_id, status)
    await call.end()
    assert (call.status, json.loads(call.received)["error"]["type"]) == (code, kind)
    assert (call.headers["x-should-retry"], call.headers["x-reply-id"]) == ("false", event.reply_id)
    stream = await api.call("GET", f"{CHAT}/{event.reply_id}?stream=true")
    assert b"[DONE]" not in stream.body
    assert events_of(stream.body)[-1] == json.loads(call.received)


async def test_an_answer_that_cannot_be_waited_for_names_the_reply(world: World, api: Process) -> None:
    call = api.begin("POST", CHAT, body=request())
    event = await submitted(world)
    await eventually("it waits", lambda: world.hot.followed)
    await api.open_streams.stop(5)
    await call.end()
    error = json.loads(call.received)["error"]
    assert (call.status, error["code"]) == (503, "reply_unfinished")
    assert (call.headers["x-reply-id"], call.headers["x-should-retry"]) == (event.reply_id, "false")
    assert event.reply_id in error["message"]


async def test_a_completion_is_cancelled_as_a_response(world: World, api: Process) -> None:
    call = api.begin("POST", CHAT, body=request())
    event = await submitted(world)
    world.queue(place_of(event))
    world.start(event.reply_id)
    world.say(event.reply_id, "Riv")
    cancel = api.begin("POST", f"{RESPONSES}/{event.reply_id}/cancel")
    world.end(event.reply_id, "cancelled")
    await cancel.end()
    await call.end()
    choice = json.loads(call.received)["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("cancelled", "Riv")
    assert json.loads(cancel.received)["status"] == "cancelled"


async def test_a_history_is_the_clients_and_one_message_goes_on(world: World, api: Process) -> None:
    asked = request("one", "two", "three")
    asked["messages"].insert(0, {"role": "system", "content": [{"type": "text", "text": "Be brief."}]})
    asked["messages"][2] |= {"refusal": None, "tool_calls": None, "annotations": []}
    first, _ = await answered(world, api, CHAT, asked)
    assert first.history == (PromptMessage(role="user", content="one"), PromptMessage(role="assistant", content="two"))
    assert (first.content, first.system) == ("three", "Be brief.")
    header = {"x-conversation-id": first.conversation_id}
    second, _ = await answered(world, api, CHAT, request("four"), **header)
    assert (second.conversation_id, second.history, second.system) == (first.conversation_id, (), None)
    metadata = {"conversation_id": first.conversation_id}
    third, answer = await answered(world, api, CHAT, request("five", "six", "seven", metadata=metadata))
    assert (third.conversation_id, len(third.history), third.system) == (first.conversation_id, 2, "")
    assert answer["metadata"] == metadata
    both = request(metadata={"conversation_id": "conv_other"})
    assert (await refused(api, CHAT, both, headers=header))["param"] == "metadata.conversation_id"
    assert (await refused(api, CHAT, request(), 404, key=BOB, headers=header))["code"] == "not_found"


@pytest.mark.parametrize(
    ("messages", "param", "told"),
    [
        ([{"role": "tool", "content": "a", "tool_call_id": "t"}], "messages[0].role", "'tool' is not supported"),
        ([{"role": "function", "content": "a"}], "messages[0].role", "'function' is not supported"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}],
            "messages[0].content[0]",
            "'image_url' is not supported",
        ),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0]", "'input_audio'"),
        ([{"role": "assistant", "content": None, "tool_calls": [{}]}], "messages[0].tool_calls", "not supported"),
        ([{"role": "user", "content": "a", "name": "b"}], "messages[0].name", "is not supported"),
        ([{"role": "user"}], "messages[0].content", "must be a text or a list"),
        ([{"type": "message", "role": "user", "content": "a"}], "messages[0].type", "is not supported"),
        ([{"role": "assistant", "content": "a"}], "messages", "must end with a message of the user"),
        ("hello", "messages", "must be a list of messages"),
        ([{"role": "user", "content": "a"}] * (HISTORY_MESSAGES_MAX + 2), "messages", "at most 1000"),
        ([5] * 50, "messages[0]", "must be a message"),
    ],
)
async def test_what_is_no_text_is_refused_by_its_place(api: Process, messages: Any, param: str, told: str) -> None:
    error = await refused(api, CHAT, {"model": "auto", "messages": messages})
    assert error["param"] == param
    assert told in error["message"]


@pytest.mark.parametrize(
    ("member", "value", "told"),
    [
        ("n", 2, "is not supported; leave it out"),
        ("n", True, "is not supported"),
        ("tools", [{}], "is not supported"),
        ("functions", [{}], "is not supported"),
        ("logprobs", True, "is not supported"),
        ("logit_bias", {"5": 1}, "is not supported"),
        ("response_format", {"type": "json_object"}, "is not supported"),
        ("audio", {}, "is not supported"),
        ("modalities", ["text", "audio"], "is not supported"),
        ("prediction", {}, "is not supported"),
        ("frequency_penalty", 0.1, "is not supported"),
        ("presence_penalty", -1, "is not supported"),
        ("reasoning_effort", "low", "is not supported"),
        ("web_search_options", {}, "is not supported"),
        ("store", False, "must be true or absent"),
        ("stop", [str(n) for n in range(STOP_SEQUENCES_MAX + 1)], "at most 8"),
        ("stop", "x" * (STOP_CHARS_MAX + 1), "at most 128"),
        ("seed", SEED_MAX + 1, "less than or equal"),
        ("max_tokens", 4097, "this model gives at most 4096"),
        ("max_completion_tokens", 4097, "this model gives at most 4096"),
        ("stream_options", {"include_usage": 1}, "valid boolean"),
        ("stop_sequences", [], "is not known"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(api: Process, member: str, value: Any, told: str) -> None:
    error = await refused(api, CHAT, request(**{member: value}))
    assert error["param"].split(".")[0] == member
    assert told in error["message"]


async def test_everything_at_its_limit_or_neutral_is_taken(world: World, api: Process) -> None:
    neutral: dict[str, Any] = {
        "n": 1,
        "tools": [],
        "tool_choice": "none",
        "logprobs": False,
        "top_logprobs": None,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "parallel_tool_calls": False,
        "service_tier": "default",
        "store": True,
        "user": "u",
        "safety_identifier": "s",
        "stream_options": None,
        "max_tokens": 4096,
        "max_completion_tokens": 4096,
        "seed": SEED_MAX,
        "stop": ["x" * STOP_CHARS_MAX] * STOP_SEQUENCES_MAX,
    }
    event, _ = await answered(world, api, CHAT, request(**neutral))
    assert (event.seed, event.max_output_tokens, len(event.stop)) == (SEED_MAX, 4096, STOP_SEQUENCES_MAX)
    error = await refused(api, CHAT, request(max_tokens=1, max_completion_tokens=2))
    assert error["param"] == "max_tokens"


async def test_a_key_makes_it_idempotent_and_its_stream_has_the_same_bytes(world: World, api: Process) -> None:
    headers = {"idempotency-key": "one"}
    call = api.begin("POST", CHAT, body=request(stream=True), headers=headers)
    event = await submitted(world)
    await call.until(1)
    world.time_ms += 60_000
    again = api.begin("POST", CHAT, body=request(stream=True), headers=headers)
    await again.until(1)
    world.whole(place_of(event), "Rivers", " flow.")
    await call.end()
    await again.end()
    assert again.received == call.received
    assert len(world.submitted()) == 1
    other = await api.call("POST", CHAT, body=request("other"), headers=headers)
    assert (error_of(other, 409)["code"], other.headers["x-should-retry"]) == ("client_message_id_conflict", "false")


async def test_a_completion_that_stands_alone_can_be_deleted(world: World, api: Process) -> None:
    event, _ = await answered(world, api, CHAT, request())
    header = {"x-conversation-id": event.conversation_id}
    other, _ = await answered(world, api, CHAT, request(), **header)
    assert error_of(await api.call("DELETE", f"{CHAT}/{other.reply_id}"), 409)["code"] == "conversation_goes_on"
    alone, _ = await answered(world, api, CHAT, request())
    answer = await api.call("DELETE", f"{CHAT}/{alone.reply_id}")
    assert answer.json == {"id": alone.reply_id, "object": "chat.completion.deleted", "deleted": True}
    assert error_of(await api.call("GET", f"{CHAT}/{alone.reply_id}"), 404)


async def test_others_find_nothing(world: World, api: Process) -> None:
    event, _ = await answered(world, api, CHAT, request())
    for key, named in ((BOB, event.reply_id), (ALICE, "chatcmpl-1"), (ALICE, event.message_id)):
        for method, path in (("GET", named), ("GET", f"{named}?stream=true"), ("DELETE", named)):
            assert error_of(await api.call(method, f"{CHAT}/{path}", key=key), 404)["code"] == "not_found"


async def test_a_base_url_without_the_prefix_is_told(api: Process) -> None:
    error = error_of(await api.call("POST", "/v1/chat/completions", body={"model": "auto"}), 404)
    assert "/openai/v1" in error["message"]


async def test_the_models_are_listed_and_one_is_read_by_its_name(api: Process) -> None:
    listed = (await api.call("GET", MODELS)).json
    assert listed["object"] == "list"
    models = [Model.model_validate(one, strict=True) for one in listed["data"]]
    assert [(one.id, one.owned_by) for one in models] == [(NAME, "turnlog")]
    assert (await api.call("GET", f"{MODELS}/{NAME}")).json == listed["data"][0]
    assert (await api.call("GET", f"{MODELS}/auto")).json == listed["data"][0]
    for name in ("gpt-6", "some/other"):
        error = error_of(await api.call("GET", f"{MODELS}/{name}"), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert (await refused(api, CHAT, request(model="gpt-6"), 404))["code"] == "model_not_found"
    assert (await refused(api, CHAT, {"messages": []}))["param"] == "model"
    assert error_of(await api.call("GET", MODELS, key=None), 401)["type"] == "authentication_error"
