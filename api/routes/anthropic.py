"""Anthropic Messages, for Anthropic's own clients: `base_url` is the service's URL with `/anthropic`."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import read
from api.context import Service, TheCaller, TheIdempotencyKey, TheService, TheTrail, Trail, own_reply
from api.formats.anthropic import AnthropicWriter, ended_message
from api.formats.anthropic_bodies import AnthropicBody, sent
from api.formats.errors import ANTHROPIC_REQUEST_ID, anthropic_error
from api.formats.exchange import (
    CONVERSATION_HEADER,
    REPLY_HEADER,
    Exchange,
    finished,
    resume,
    send,
    streamed,
)
from api.openapi import JSON_OBJECT, OBJECT_OR_STREAM, body_of, foreign_problems
from api.problems import DO_NOT_RETRY, Problem, not_found, retry_after
from api.sending import allowed
from schemas.codec import to_json
from schemas.models import Model, find

router = APIRouter(prefix="/anthropic/v1", tags=["anthropic"])

Beta = Annotated[str | None, Query(description="Taken and ignored, as are `anthropic-version` and `anthropic-beta`.")]
ConversationId = Annotated[str | None, Header(description="Goes on in this conversation. Absent: a new one.")]

_UNKNOWN_AGE = "1970-01-01T00:00:00Z"


@router.post(
    "/messages",
    summary="Create a message (Anthropic)",
    response_class=Response,
    openapi_extra=body_of(AnthropicBody),
    responses={
        200: {"description": "The message once it has ended, or its events.", **OBJECT_OR_STREAM},
        **foreign_problems(400, 401, 402, 404, 408, 409, 413, 415, 429, 500, 503, 529),
    },
)
async def create(
    request: Request,
    the: TheService,
    caller: TheCaller,
    trail: TheTrail,
    idempotency_key: TheIdempotencyKey,
    x_conversation_id: ConversationId = None,
    beta: Beta = None,  # noqa: ARG001 - known, so that it is not refused
) -> Response:
    """Answers from what `messages` say. The header `x-reply-id` names the reply, to come back to it."""
    body = await read(request, AnthropicBody)
    native, brought = sent(body, the.models, x_conversation_id, idempotency_key)
    _, exchange = await send(the, caller, trail, the.sender.submission(caller, native, brought))
    return await _answered(the, trail, exchange, stream=body.stream)


@router.get(
    "/messages/{message_id}",
    summary="Come back to a message (Anthropic)",
    response_class=Response,
    responses={
        200: {"description": "The message once it has ended, or all its events.", **OBJECT_OR_STREAM},
        **foreign_problems(400, 401, 404, 410, 500, 503, 529),
    },
)
async def get(
    message_id: str,
    the: TheService,
    caller: TheCaller,
    trail: TheTrail,
    stream: Annotated[bool, Query(description="Its events from the first one on.")] = False,
    beta: Beta = None,  # noqa: ARG001 - known, so that it is not refused
) -> Response:
    """What Anthropic's API does not have: a reply whose connection was lost, read again from its beginning."""
    exchange = await resume(the, caller, own_reply(the, caller, message_id))
    return await _answered(the, trail, exchange, stream=stream)


@router.post(
    "/messages/count_tokens",
    status_code=404,
    summary="Not offered: count tokens (Anthropic)",
    response_class=Response,
    responses=foreign_problems(400, 401, 404),
)
async def count_tokens(
    the: TheService,  # noqa: ARG001 - a key is needed, as everywhere
    caller: TheCaller,  # noqa: ARG001
    beta: Beta = None,  # noqa: ARG001
) -> Response:
    """Tokens are counted by the engine, when it makes the reply: `usage` has them."""
    detail = "Counting tokens without making a message is not offered; the usage of a message has its count."
    raise Problem(404, "not_offered", "Not offered", detail)


@router.get(
    "/models",
    summary="Models (Anthropic)",
    response_class=Response,
    responses={200: {"description": "All of them, on one page.", **JSON_OBJECT}, **foreign_problems(400, 401)},
)
async def models(
    the: TheService,
    caller: TheCaller,
    trail: TheTrail,
    limit: Annotated[int, Query(ge=1, le=1000, description="Taken and ignored: there is one page.")] = 20,  # noqa: ARG001
    after_id: Annotated[str | None, Query(description="Behind the one page there is nothing.")] = None,
    before_id: Annotated[str | None, Query(description="Before the one page there is nothing.")] = None,
    beta: Beta = None,  # noqa: ARG001
) -> Response:
    """What the caller may use; `auto` is the first one."""
    listed = [] if after_id or before_id else [_model(model) for model in allowed(the.models, caller)]
    first, last = (listed[0]["id"], listed[-1]["id"]) if listed else (None, None)
    return _json(trail, {"data": listed, "has_more": False, "first_id": first, "last_id": last})


@router.get(
    "/models/{model_id}",
    summary="A model (Anthropic)",
    response_class=Response,
    responses={200: {"description": "The model.", **JSON_OBJECT}, **foreign_problems(400, 401, 404)},
)
async def model(
    model_id: str,
    the: TheService,
    caller: TheCaller,
    trail: TheTrail,
    beta: Beta = None,  # noqa: ARG001
) -> Response:
    """One of those that the caller may use."""
    found = find(allowed(the.models, caller), model_id)
    if found is None:
        raise not_found("model")
    return _json(trail, _model(found))


async def _answered(the: Service, trail: Trail, exchange: Exchange, *, stream: bool) -> Response:
    if stream:
        named = {ANTHROPIC_REQUEST_ID: trail.request_id}
        return await streamed(the, exchange, AnthropicWriter(exchange.facts), named)
    reply = await finished(the, exchange)
    ended = ended_message(exchange.facts, reply)
    named = {CONVERSATION_HEADER: exchange.facts.conversation_id, REPLY_HEADER: exchange.facts.reply_id}
    if isinstance(ended, dict):
        return _json(trail, ended, headers=named)
    status, reason = ended
    # The reply has ended: the same again, with the same key, gives the same; without one it costs another reply.
    after_s = reply.end.error.retry_after_s if reply.end and reply.end.error else None
    return _json(trail, anthropic_error(status, reason), status, named | DO_NOT_RETRY | retry_after(after_s))


def _model(model: Model) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": _UNKNOWN_AGE,
        "lifecycle": "active",
        "max_input_tokens": model.context_tokens,
        "max_tokens": model.output_tokens_max,
    }


def _json(trail: Trail, body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    named = {ANTHROPIC_REQUEST_ID: trail.request_id, **(headers or {})}
    return Response(to_json(body), status, named, "application/json")
