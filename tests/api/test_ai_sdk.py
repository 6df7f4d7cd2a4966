"""The AI SDK's chat over HTTP, with the requests that its transport makes; tests/clients runs the SDK itself."""

import json
from typing import Any

import pytest

from schemas.events import CancellationRequested, MessageSubmitted, RegenerationRequested
from schemas.limits import (
    CONTENT_BYTES_MAX,
    HISTORY_MESSAGES_MAX,
    METADATA_VALUE_CHARS_MAX,
    SYSTEM_BYTES_MAX,
)
from schemas.values import PromptMessage
from tests.api.test_anthropic import place_of, submitted
from tests.api.world import ALICE, BOB, Answer, Call, Process, World, eventually

CHAT = "chat/1"
STREAM = "/ai-sdk/chat%2F1/stream"
STOP = "/ai-sdk/chat%2F1/stop"


def said(message_id: str, text: str, role: str = "user") -> dict[str, Any]:
    """A message as a page holds it."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if role == "assistant":
        parts = [{"type": "step-start"}, {"type": "text", "text": text, "state": "done"}]
    return {"id": message_id, "role": role, "parts": parts, "metadata": {"conversationId": "x"}}


def body(*messages: dict[str, Any], **members: Any) -> dict[str, Any]:
    """What the transport posts."""
    return {"id": CHAT, "messages": list(messages), "trigger": "submit-message"} | members


def chunks(received: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix(b"data: ") for line in received.split(b"\n") if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def sent(world: World, api: Process, request: dict[str, Any], **how: Any) -> tuple[MessageSubmitted, Call]:
    """The event of a request that waits for its reply."""
    before = world.submitted()
    call = api.begin("POST", "/ai-sdk", body=request, **how)
    event = await submitted(world, before)
    await call.until(2)
    return event, call


async def answered(
    world: World, api: Process, request: dict[str, Any], *texts: str, **how: Any
) -> tuple[MessageSubmitted, list[dict[str, Any]]]:
    """The event and the chunks of a request whose reply has these texts."""
    event, call = await sent(world, api, request, **how)
    world.whole(place_of(event), *(texts or ("Rivers", " flow.")))
    await call.end()
    assert (call.status, call.headers["x-vercel-ai-ui-message-stream"]) == (200, "v1")
    return event, chunks(call.received)


async def regenerated(world: World, api: Process, request: dict[str, Any]) -> RegenerationRequested:
    """The event of a request for another reply, which is given."""
    count = len(world.events("messages"))
    call = api.begin("POST", "/ai-sdk", body=request)
    await eventually("it is written", lambda: len(world.events("messages")) > count)
    (event,) = [e for e in world.events("messages") if isinstance(e, RegenerationRequested)][-1:]
    await call.until(2)
    world.whole({"reply": {"id": event.reply_id}, "message": None, "conversation_id": event.conversation_id}, "Again")
    await call.end()
    assert chunks(call.received)[0]["messageId"] == event.reply_id
    return event


async def refused(api: Process, request: Any, **headers: str) -> str:
    answer = await api.call("POST", "/ai-sdk", body=request, headers=headers)
    assert answer.status == 400, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json["detail"])


async def test_the_chats_id_names_the_conversation_and_the_replys_id_the_message(world: World, api: Process) -> None:
    event, told = await answered(world, api, body(said("m1", "hello")))
    assert event.conversation_id == world.ids.named_conversation("alice", CHAT)
    assert told[0]["messageId"] == event.reply_id
    assert told[0]["messageMetadata"] == {"conversationId": event.conversation_id}
    assert (event.new_conversation, event.parent_id, event.history) == (True, event.conversation_id, ())
    assert told[-1]["finishReason"] == "stop"
    assert told[-1]["messageMetadata"]["usage"]["outputTokens"] == 2
    other, _ = await answered(world, api, body(said("m1", "hello")), headers={"authorization": f"Bearer {BOB}"})
    assert other.conversation_id != event.conversation_id, "another account's chat of the same name"


async def test_the_next_message_follows_the_newest_reply_of_the_chat(world: World, api: Process) -> None:
    first, _ = await answered(world, api, body(said("m1", "one")))
    mine = said(first.reply_id, "Rivers flow.", "assistant")
    second, _ = await answered(world, api, body(said("m1", "one"), mine, said("m2", "two")))
    assert second.conversation_id == first.conversation_id
    assert (second.parent_id, second.history, second.new_conversation) == (first.reply_id, (), False)
    folded = world.messages_of(first.conversation_id)
    assert folded is not None
    assert [message.position for message in folded.messages.values()] == [1, 2, 3, 4]


async def test_what_is_not_in_the_conversation_is_taken_from_the_page(world: World, api: Process) -> None:
    foreign = [said("m1", "one"), said("x", "Eins", "assistant"), said("s", "Be brief.", "system")]
    begun, _ = await answered(world, api, body(*foreign, said("m2", "two")))
    pair = (PromptMessage(role="user", content="one"), PromptMessage(role="assistant", content="Eins"))
    assert (begun.history, begun.system, begun.parent_id) == (pair, "Be brief.", begun.conversation_id)
    mine = said(begun.reply_id, "Rivers flow.", "assistant")
    lost = [said("m2", "two"), mine, said("m3", "never sent"), said("m4", "three")]
    event, _ = await answered(world, api, body(*lost))
    assert event.parent_id == begun.reply_id
    assert [one.content for one in event.history] == ["two", "Rivers flow.", "never sent"]
    elsewhere, _ = await answered(world, api, body(*lost) | {"id": "another chat"})
    assert (elsewhere.parent_id, elsewhere.new_conversation) == (elsewhere.conversation_id, True)


async def test_the_same_posted_again_is_one_message_and_an_edit_another(world: World, api: Process) -> None:
    first, told = await answered(world, api, body(said("m1", "one")))
    again = await api.call("POST", "/ai-sdk", body=body(said("m1", "one")))
    assert chunks(again.body) == told
    assert len(world.submitted()) == 1
    edited, _ = await answered(world, api, body(said("m1", "other"), messageId="m1"))
    assert edited.conversation_id == first.conversation_id
    assert edited.message_id != first.message_id
    assert edited.parent_id == first.conversation_id, "a new beginning beside the old one"
    hotter, _ = await answered(world, api, body(said("m1", "one"), temperature=1.5))
    assert hotter.reply_id != first.reply_id
    assert len(world.submitted()) == 3


async def test_a_reply_is_regenerated_by_its_id_or_by_its_question(world: World, api: Process) -> None:
    first, _ = await answered(world, api, body(said("m1", "one")))
    named = await regenerated(
        world, api, body(said("m1", "one"), trigger="regenerate-message", messageId=first.reply_id, temperature=0.5)
    )
    assert (named.regenerated_id, named.temperature) == (first.reply_id, 0.5)
    unnamed = await regenerated(world, api, body(said("m1", "one"), trigger="regenerate-message"))
    assert unnamed.regenerated_id == first.reply_id
    by_question = await regenerated(
        world, api, body(said("m1", "one"), trigger="regenerate-message", messageId="m1", system="Be brief.")
    )
    assert len({first.reply_id, named.reply_id, unnamed.reply_id, by_question.reply_id}) == 4
    folded = world.messages_of(first.conversation_id)
    assert folded is not None
    assert {message.parent_id for message in folded.messages.values()} == {None, first.message_id}


async def test_what_never_arrived_is_sent_when_it_is_to_be_regenerated(world: World, api: Process) -> None:
    event, _ = await answered(world, api, body(said("m1", "one"), trigger="regenerate-message"))
    assert event.content == "one"
    mine = said(event.reply_id, "Rivers flow.", "assistant")
    retried = body(said("m1", "one"), mine, said("m2", "two"), trigger="regenerate-message")
    second, _ = await answered(world, api, retried)
    assert second.parent_id == event.reply_id


async def test_a_key_makes_a_regeneration_idempotent(world: World, api: Process) -> None:
    await answered(world, api, body(said("m1", "one")))
    request = body(said("m1", "one"), trigger="regenerate-message")
    for _ in range(2):
        calls = [api.begin("POST", "/ai-sdk", body=request, headers={"Idempotency-Key": "k"}) for _ in range(2)]
        for call in calls:
            await call.until(2)
            await call.leave()
    written = {e.reply_id for e in world.events("messages") if isinstance(e, RegenerationRequested)}
    assert len(written) == 1


async def test_who_reconnects_gets_the_whole_message(world: World, api: Process) -> None:
    event, call = await sent(world, api, body(said("m1", "one")))
    world.queue(place_of(event))
    world.start(event.reply_id)
    world.say(event.reply_id, "Riv")
    await call.until(4)
    await call.leave()
    world.reset(event.reply_id)
    back = api.begin("GET", STREAM)
    await back.until(2)
    world.start(event.reply_id, attempt=2)
    world.say(event.reply_id, "Rivers", " flow.")
    world.end(event.reply_id)
    await back.end()
    texts = [chunk["delta"] for chunk in chunks(back.received) if chunk["type"] == "text-delta"]
    assert texts == ["Rivers", " flow."]
    assert chunks(back.received)[0]["messageId"] == event.reply_id
    assert (await api.call("GET", STREAM)).status == 204, "nothing runs any more"
    named = await api.call("GET", f"{STREAM}?messageId={event.reply_id}")
    assert named.body == back.received


async def test_where_nothing_runs_there_is_nothing_to_reconnect_to_or_to_stop(world: World, api: Process) -> None:
    for path in ("/ai-sdk/unknown/stream", "/ai-sdk/unknown%2Fstream/stream"):
        assert (await api.call("GET", path)).status == 204
    assert (await api.call("POST", "/ai-sdk/unknown/stop")).status == 204
    event, _ = await answered(world, api, body(said("m1", "one")))
    assert (await api.call("GET", STREAM)).status == 204
    assert (await api.call("POST", STOP)).status == 204
    assert (await api.call("DELETE", f"/v1/conversations/{event.conversation_id}")).status == 204
    assert (await api.call("GET", STREAM)).status == 204
    gone = await api.call("GET", f"{STREAM}?messageId={event.reply_id}")
    assert gone.status == 404


async def test_stop_cancels_the_reply_that_runs(world: World, api: Process) -> None:
    event, call = await sent(world, api, body(said("m1", "one")))
    world.queue(place_of(event))
    world.start(event.reply_id)
    world.say(event.reply_id, "Riv")
    for _ in range(2):
        answer = await api.call("POST", STOP)
        assert (answer.status, answer.json["id"], answer.json["status"]) == (202, event.reply_id, "running")
    (asked, *_) = [e for e in world.events("cancellations") if isinstance(e, CancellationRequested)]
    assert asked.reply_id == event.reply_id
    world.end(event.reply_id, "cancelled")
    await call.end()
    assert chunks(call.received)[-1] == {"type": "abort", "reason": "cancelled"}
    assert (await api.call("POST", STOP)).status == 204


async def test_others_have_their_own_chats(world: World, api: Process) -> None:
    event, call = await sent(world, api, body(said("m1", "one")))
    assert (await api.call("GET", STREAM, key=BOB)).status == 204
    assert (await api.call("POST", STOP, key=BOB)).status == 204
    assert (await api.call("GET", f"{STREAM}?messageId={event.reply_id}", key=BOB)).status == 404
    assert (await api.call("GET", f"/ai-sdk/other/stream?messageId={event.reply_id}")).status == 404
    assert (await api.call("POST", "/ai-sdk", key=None, body=body(said("m", "x")))).status == 401
    await call.leave()


@pytest.mark.parametrize(
    ("version", "last"), [("7", "finish"), ("7.0.173", "finish"), ("6.0.1", "error"), (None, "error")]
)
async def test_a_reset_goes_on_where_the_page_says_that_it_can(
    world: World, api: Process, version: str | None, last: str
) -> None:
    headers = {"x-ai-sdk-version": version} if version else {}
    event, call = await sent(world, api, body(said("m1", "one")), headers=headers)
    world.queue(place_of(event))
    world.start(event.reply_id)
    world.say(event.reply_id, "Riv")
    await call.until(4)
    world.reset(event.reply_id)
    world.start(event.reply_id, attempt=2)
    world.say(event.reply_id, "Rivers")
    world.end(event.reply_id)
    await call.end()
    told = chunks(call.received)
    assert told[-1]["type"] == last
    assert [chunk["type"] for chunk in told].count("reset-step") == (1 if last == "finish" else 0)


@pytest.mark.parametrize("version", ["", "seven", "7x", "-7", "99999"])
async def test_a_version_that_is_none_is_refused(api: Process, version: str) -> None:
    assert "x-ai-sdk-version" in await refused(api, body(said("m1", "one")), **{"x-ai-sdk-version": version})


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (body(), "messages: the last one must be the user's"),
        (body(said("a", "b", "assistant")), "messages: the last one must be the user's"),
        (body(said("m", "")), "messages.0.parts: must have a text that is not empty"),
        (body({"id": "m", "role": "user", "parts": []}), "messages.0.parts: must have a text that is not empty"),
        (
            body(
                said("a", "b"), {"id": "m", "role": "user", "parts": [{"type": "text", "text": "a"}, {"type": "file"}]}
            ),
            "messages.1.parts.1: is of type file; only text is supported",
        ),
        (
            body({"id": "m", "role": "user", "parts": [{"type": "data-x", "data": 1}, {"type": "text", "text": "a"}]}),
            "messages.0.parts.0: is of type data-x",
        ),
        (body({"id": "m", "role": "user", "parts": [{"type": "text", "text": 5}]}), "messages.0.parts.0: "),
        (body({"id": "m", "role": "tool", "parts": []}), "messages.0.role: "),
        (body({"id": "m", "role": "user"}), "messages.0.parts: is required"),
        (body(said("m", "x"), trigger="resume-stream"), "trigger: "),
        (body(said("m", "x"), maxOutputTokens=5), "maxOutputTokens: is not known; known are"),
        (body(said("m", "x"), client_message_id="x"), "client_message_id: is not known"),
        (body(said("m", "x"), model="gpt-5"), "model: is not served"),
        (body(said("m", "x"), max_output_tokens=4097), "max_output_tokens: this model gives at most 4096"),
        (body(said("m", "x")) | {"id": ""}, "id: "),
        (body(said("m", "x")) | {"id": "x" * 129}, "id: "),
        (body(said("x" * (METADATA_VALUE_CHARS_MAX + 1), "x")), "messages.0.id: "),
        (body(said("m", "x" * (CONTENT_BYTES_MAX + 1))), "messages.0.parts: must have at most"),
        (body(said("s", "x" * (SYSTEM_BYTES_MAX + 1), "system"), said("m", "x")), "messages: must have at most"),
        (body(said("m", "x"), system="x" * (SYSTEM_BYTES_MAX + 1)), "system: must have at most"),
        (body(*[said("m", "x")] * (HISTORY_MESSAGES_MAX + 2)), "messages: "),
        (body(trigger="regenerate-message"), "messages: the last one must be the user's"),
    ],
)
async def test_what_cannot_be_sent_is_refused_by_name(api: Process, request_: dict[str, Any], told: str) -> None:
    assert told in await refused(api, request_)


@pytest.mark.parametrize(
    "request_",
    [
        body(said("m", "x")) | {"id": "x" * 128},
        body(said("x" * METADATA_VALUE_CHARS_MAX, "x")),
        body(said("m", "x" * CONTENT_BYTES_MAX)),
        body(said("s", "x" * SYSTEM_BYTES_MAX, "system"), said("m", "x")),
        body(*[said("m", "x")] * (HISTORY_MESSAGES_MAX + 1)),
        body(said("m", "x"), model="smollm2-135m-instruct", max_output_tokens=4096, top_p=1, seed=1, stop=["."]),
        body(
            {
                "id": "m",
                "role": "user",
                "parts": [{"type": "step-start"}, {"type": "data-x", "transient": True}, {"type": "text", "text": "x"}],
            }
        ),
        body({"id": "f", "role": "assistant", "parts": [{"type": "file"}, {"type": "tool-x"}]}, said("m", "x")),
    ],
)
async def test_limits_are_reached_and_what_says_nothing_is_taken(
    world: World, api: Process, request_: dict[str, Any]
) -> None:
    await answered(world, api, request_)


async def test_a_chats_id_that_is_too_long_is_refused_in_the_path(api: Process) -> None:
    for method, last in (("GET", "stream"), ("POST", "stop")):
        answer: Answer = await api.call(method, f"/ai-sdk/{'x' * 129}/{last}", key=ALICE)
        assert answer.status == 400
    assert (await api.call("GET", f"/ai-sdk/{'x' * 128}/stream")).status == 204
