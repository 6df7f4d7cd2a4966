"""Messages as clients see them: what the conversation's fold says, and for a reply that runs, what its stream says."""

from collections.abc import Iterable

import msgspec

from api.shapes import ErrorView, MessageView, ResetView, TimingsView, UsageView, timestamp
from api.stores import Live
from schemas.conversation import Conversation, Message, siblings
from schemas.events import MessageSubmitted, RegenerationRequested, ReplyStored
from schemas.stream import Delta, Ended, Reset, Started, parse_frame
from schemas.values import Failure, MessageStatus, Timings, Usage


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A reply as far as its stream has come."""

    status: MessageStatus
    text: str
    model: str | None
    attempt: int
    offset: int
    end: Ended | None
    resets: tuple[Reset, ...] = ()
    submitted_at_ms: int | None = None


def running(live: Live) -> Running | None:
    """The state in a reply's head and frames; None where the buffer has nothing of it."""
    if not live.head and not live.frames:
        return None
    status: MessageStatus = "queued"
    text: list[str] = []
    model = live.head.get("model") or None
    attempt = 1
    offset = 0
    end: Ended | None = None
    resets: list[Reset] = []
    for data in live.frames:
        offset, event = parse_frame(data)
        match event:
            case Started():
                status, model, attempt = "running", event.model, event.attempt
            case Delta():
                text.append(event.text)
            case Reset():
                status, attempt = "queued", event.attempt
                resets.append(event)
                text.clear()
            case Ended():
                status, end = event.status, event
    submitted = int(live.head["submitted_ms"]) if "submitted_ms" in live.head else None
    return Running(
        status=status,
        text="".join(text),
        model=model,
        attempt=attempt,
        offset=offset,
        end=end,
        resets=tuple(resets),
        submitted_at_ms=submitted,
    )


def view(conversation: Conversation, message: Message, live: Running | None) -> MessageView:
    """A message of a folded conversation; `live` counts only while the reply is not stored."""
    reply = message.role == "assistant"
    stored = message.stored
    if stored is not None:
        live = _stored(stored)
    end = live.end if live else None
    asked = message.request
    return MessageView(
        id=message.id,
        conversation_id=conversation.id,
        role=message.role,
        status=live.status if reply and live else message.status,
        text=live.text if reply and live else message.text,
        model=((live.model if live else None) or message.model or None) if reply else None,
        parent_id=message.parent_id,
        siblings=list(siblings(conversation, message.id)),
        position=message.position,
        attempt=(live.attempt if live else 1) if reply else None,
        resets=_resets(live.resets if live else ()) if reply else None,
        usage=_usage(end.usage) if end else None,
        timings=_timings(end.timings) if end else None,
        offset=(live.offset if live else 0) if reply else None,
        error=_error(end.error) if end else None,
        created_at=timestamp(message.submitted_at_ms),
        client_message_id=asked.client_message_id if _brought(message, asked) else None,
    )


def lone_reply(reply_id: str, conversation_id: str, live: Running) -> MessageView:
    """A reply of which only the stream can be read now."""
    return MessageView(
        id=reply_id,
        conversation_id=conversation_id,
        role="assistant",
        status=live.status,
        text=live.text,
        model=live.model,
        parent_id=None,
        siblings=None,
        position=None,
        attempt=live.attempt,
        resets=_resets(live.resets),
        usage=_usage(live.end.usage) if live.end else None,
        timings=_timings(live.end.timings) if live.end else None,
        offset=live.offset,
        error=_error(live.end.error) if live.end else None,
        created_at=timestamp(live.submitted_at_ms) if live.submitted_at_ms is not None else None,
        client_message_id=None,
    )


def sent_message(event: MessageSubmitted) -> MessageView:
    """The user's message in the answer to a send."""
    return MessageView(
        id=event.message_id,
        conversation_id=event.conversation_id,
        role="user",
        status="completed",
        text=event.content,
        model=None,
        parent_id=None if event.parent_id == event.conversation_id else event.parent_id,
        siblings=None,
        position=1 if event.new_conversation else None,
        attempt=None,
        resets=None,
        usage=None,
        timings=None,
        offset=None,
        error=None,
        created_at=timestamp(event.submitted_at_ms),
        client_message_id=event.client_message_id,
    )


def queued_reply(event: MessageSubmitted | RegenerationRequested) -> MessageView:
    """The reply in the answer to a send or a regeneration."""
    sent = isinstance(event, MessageSubmitted)
    return MessageView(
        id=event.reply_id,
        conversation_id=event.conversation_id,
        role="assistant",
        status="queued",
        text="",
        model=event.model,
        parent_id=event.message_id if isinstance(event, MessageSubmitted) else None,
        siblings=None,
        position=2 if isinstance(event, MessageSubmitted) and event.new_conversation else None,
        attempt=1,
        resets=[],
        usage=None,
        timings=None,
        offset=0,
        error=None,
        created_at=timestamp(event.submitted_at_ms),
        client_message_id=None if sent else event.client_message_id,
    )


def _brought(message: Message, asked: MessageSubmitted | RegenerationRequested) -> bool:
    """Whether the client's id is this message's own: a user message's, or a regenerated reply's."""
    return isinstance(asked, RegenerationRequested) or message.role == "user"


def _stored(stored: ReplyStored) -> Running:
    return Running(
        status=stored.status,
        text=stored.text,
        model=stored.model,
        attempt=stored.attempt,
        offset=stored.final_offset,
        end=Ended(status=stored.status, usage=stored.usage, timings=stored.timings, error=stored.error),
        resets=resets_of(stored),
    )


def resets_of(stored: ReplyStored) -> tuple[Reset, ...]:
    """The resets that the readers of a stored reply had: each names the attempt that began."""
    voids = stored.void_attempts
    begun = (*(void.attempt for void in voids[1:]), stored.attempt)
    return tuple(
        Reset(attempt=attempt, reason=void.reason, detail=void.detail)
        for attempt, void in zip(begun, voids, strict=False)
    )


def _resets(resets: Iterable[Reset]) -> list[ResetView]:
    return [ResetView(attempt=reset.attempt, reason=reset.reason, detail=reset.detail or None) for reset in resets]


def _usage(usage: Usage) -> UsageView:
    return UsageView(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cache_write_long_tokens=usage.cache_write_long_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        counted=usage.counted,
    )


def _timings(timings: Timings | None) -> TimingsView | None:
    if timings is None:
        return None
    return TimingsView(queued_ms=timings.queued_ms, first_token_ms=timings.first_token_ms, total_ms=timings.total_ms)


def _error(error: Failure | None) -> ErrorView | None:
    if error is None:
        return None
    return ErrorView(code=error.code, detail=error.detail, retry_after_s=error.retry_after_s)
