"""The Vercel AI SDK's chat: `api` of its `DefaultChatTransport` is the service's URL with `/ai-sdk`."""

import re
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from api.accounts import Caller
from api.bodies import read
from api.context import Service, TheCaller, TheIdempotencyKey, TheService, TheTrail, answer, own_reply
from api.formats.ai_sdk import HEADERS, RESETS_SINCE, VERSION_HEADER, AiSdkWriter
from api.formats.ai_sdk_bodies import AiSdkBody, again, asked, named_reply, reply_to_newest
from api.formats.exchange import Exchange, resume, send, streamed
from api.openapi import FOREIGN_STREAM, body_of, problems
from api.problems import Problem, bad_request, not_found
from api.sending import Request as Submission
from api.shapes import MessageView
from schemas.conversation import Conversation, open_replies
from schemas.ids import Parsed
from schemas.values import TERMINAL

router = APIRouter(prefix="/ai-sdk", tags=["ai-sdk"])

Version = Annotated[
    str | None,
    Header(
        alias=VERSION_HEADER,
        description="The version of the package `ai`. From 7 on, a reply that begins again on another worker goes on in"
        " the stream; without it, such a stream ends with an error.",
    ),
]
ChatId = Annotated[str, Path(min_length=1, max_length=128)]

_VERSION = re.compile(r"(\d{1,4})(\..{0,100})?")


@router.post(
    "",
    summary="Send or regenerate (AI SDK)",
    response_class=Response,
    openapi_extra=body_of(AiSdkBody),
    responses={
        200: {"description": "The reply as a UI message stream.", **FOREIGN_STREAM},
        **problems(400, 401, 402, 404, 408, 409, 410, 413, 415, 429, 503),
    },
)
async def post(
    request: Request,
    the: TheService,
    caller: TheCaller,
    trail: TheTrail,
    idempotency_key: TheIdempotencyKey,
    version: Version = None,
) -> Response:
    """A message of the chat that `id` names, or another reply. Leaving the stream does not stop the reply."""
    resets = _takes_resets(version)
    body = await read(request, AiSdkBody)
    event = await _event(the, caller, body, idempotency_key)
    _, exchange = await send(the, caller, trail, event)
    return await _streamed(the, exchange, resets=resets)


@router.get(
    "/{chat_id:path}/stream",
    summary="Reconnect to a chat (AI SDK)",
    response_class=Response,
    responses={
        200: {"description": "The reply that runs, from its beginning, as a UI message stream.", **FOREIGN_STREAM},
        204: {"description": "Nothing runs in this chat."},
        **problems(400, 401, 404, 410, 503),
    },
)
async def reconnect(
    chat_id: ChatId,
    the: TheService,
    caller: TheCaller,
    message_id: Annotated[
        str | None, Query(alias="messageId", description="A reply of this chat, whether it still runs or not.")
    ] = None,
    version: Version = None,
) -> Response:
    """The whole message, from the beginning of the attempt that counts: the SDK replaces what it has of it."""
    resets = _takes_resets(version)
    if message_id is not None:
        reply = own_reply(the, caller, message_id)
        if reply.conversation_id != the.ids.named_conversation(caller.account_id, chat_id):
            raise not_found("message")
        return await _streamed(the, await resume(the, caller, reply), resets=resets)
    running = await _running(the, caller, chat_id)
    if running is None:
        return Response(status_code=204)
    return await _streamed(the, await resume(the, caller, own_reply(the, caller, running.id)), resets=resets)


@router.post(
    "/{chat_id:path}/stop",
    status_code=202,
    summary="Stop a chat's reply (AI SDK)",
    response_model=MessageView,
    responses={204: {"description": "Nothing runs in this chat."}, **problems(400, 401, 503)},
)
async def stop(chat_id: ChatId, the: TheService, caller: TheCaller, trail: TheTrail) -> Response:
    """Cancels the reply that runs. Idempotent; the SDK's own `stop()` only leaves the stream."""
    running = await _running(the, caller, chat_id)
    if running is None:
        return Response(status_code=204)
    await the.sender.cancel(caller, own_reply(the, caller, running.id), trail.traceparent)
    return answer(running, 202)


async def _event(the: Service, caller: Caller, body: AiSdkBody, idempotency_key: str | None) -> Submission:
    """What the client wants written: a message, or a regeneration of a reply that is there."""
    if body.trigger == "regenerate-message":
        reply = named_reply(the.ids, caller.account_id, body)
        conversation = await _chat(the, caller, body.id) if reply is None else None
        first = reply_to_newest(conversation, body) if conversation is not None else None
        if first is not None and conversation is not None:
            reply = Parsed(kind="rep", id=first.id, conversation_id=conversation.id)
        if reply is not None:
            return the.sender.regeneration(caller, reply, again(body, idempotency_key))
    # Also where the message that is to be answered again never arrived: "regenerate" is how a page tries again.
    message = asked(the.ids, caller.account_id, body, idempotency_key)
    return the.sender.submission(caller, message.body, message.brought)


async def _running(the: Service, caller: Caller, chat_id: str) -> MessageView | None:
    """The newest reply of the chat that has not ended."""
    conversation = await _chat(the, caller, chat_id)
    if conversation is None:
        return None
    views = await the.conversations.views(conversation, (reply.id for reply in open_replies(conversation)))
    return next((view for view in reversed(views.values()) if view.status not in TERMINAL), None)


async def _chat(the: Service, caller: Caller, chat_id: str) -> Conversation | None:
    """The chat's conversation; None where it has not begun, or is deleted. Raises `Problem` 503."""
    try:
        return await the.conversations.load(caller, the.ids.named_conversation(caller.account_id, chat_id))
    except Problem as problem:
        if problem.status != 404:
            raise
        return None


async def _streamed(the: Service, exchange: Exchange, *, resets: bool) -> Response:
    return await streamed(the, exchange, AiSdkWriter(exchange.facts, resets=resets), HEADERS)


def _takes_resets(version: str | None) -> bool:
    if version is None:
        return False
    found = _VERSION.fullmatch(version)
    if found is None:
        raise bad_request([(VERSION_HEADER, "must be a version of the package ai, as 7 or 7.0.1")])
    return int(found[1]) >= RESETS_SINCE
