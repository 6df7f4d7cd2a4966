"""A request and its reply, for the formats of other clients: send, follow, read again.

The same events, streams, limits and bills as behind the native API; a reply's id is its id in every format.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from fastapi import Depends, Header
from starlette.responses import Response

from api.accounts import Caller
from api.context import Service, Trail
from api.following import Begun
from api.formats.format import Rendered, Writer, current_attempt, written
from api.messages import Running, running
from api.problems import DO_NOT_RETRY, Problem, bad_request, not_found
from api.sending import Request, Sent
from api.stores import Live
from schemas.conversation import Conversation, Message
from schemas.events import MessageSubmitted
from schemas.ids import Parsed
from schemas.limits import CLIENT_MESSAGE_ID_CHARS_MAX
from schemas.models import Model, find

CONVERSATION_HEADER = "x-conversation-id"
REPLY_HEADER = "x-reply-id"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a format says of a reply that is not in its events."""

    reply_id: str
    conversation_id: str
    model: str
    """The one that was asked for, by its public name."""
    created_at_ms: int
    request: Request
    previous_id: str | None = None
    """The reply that the message follows, where the request named it or the conversation tells."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """A reply with its stream as it begins."""

    facts: Facts
    begun: Begun


def _idempotency_key(
    key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            description="Makes the call idempotent, per account: repeated, it gives the same reply.",
        ),
    ] = None,
) -> str | None:
    if key is not None and not 1 <= len(key) <= CLIENT_MESSAGE_ID_CHARS_MAX:
        raise bad_request([("Idempotency-Key", f"must have 1 to {CLIENT_MESSAGE_ID_CHARS_MAX} characters")])
    return key


TheIdempotencyKey = Annotated[str | None, Depends(_idempotency_key)]


def facts_of(request: Request, models: tuple[Model, ...], previous_id: str | None = None) -> Facts:
    """The facts of a request."""
    model = find(models, request.model)
    return Facts(
        reply_id=request.reply_id,
        conversation_id=request.conversation_id,
        model=model.name if model else request.model,
        created_at_ms=request.submitted_at_ms,
        request=request,
        previous_id=previous_id,
    )


async def send(the: Service, caller: Caller, trail: Trail, event: Request) -> tuple[Sent, Exchange]:
    """Send, and follow the reply from its beginning. Raises `Problem` as `Sender.submit` does, and 503."""
    reply = Parsed(kind="rep", id=event.reply_id, conversation_id=event.conversation_id)
    reader = the.streams.reader(caller, reply, 0)
    reader.follow()  # while the message is on its way, so that it costs no time
    try:
        sent = await the.sender.submit(caller, event, trail.traceparent)
    except BaseException:
        reader.close()
        raise
    begun = Begun(reader)
    if sent.repeated:
        reader.close()
        begun = await the.streams.whole(caller, reply)
    parent_id = event.parent_id if isinstance(event, MessageSubmitted) else None
    previous_id = parent_id if parent_id and parent_id.startswith("rep_") else None
    return sent, Exchange(facts=facts_of(sent.event, the.models, previous_id), begun=begun)


async def facts(the: Service, caller: Caller, reply: Parsed) -> Facts:
    """The facts of a reply of the caller's. Raises `Problem` 404 or 503."""
    conversation, message = await held(the, caller, reply)
    return facts_of(message.request, the.models, previous_reply(conversation, message))


async def held(the: Service, caller: Caller, reply: Parsed) -> tuple[Conversation, Message]:
    """A reply in its conversation. Raises `Problem` 404 or 503."""
    conversation = await the.conversations.load(caller, reply.conversation_id)
    message = conversation.messages.get(reply.id)
    if message is None:
        raise not_found("message")
    return conversation, message


def previous_reply(conversation: Conversation, reply: Message) -> str | None:
    """The reply before the message that this one answers."""
    asked = conversation.messages.get(reply.parent_id or "")
    before = conversation.messages.get(asked.parent_id or "") if asked else None
    return before.id if before is not None and before.role == "assistant" else None


async def resume(the: Service, caller: Caller, reply: Parsed) -> Exchange:
    """The facts and the whole stream of a reply. Raises `Problem` 404, 410 or 503."""
    known = await facts(the, caller, reply)
    return Exchange(facts=known, begun=await the.streams.whole(caller, reply))


def streamed(the: Service, exchange: Exchange, writer: Writer, headers: Mapping[str, str] | None = None) -> Response:
    """The stream in a format, from its beginning, as far as it counts."""
    frames, _ = current_attempt(exchange.begun.frames)
    first = writer.begin() + written(writer, frames)
    named = {
        CONVERSATION_HEADER: exchange.facts.conversation_id,
        REPLY_HEADER: exchange.facts.reply_id,
        **(headers or {}),
    }
    return the.streams.stream(Rendered(exchange.begun.reader, writer), first, named)


async def finished(the: Service, exchange: Exchange) -> Running:
    """The reply, once it has ended. Raises `Problem` 503 when that cannot be waited for; the reply goes on."""
    frames = await the.streams.gathered(exchange.begun)
    reply = running(Live({}, frames)) if frames is not None else None
    if reply is None:
        detail = f"The reply goes on and can be read later; its id is {exchange.facts.reply_id}."
        raise Problem(503, "reply_unfinished", "Service unavailable", detail, headers=DO_NOT_RETRY)
    return reply
