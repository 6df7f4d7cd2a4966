"""Calls as OpenAI's clients make them, on the API in one process."""

import json
from collections.abc import Collection
from typing import Any

from openai._streaming import SSEDecoder

from schemas.events import MessageSubmitted
from tests.api.world import Answer, Process, World, eventually

RESPONSES = "/openai/v1/responses"
CHAT = "/openai/v1/chat/completions"
MODELS = "/openai/v1/models"


async def submitted(world: World, known: Collection[str] = ()) -> MessageSubmitted:
    """The send whose reply is none of those that are known, once it is in the log."""

    def found() -> MessageSubmitted | None:
        return next((event for event in world.submitted() if event.reply_id not in known), None)

    event: MessageSubmitted = await eventually("a new send", found)
    return event


def place_of(event: MessageSubmitted) -> dict[str, Any]:
    """A send as `World.queue` takes it."""
    return {
        "reply": {"id": event.reply_id},
        "message": {"id": event.message_id},
        "conversation_id": event.conversation_id,
    }


async def answered(
    world: World, api: Process, path: str, request: dict[str, Any], **headers: str
) -> tuple[MessageSubmitted, Any]:
    """The event and the answer of a request whose reply is `Rivers flow.`."""
    known = {event.reply_id for event in world.submitted()}
    call = api.begin("POST", path, body=request, headers=headers)
    event = await submitted(world, known)
    world.whole(place_of(event), "Rivers", " flow.")
    await call.end()
    assert call.status == 200, call.received
    assert call.headers["x-reply-id"] == event.reply_id
    assert call.headers["x-conversation-id"] == event.conversation_id
    return event, json.loads(call.received)


async def refused(api: Process, path: str, request: Any, status: int = 400, **how: Any) -> dict[str, Any]:
    """The error of a request that is refused; all four members must be there."""
    answer: Answer = await api.call("POST", path, body=request, **how)
    return error_of(answer, status)


def error_of(answer: Answer, status: int) -> dict[str, Any]:
    """The error of an answer."""
    assert answer.status == status, answer.body
    error = dict(answer.json["error"])
    assert set(error) == {"message", "type", "param", "code"}
    return error


def events_of(received: bytes) -> list[dict[str, Any]]:
    """The events of a stream, as openai-python cuts them, without `[DONE]`."""
    return [sse.json() for sse in SSEDecoder().iter_bytes(iter([received])) if sse.data != "[DONE]"]
