"""Messages: send, read, follow, cancel, regenerate."""

from typing import Annotated, TypeVar

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from api.accounts import Caller
from api.bodies import Generation, RegenerateBody, SendBody, read
from api.context import (
    Service,
    TheCaller,
    TheFollower,
    TheIdempotencyKey,
    TheService,
    TheTrail,
    Trail,
    answer,
    own,
    own_reply,
)
from api.following import cursor_of, events_url
from api.messages import queued_reply, sent_message
from api.openapi import STREAM, body_of, problems
from api.problems import Problem, bad_request
from api.sending import Request as Submission
from api.sending import Sent
from api.shapes import MessageView, SentView
from api.sse import HEADERS
from api.submitting import reply_of, submit_followed
from schemas.events import MessageSubmitted
from schemas.ids import Parsed
from schemas.values import TERMINAL

router = APIRouter(prefix="/v1/messages", tags=["messages"])

G = TypeVar("G", bound=Generation)
Accept = Annotated[str | None, Header(description="`text/event-stream`: the answer is the reply's own stream.")]


@router.post(
    "",
    status_code=202,
    summary="Send a message",
    response_model=SentView,
    openapi_extra=body_of(SendBody),
    responses={
        200: {"model": SentView, "description": "Sent before, or the stream.", **STREAM},
        **problems(400, 401, 402, 404, 408, 409, 410, 413, 415, 429, 503),
    },
)
async def send(
    request: Request,
    the: TheService,
    caller: TheCaller,
    trail: TheTrail,
    key: TheIdempotencyKey,
    accept: Accept = None,
) -> Response:
    """Accepted when Kafka has acknowledged it. A repeated send (`client_message_id`) answers 200 with the same ids.

    With `Accept: text/event-stream` the answer is the stream of the reply from its first event (200).
    """
    body = _keyed(await read(request, SendBody), key)
    return await _submit(the, caller, trail, the.sender.submission(caller, body), _wants_stream(accept))


@router.get(
    "/{message_id}",
    summary="Read a message",
    response_model=MessageView,
    responses=problems(400, 401, 404, 503),
)
async def get(message_id: str, the: TheService, caller: TheCaller) -> Response:
    """The message as it is now; of a reply that runs, the text so far and the offset that it stands for."""
    parsed = own(the, caller, message_id, "message", "msg", "rep")
    return answer(await the.conversations.message(caller, parsed))


@router.get(
    "/{message_id}/events",
    summary="Follow a reply",
    response_class=Response,
    responses={
        200: {"description": "The events after the cursor, until `ended`.", **STREAM},
        204: {"description": "The cursor is at the end: nothing will come."},
        **problems(400, 401, 404, 410, 503),
    },
)
async def events(
    message_id: str,
    the: TheService,
    caller: TheFollower,
    last_event_id: Annotated[str | None, Header(description="The offset after which to go on.")] = None,
    after: Annotated[str | None, Query(description="The same, for clients that cannot set headers.")] = None,
) -> Response:
    """Server-sent events: `id` is the offset. Follow again after the last one that you have; nothing is lost."""
    reply = own_reply(the, caller, message_id)
    return await the.streams.answer(caller, reply, cursor_of(last_event_id, after))


@router.post(
    "/{message_id}/cancel",
    status_code=202,
    summary="Cancel a reply",
    response_model=MessageView,
    responses={
        200: {"model": MessageView, "description": "It has ended; the final message."},
        **problems(400, 401, 404, 503),
    },
)
async def cancel(message_id: str, the: TheService, caller: TheCaller, trail: TheTrail) -> Response:
    """Idempotent. The reply keeps the text it has and ends as `cancelled`, unless it ends otherwise before."""
    reply = own_reply(the, caller, message_id)
    view: MessageView | None = None
    try:
        view = await the.conversations.message(caller, reply)
    except Problem as problem:
        # A cancel must not need the views: it goes to the log, and the message is told where it can be read.
        if problem.status != 503:
            raise
    if view is not None and view.status in TERMINAL:
        return answer(view)
    await the.sender.cancel(caller, reply, trail.traceparent)
    return answer(view or _unread(reply), 202)


@router.post(
    "/{message_id}/regenerate",
    status_code=202,
    summary="Regenerate a reply",
    response_model=SentView,
    openapi_extra=body_of(RegenerateBody, required=False),
    responses={
        200: {"model": SentView, "description": "Asked for before, or the stream.", **STREAM},
        **problems(400, 401, 402, 404, 408, 409, 410, 413, 415, 429, 503),
    },
)
async def regenerate(
    message_id: str,
    request: Request,
    the: TheService,
    caller: TheCaller,
    trail: TheTrail,
    key: TheIdempotencyKey,
    accept: Accept = None,
) -> Response:
    """Another reply to the same message, as a sibling of this one."""
    regenerated = own_reply(the, caller, message_id)
    body = _keyed(await read(request, RegenerateBody, may_be_empty=True), key)
    event = the.sender.regeneration(caller, regenerated, body)
    return await _submit(the, caller, trail, event, _wants_stream(accept))


def _keyed(body: G, key: str | None) -> G:
    """The body, with the client's id from the header where it has none. Raises `Problem` 400 where they differ."""
    if key is None or body.client_message_id == key:
        return body
    if body.client_message_id is not None:
        raise bad_request([("Idempotency-Key", "is another id than client_message_id; give one of them")])
    return body.model_copy(update={"client_message_id": key})


async def _submit(the: Service, caller: Caller, trail: Trail, event: Submission, stream: bool) -> Response:
    headers = {"Location": events_url(event.reply_id)}
    if not stream:
        sent = await the.sender.submit(caller, event, trail.traceparent, trail.limits)
        return answer(await _sent_view(the, caller, sent), 200 if sent.repeated else 202)
    sent, reader = await submit_followed(the, caller, trail, event)
    if sent.repeated:
        return await the.streams.answer(caller, reply_of(event), 0, headers)
    return the.streams.stream(reader, headers=headers)


async def _sent_view(the: Service, caller: Caller, sent: Sent) -> SentView:
    event = sent.event
    message = sent_message(event) if isinstance(event, MessageSubmitted) else None
    reply = queued_reply(event)
    if sent.repeated or message is None:
        try:
            conversation = await the.conversations.load(caller, event.conversation_id)
        except Problem:
            conversation = None
        held = conversation.messages.get(event.reply_id) if conversation else None
        if conversation is not None and held is not None:
            views = await the.conversations.views(conversation, (held.parent_id or "", held.id))
            message = views.get(held.parent_id or "") or message
            reply = views[held.id]
    return SentView(
        conversation_id=event.conversation_id, message=message, reply=reply, events_url=events_url(event.reply_id)
    )


def _unread(reply: Parsed) -> MessageView:
    """A reply of which nothing can be read now."""
    return MessageView(
        id=reply.id,
        conversation_id=reply.conversation_id,
        role="assistant",
        status="running",
        text="",
        model=None,
        parent_id=None,
        siblings=None,
        position=None,
        attempt=None,
        resets=None,
        usage=None,
        timings=None,
        offset=None,
        error=None,
        created_at=None,
        client_message_id=None,
    )


def _wants_stream(accept: str | None) -> bool:
    return accept is not None and HEADERS["Content-Type"] in accept.lower()
