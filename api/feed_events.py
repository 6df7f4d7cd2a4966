"""What a conversation's feed shows of the events in the log. Pure.

Rules:

1. The id of an event is its offset in the log plus one: it grows, with gaps, and 0 is before everything.
2. A message or a reply's end that is in the log more than once is shown where it is first, as everywhere else.
3. What is shown of an event depends on the event alone, so it is the same bytes for every reader, at any time.
"""

from typing import Any

import msgspec
from sse_starlette.event import ServerSentEvent

from api.messages import queued_reply, resets_of, sent_message
from schemas.codec import to_json
from schemas.events import (
    BranchChosen,
    ConversationDeleted,
    ConversationRenamed,
    Event,
    MessageSubmitted,
    RegenerationRequested,
    ReplyStored,
)
from schemas.stream import Reset

Shown = tuple[str, dict[str, Any]]
_EMPTY = {"resets"}
"""Of a reply that has just been asked for there are none, and they go without saying."""


class FeedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it goes out."""

    id: int
    identity: str
    """What can be in the log again and is then not shown; empty where each occurrence counts."""
    frame: bytes
    last: bool
    """Nothing follows."""


def feed_event(offset: int, event: Event) -> FeedEvent | None:
    """The event of the feed that the record at this offset gives, if any."""
    shown = _shown(event)
    if shown is None:
        return None
    kind, data = shown
    frame = ServerSentEvent(to_json(data).decode(), id=str(offset + 1), event=kind, sep="\n").encode()
    return FeedEvent(id=offset + 1, identity=_identity(event), frame=frame, last=isinstance(event, ConversationDeleted))


def _identity(event: Event) -> str:
    match event:
        case MessageSubmitted():
            return event.message_id
        case RegenerationRequested():
            return event.reply_id
        case ReplyStored():
            return f"{event.reply_id} ended"
        case _:
            return ""


def _shown(event: Event) -> Shown | None:  # noqa: PLR0911 - one return a kind of event
    match event:
        case MessageSubmitted():
            return "message", _message(event)
        case RegenerationRequested():
            reply = queued_reply(event).model_dump(exclude_none=True, exclude=_EMPTY)
            return "message", {"message": None, "reply": reply | {"regenerated_id": event.regenerated_id}}
        case ReplyStored():
            return "reply_ended", _end(event)
        case ConversationRenamed():
            return "renamed", {"title": event.title}
        case BranchChosen():
            return "branch", {"message_id": event.message_id}
        case ConversationDeleted():
            return "deleted", {}
        case _:
            return None


def _message(event: MessageSubmitted) -> dict[str, Any]:
    message = sent_message(event).model_dump(exclude_none=True)
    if event.new_conversation or event.parent_id == event.conversation_id:
        message["parent_id"] = None
    return {"message": message, "reply": queued_reply(event).model_dump(exclude_none=True, exclude=_EMPTY)}


def _end(event: ReplyStored) -> dict[str, Any]:
    end: dict[str, Any] = {
        "id": event.reply_id,
        "status": event.status,
        "text": event.text,
        "model": event.model,
        "attempt": event.attempt,
        "offset": event.final_offset,
        "usage": event.usage,
    }
    if event.void_attempts:
        end["resets"] = [_reset(reset) for reset in resets_of(event)]
    return end | ({"error": event.error} if event.error else {})


def _reset(reset: Reset) -> dict[str, Any]:
    return {"attempt": reset.attempt, "reason": reset.reason} | ({"detail": reset.detail} if reset.detail else {})
