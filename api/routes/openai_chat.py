"""The Chat Completions API of OpenAI's clients."""

from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import read
from api.context import Service, TheCaller, TheIdempotencyKey, TheService, TheTrail, own
from api.formats.exchange import (
    CONVERSATION_HEADER,
    Exchange,
    finished,
    headers_of,
    resume,
    send,
    streamed,
)
from api.formats.openai_bodies import ChatBody, chat_send
from api.formats.openai_chat import ChatWriter, completion, unanswered
from api.formats.openai_models import served
from api.openapi import JSON_OBJECT, OBJECT_OR_STREAM, body_of, foreign_problems
from api.problems import bad_request
from api.routes.openai_answers import delete_alone, told

router = APIRouter(prefix="/openai/v1/chat/completions", tags=["openai"])


TheConversation = Annotated[
    str | None,
    Header(alias=CONVERSATION_HEADER, description="The conversation to go on with, as `metadata.conversation_id` is."),
]


@router.post(
    "",
    summary="Create a chat completion",
    response_class=Response,
    openapi_extra=body_of(ChatBody),
    responses={
        200: {"description": "The completion, or its chunks.", **OBJECT_OR_STREAM},
        **foreign_problems(400, 401, 402, 404, 408, 409, 410, 413, 415, 429, 500, 503),
    },
)
async def create(
    request: Request,
    the: TheService,
    caller: TheCaller,
    trail: TheTrail,
    key: TheIdempotencyKey,
    conversation_id: TheConversation = None,
) -> Response:
    """Waits for the end, unless `stream` is true. A disconnect never cancels: read the completion by its id."""
    body = await read(request, ChatBody)
    model = served(the.models, body.model)
    event = the.sender.submission(caller, *chat_send(body, key, model, conversation_id))
    _, exchange = await send(the, caller, trail, event)
    if not body.stream:
        return await _completed(the, exchange)
    include_usage = body.stream_options is not None and body.stream_options.include_usage is True
    return await streamed(the, exchange, ChatWriter(exchange.facts, include_usage=include_usage))


@router.get(
    "/{completion_id}",
    summary="Read or follow a chat completion",
    response_class=Response,
    responses={
        200: {"description": "The completion once it has ended, or all its chunks.", **OBJECT_OR_STREAM},
        **foreign_problems(400, 401, 404, 409, 410, 500, 503),
    },
)
async def get(
    completion_id: str,
    the: TheService,
    caller: TheCaller,
    stream: Annotated[bool, Query(description="The answer is the stream, from its first chunk.")] = False,
    include_usage: Annotated[bool, Query(description="The stream ends with the usage.")] = False,
) -> Response:
    """Waits for the end like the call that made it, and so gives back what a lost connection would have given."""
    reply = own(the, caller, completion_id, "message", "rep")
    if include_usage and not stream:
        raise bad_request([("include_usage", "needs stream=true")])
    exchange = await resume(the, caller, reply)
    if stream:
        return await streamed(the, exchange, ChatWriter(exchange.facts, include_usage=include_usage))
    return await _completed(the, exchange)


@router.delete(
    "/{completion_id}",
    summary="Delete a chat completion",
    response_class=Response,
    responses={
        200: {"description": "It is gone for every reader, with its conversation.", **JSON_OBJECT},
        **foreign_problems(400, 401, 404, 409, 503),
    },
)
async def delete(completion_id: str, the: TheService, caller: TheCaller, trail: TheTrail) -> Response:
    """Deletes the conversation of a completion that is its only one; otherwise 409."""
    reply = own(the, caller, completion_id, "message", "rep")
    await delete_alone(the, caller, trail, reply)
    return told({"id": reply.id, "object": "chat.completion.deleted", "deleted": True})


async def _completed(the: Service, exchange: Exchange) -> Response:
    reply = await finished(the, exchange)
    if reply.end is None:
        raise AssertionError("a reply that has ended has its end")
    problem = unanswered(reply.end)
    if problem is not None:
        problem.headers |= headers_of(exchange.facts)
        raise problem
    return told(completion(exchange.facts, reply, reply.end), exchange.facts)
