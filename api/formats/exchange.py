"""A request and its reply, for the formats of other clients: send, follow, read again.

The same events, streams, limits and bills as behind the native API; a reply's id is its id in every format.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
from starlette.responses import Response

from api.accounts import Caller
from api.context import Service, Trail
from api.following import Begun
from api.formats.format import Rendered, Writer, current_attempt, written
from api.messages import Running, running
from api.problems import DO_NOT_RETRY, Problem, not_found
from api.replay import stored_events
from api.sending import Request, Sent
from api.stores import Live
from api.submitting import reply_of, submit_followed
from schemas.conversation import Conversation, Message
from schemas.events import MessageSubmitted
from schemas.ids import Parsed
from schemas.models import Model, find
from schemas.stream import frame

T = TypeVar("T")

FRAMES_AT_ONCE = 500
"""Read in one go by the event loop: a few milliseconds."""
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
    sent, reader = await submit_followed(the, caller, trail, event)
    parent_id = event.parent_id if isinstance(event, MessageSubmitted) else None
    previous_id = parent_id if parent_id and parent_id.startswith("rep_") else None
    known = facts_of(sent.event, the.models, previous_id)
    begun = Begun(reader)
    if sent.repeated:
        reply = reply_of(event)
        begun = await the.streams.whole(caller, reply)
        # Where it cannot be read now, this request's own time stands for the first's.
        with contextlib.suppress(Problem):
            known = await facts(the, caller, reply)
    return sent, Exchange(facts=known, begun=begun)


async def facts(the: Service, caller: Caller, reply: Parsed) -> Facts:
    """The facts of a reply of the caller's. Raises `Problem` 404 or 503."""
    return _facts_in(the, *await held(the, caller, reply))


def _facts_in(the: Service, conversation: Conversation, reply: Message) -> Facts:
    return facts_of(reply.request, the.models, previous_reply(conversation, reply))


async def held(the: Service, caller: Caller, reply: Parsed) -> tuple[Conversation, Message]:
    """A reply in its conversation. Raises `Problem` 404 or 503.

    While ClickHouse is away the conversation is what Redis has of it.
    """
    try:
        conversation = await the.conversations.load(caller, reply.conversation_id)
    except Problem as problem:
        if problem.status == 404:
            raise not_found("message") from problem
        lately = await the.conversations.lately(reply.conversation_id) if problem.status == 503 else None
        if lately is None or reply.id not in lately.messages:
            raise
        conversation = lately
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
    conversation, message = await held(the, caller, reply)
    known = _facts_in(the, conversation, message)
    begun = await the.streams.whole(caller, reply)
    if begun.cut and message.stored is not None:
        frames = tuple(frame(offset, event) for offset, event in stored_events(message.stored))
        begun.reader.given(b"".join(frames), message.stored.final_offset)
        begun = Begun(begun.reader, frames, message.stored.final_offset, stored=True)
    return Exchange(facts=known, begun=begun)


async def streamed(
    the: Service, exchange: Exchange, writer: Writer, headers: Mapping[str, str] | None = None
) -> Response:
    """The stream in a format, from its beginning, as far as it counts."""
    return followed(the, exchange, writer, await aside(exchange, lambda: _beginning(exchange, writer)), headers)


def _beginning(exchange: Exchange, writer: Writer) -> bytes:
    frames, _ = current_attempt(exchange.begun.frames)
    return writer.begin() + written(writer, frames)


async def aside(exchange: Exchange, work: Callable[[], T]) -> T:
    """What is made of all frames of a reply; of many, on a thread, so that nobody else's stream waits for it."""
    return await asyncio.to_thread(work) if len(exchange.begun.frames) > FRAMES_AT_ONCE else work()


def followed(
    the: Service, exchange: Exchange, writer: Writer, first: bytes, headers: Mapping[str, str] | None = None
) -> Response:
    """The stream in a format whose writer has taken all the frames of its beginning."""
    named = {**headers_of(exchange.facts), **(headers or {})}
    return the.streams.stream(Rendered(exchange.begun.reader, writer), first, named)


def headers_of(facts: Facts) -> dict[str, str]:
    """The headers that name a reply in every answer about it."""
    return {CONVERSATION_HEADER: facts.conversation_id, REPLY_HEADER: facts.reply_id}


async def finished(the: Service, exchange: Exchange) -> Running:
    """The reply, once it has ended. Raises `Problem` 503 when that cannot be waited for; the reply goes on."""
    reply = running(Live({}, await ended_frames(the, exchange)))
    if reply is None:
        raise AssertionError("a reply that has ended has frames")
    return reply


async def ended_frames(the: Service, exchange: Exchange) -> tuple[bytes, ...]:
    """All frames of the reply, once it has ended. Raises `Problem` 503 as `finished` does."""
    frames = await the.streams.gathered(exchange.begun)
    if frames is None:
        detail = f"The reply goes on and can be read later; its id is {exchange.facts.reply_id}."
        headers = headers_of(exchange.facts) | DO_NOT_RETRY
        raise Problem(503, "reply_unfinished", "Service unavailable", detail, headers=headers)
    return frames
