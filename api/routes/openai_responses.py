"""The Responses API of OpenAI's clients."""

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from api.accounts import Caller
from api.bodies import read
from api.context import Service, TheCaller, TheIdempotencyKey, TheService, TheTrail, Trail, own
from api.following import CURSOR_DIGITS_MAX
from api.formats.exchange import (
    Exchange,
    Facts,
    aside,
    ended_frames,
    facts_of,
    followed,
    held,
    resume,
    send,
)
from api.formats.openai_bodies import ResponsesBody, responses_send
from api.formats.openai_items import input_items, listed
from api.formats.openai_models import served
from api.formats.openai_response_object import Told, response
from api.formats.openai_responses import Unserved, begun
from api.openapi import JSON_OBJECT, OBJECT_OR_STREAM, body_of, foreign_problems
from api.problems import DO_NOT_RETRY, FieldError, Problem, bad_request, unavailable
from api.replay import stored_events
from api.routes.openai_answers import delete_alone, told
from api.stores import StoreDown
from schemas.ids import Parsed
from schemas.stream import parse_frame

router = APIRouter(prefix="/openai/v1/responses", tags=["openai"])

CANCEL_WAIT_S = 2.0
"""A cancel waits for so long for the end, so that the answer usually says `cancelled`."""
ITEMS_DEFAULT, ITEMS_MAX = 20, 100


@router.post(
    "",
    summary="Create a response",
    response_class=Response,
    openapi_extra=body_of(ResponsesBody),
    responses={
        200: {
            "description": "The response: as it ended, in the background as it begins; or its events.",
            **OBJECT_OR_STREAM,
        },
        **foreign_problems(400, 401, 402, 404, 408, 409, 410, 413, 415, 429, 503),
    },
)
async def create(
    request: Request, the: TheService, caller: TheCaller, trail: TheTrail, key: TheIdempotencyKey
) -> Response:
    """Waits for the end, unless `background` or `stream` is true. A disconnect never cancels."""
    body = await read(request, ResponsesBody)
    try:
        return await _created(the, caller, trail, body, key)
    except Problem as problem:
        if problem.code != "not_found" or body.previous_response_id is None:
            raise
        raise _no_previous(body.previous_response_id) from problem  # its conversation was deleted


async def _created(the: Service, caller: Caller, trail: Trail, body: ResponsesBody, key: str | None) -> Response:
    model = served(the.models, body.model or "auto")
    event = the.sender.submission(caller, *responses_send(body, key, model, _previous(the, caller, body)))
    reply = Parsed(kind="rep", id=event.reply_id, conversation_id=event.conversation_id)
    if body.background and not body.stream:
        sent = await the.sender.submit(caller, event, trail.traceparent, trail.limits)
        if sent.repeated:
            return await _now(the, caller, reply)
        facts = facts_of(event, the.models)
        return told(response(facts, Told()), facts)
    _, exchange = await send(the, caller, trail, event)
    if body.stream:
        return await _streamed(the, exchange, after=-1)
    frames = await ended_frames(the, exchange)
    return told(response(exchange.facts, Told(map(parse_frame, frames))), exchange.facts)


@router.get(
    "/{response_id}",
    summary="Read or follow a response",
    response_class=Response,
    responses={
        200: {"description": "The response as it is now, or its events.", **OBJECT_OR_STREAM},
        **foreign_problems(400, 401, 404, 410, 503),
    },
)
async def get(
    response_id: str,
    the: TheService,
    caller: TheCaller,
    stream: Annotated[bool, Query(description="The answer is the stream of its events.")] = False,
    starting_after: Annotated[str | None, Query(description="The `sequence_number` after which to go on.")] = None,
    include_obfuscation: Annotated[bool, Query(description="Only false: nothing is padded.")] = False,
) -> Response:
    """With `stream`, every event above `starting_after`, once, in order; without it, from the first."""
    reply = own(the, caller, response_id, "message", "rep")
    if include_obfuscation:
        raise bad_request([("include_obfuscation", "is not supported; leave it out")])
    after = _after(starting_after, stream)
    if stream:
        return await _streamed(the, await resume(the, caller, reply), after)
    return await _now(the, caller, reply)


@router.post(
    "/{response_id}/cancel",
    summary="Cancel a response",
    response_class=Response,
    responses={
        200: {
            "description": "The response; status `cancelled` unless it ended before.",
            **JSON_OBJECT,
        },
        **foreign_problems(400, 401, 404, 503),
    },
)
async def cancel(response_id: str, the: TheService, caller: TheCaller, trail: TheTrail) -> Response:
    """Idempotent. The response keeps the text that it has."""
    reply = own(the, caller, response_id, "message", "rep")
    try:
        facts, events = await _current(the, caller, reply)
    except Problem as problem:
        if problem.status == 503:  # a cancel must not need what is away
            await the.sender.cancel(caller, reply, trail.traceparent)
        raise
    if events.end is None:
        await the.sender.cancel(caller, reply, trail.traceparent)
        await _end_soon(the, caller, reply)
        facts, events = await _current(the, caller, reply)
    return told(response(facts, events), facts)


@router.delete(
    "/{response_id}",
    summary="Delete a response",
    response_class=Response,
    responses={
        200: {"description": "It is gone for every reader, with its conversation.", **JSON_OBJECT},
        **foreign_problems(400, 401, 404, 409, 503),
    },
)
async def delete(response_id: str, the: TheService, caller: TheCaller, trail: TheTrail) -> Response:
    """Deletes the conversation of a response that is its only one; otherwise 409."""
    reply = own(the, caller, response_id, "message", "rep")
    await delete_alone(the, caller, trail, reply)
    return told({"id": reply.id, "object": "response", "deleted": True})


@router.get(
    "/{response_id}/input_items",
    summary="List a response's input",
    response_class=Response,
    responses={
        200: {"description": "What was said, without the system prompt.", **JSON_OBJECT},
        **foreign_problems(400, 401, 404, 503),
    },
)
async def items(
    response_id: str,
    the: TheService,
    caller: TheCaller,
    limit: Annotated[int, Query(ge=1, le=ITEMS_MAX)] = ITEMS_DEFAULT,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=200, description="The id of the item before.")] = None,
) -> Response:
    """The user's message, and the history that came with it."""
    reply = own(the, caller, response_id, "message", "rep")
    found = input_items(*await held(the, caller, reply))
    page = listed(found, limit=limit, order=order, after=after)
    if page is None:
        raise bad_request([("after", "is not an item of this response")])
    return told(page)


def _previous(the: Service, caller: Caller, body: ResponsesBody) -> Parsed | None:
    text = body.previous_response_id
    if text is None:
        return None
    if body.conversation is not None:
        raise bad_request([("previous_response_id", "cannot be given together with conversation")])
    parsed = the.ids.parse(caller.account_id, text)
    if parsed is None or parsed.kind != "rep":
        raise _no_previous(text)
    return parsed


def _no_previous(text: str) -> Problem:
    detail = f"There is no response {text[:100]!r}."
    errors = [FieldError(field="previous_response_id", reason=detail)]
    return Problem(404, "previous_response_not_found", "Not found", detail, errors=errors)


def _after(text: str | None, stream: bool) -> int:
    if text is None:
        return -1
    if not stream:
        raise bad_request([("starting_after", "needs stream=true")])
    if not (text.isascii() and text.isdigit() and len(text) <= CURSOR_DIGITS_MAX):
        raise bad_request([("starting_after", "must be a sequence_number: a whole number from 0")])
    return int(text)


async def _streamed(the: Service, exchange: Exchange, after: int) -> Response:
    made = await aside(
        exchange,
        lambda: begun(exchange.facts, exchange.begun.frames, stored=exchange.begun.stored, after=after),
    )
    if isinstance(made, Unserved):
        exchange.begun.reader.close()
        if exchange.begun.unread:
            raise unavailable("redis", "The events after this number are in Redis, which does not answer.")
        why = {
            "expired": "The events after this number are not kept any more; the response itself is",
            "beyond": "The stream ended before this number; the response can be read",
        }[made.why]
        detail = f"{why}: GET /openai/v1/responses/{exchange.facts.reply_id}."
        errors = [FieldError(field="starting_after", reason=why)]
        raise Problem(410, "cursor_gone", "Gone", detail, errors=errors, headers=DO_NOT_RETRY)
    writer, first = made
    return followed(the, exchange, writer, first)


async def _now(the: Service, caller: Caller, reply: Parsed) -> Response:
    facts, events = await _current(the, caller, reply)
    return told(response(facts, events), facts)


async def _current(the: Service, caller: Caller, reply: Parsed) -> tuple[Facts, Told]:
    _, message = await held(the, caller, reply)
    facts = facts_of(message.request, the.models)
    if message.stored is not None:
        return facts, Told(stored_events(message.stored))
    try:
        (live,) = await the.hot.live((reply.id,))
    except StoreDown as down:
        detail = "A response that is not stored yet is read from Redis, which does not answer."
        raise unavailable("redis", detail) from down
    return facts, Told(map(parse_frame, live.frames))


async def _end_soon(the: Service, caller: Caller, reply: Parsed) -> None:
    begun_ = await the.streams.whole(caller, reply)
    try:
        async with asyncio.timeout(CANCEL_WAIT_S):
            await the.streams.gathered(begun_)
    except TimeoutError:
        return  # the answer says how it stands
