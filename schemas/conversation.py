"""The fold of a conversation: its messages, branches, positions, title and end. Used by turns and by the API.

Rules, applied to the events of one conversation in the order of their partition:

1. A message is known by its id. One that is known already changes nothing, so a repeated send or a replay is
   harmless; the first occurrence counts.
2. Positions are dense from 1 in the order of the log: a user message takes one, its reply the next, a regenerated
   reply one more.
3. `parent_id` absent means the head: the newest message of the current branch. The conversation's own id as parent
   means the root, so that the first message can be edited too.
4. The head moves to the reply of every new message or regeneration, and to the newest leaf below a chosen message.
5. The first `ReplyStored` of a reply is final.
6. A deleted conversation has no messages and takes nothing more.
7. An event of a conversation that was never begun (and does not begin it) is dropped.
"""

from collections.abc import Iterable, Mapping

import msgspec

from schemas.events import (
    BranchChosen,
    ConversationDeleted,
    ConversationRenamed,
    ConversationSummarised,
    Event,
    MessageSubmitted,
    RegenerationRequested,
    ReplyStored,
)
from schemas.values import MessageStatus, Role

DERIVED_TITLE_CHARS = 60


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A user message or a reply, as far as `messages` tells (a running reply's text is in its stream)."""

    id: str
    role: Role
    parent_id: str | None
    position: int
    status: MessageStatus
    text: str
    model: str
    """The model that was asked for, until the reply is stored; then the one that answered. Empty for users'."""
    submitted_at_ms: int
    request: MessageSubmitted | RegenerationRequested
    """The event that brought it."""
    stored: ReplyStored | None = None


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation so far. `messages` is ordered by position and must not be changed."""

    id: str
    account_id: str
    messages: Mapping[str, Message] = {}
    head_id: str | None = None
    next_position: int = 1
    renamed_to: str | None = None
    created_at_ms: int
    updated_at_ms: int
    deleted: bool = False
    summaries: tuple[ConversationSummarised, ...] = ()

    @property
    def title(self) -> str:
        """What its owner called it, else the beginning of its first message."""
        if self.renamed_to is not None:
            return self.renamed_to
        first = next(iter(self.messages.values()), None)
        return derived_title(first.text) if first else ""


def derived_title(text: str) -> str:
    """The title of a conversation that nobody named: its first line, shortened."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= DERIVED_TITLE_CHARS else line[: DERIVED_TITLE_CHARS - 1].rstrip() + "…"


def apply(conversation: Conversation | None, event: Event) -> Conversation | None:
    """The conversation after the event; the same object when the event changes nothing."""
    return fold((event,), conversation)


def fold(events: Iterable[Event], conversation: Conversation | None = None) -> Conversation | None:
    """The conversation after all the events, oldest first; copies the messages once only."""
    messages: dict[str, Message] | None = None
    for event in events:
        if messages is None and conversation is not None:
            messages = dict(conversation.messages)
        elif messages is None:
            messages = {}
        before = conversation
        conversation = _step(conversation, messages, event)
        if conversation is not before and conversation is not None and conversation.messages is not messages:
            messages = dict(conversation.messages)
    return conversation


def branch(conversation: Conversation, message_id: str | None = None) -> tuple[Message, ...]:
    """The messages from the root to this one (absent: to the head), as far as they are held."""
    path: list[Message] = []
    at = conversation.messages.get(message_id or conversation.head_id or "")
    while at is not None and len(path) <= len(conversation.messages):
        path.append(at)
        at = conversation.messages.get(at.parent_id) if at.parent_id else None
    return tuple(reversed(path))


def siblings(conversation: Conversation, message_id: str) -> tuple[str, ...]:
    """Ids of the messages with the same parent and role, itself included, by position."""
    this = conversation.messages.get(message_id)
    if this is None:
        return ()
    return tuple(
        other.id
        for other in conversation.messages.values()
        if other.parent_id == this.parent_id and other.role == this.role
    )


def newest_leaf(conversation: Conversation, message_id: str) -> str:
    """The newest message of the branches that pass through this one."""
    below = {message_id}
    leaf = message_id
    for message in conversation.messages.values():
        if message.parent_id in below:
            below.add(message.id)
            leaf = message.id
    return leaf


def open_replies(conversation: Conversation) -> tuple[Message, ...]:
    """The replies that have no stored end yet."""
    return tuple(m for m in conversation.messages.values() if m.role == "assistant" and m.stored is None)


def _step(  # noqa: PLR0911 - one return a rule
    conversation: Conversation | None, messages: dict[str, Message], event: Event
) -> Conversation | None:
    if conversation is None:
        if isinstance(event, MessageSubmitted) and event.new_conversation:
            begun = Conversation(
                id=event.conversation_id,
                account_id=event.account_id,
                created_at_ms=event.submitted_at_ms,
                updated_at_ms=event.submitted_at_ms,
            )
            return _submitted(begun, messages, event)
        return None
    if conversation.deleted:
        return conversation
    match event:
        case MessageSubmitted():
            return _submitted(conversation, messages, event)
        case RegenerationRequested():
            return _regenerated(conversation, messages, event)
        case ReplyStored():
            return _stored(conversation, messages, event)
        case _:
            return _changed(conversation, messages, event)


def _changed(conversation: Conversation, messages: dict[str, Message], event: Event) -> Conversation:
    replace = msgspec.structs.replace
    match event:
        case ConversationRenamed():
            at = max(conversation.updated_at_ms, event.renamed_at_ms)
            return replace(conversation, renamed_to=event.title, updated_at_ms=at)
        case BranchChosen() if event.message_id in messages:
            at = max(conversation.updated_at_ms, event.chosen_at_ms)
            return replace(conversation, head_id=newest_leaf(conversation, event.message_id), updated_at_ms=at)
        case ConversationDeleted():
            return replace(
                conversation,
                deleted=True,
                messages={},
                head_id=None,
                renamed_to="",
                summaries=(),
                updated_at_ms=event.deleted_at_ms,
            )
        case ConversationSummarised():
            return replace(conversation, summaries=(*conversation.summaries, event))
        case _:
            return conversation


def _submitted(conversation: Conversation, messages: dict[str, Message], event: MessageSubmitted) -> Conversation:
    if event.message_id in messages:
        return conversation
    parent_id = event.parent_id if event.parent_id is not None else conversation.head_id
    position = conversation.next_position
    messages[event.message_id] = Message(
        id=event.message_id,
        role="user",
        parent_id=None if parent_id == conversation.id else parent_id,
        position=position,
        status="completed",
        text=event.content,
        model="",
        submitted_at_ms=event.submitted_at_ms,
        request=event,
    )
    messages[event.reply_id] = _reply(event.reply_id, event.message_id, position + 1, event)
    return _grown(conversation, messages, event.reply_id, position + 2, event.submitted_at_ms)


def _regenerated(
    conversation: Conversation, messages: dict[str, Message], event: RegenerationRequested
) -> Conversation:
    if event.reply_id in messages:
        return conversation
    regenerated = messages.get(event.regenerated_id)
    parent_id = regenerated.parent_id if regenerated else None
    messages[event.reply_id] = _reply(event.reply_id, parent_id, conversation.next_position, event)
    return _grown(conversation, messages, event.reply_id, conversation.next_position + 1, event.submitted_at_ms)


def _reply(
    reply_id: str, parent_id: str | None, position: int, request: MessageSubmitted | RegenerationRequested
) -> Message:
    return Message(
        id=reply_id,
        role="assistant",
        parent_id=parent_id,
        position=position,
        status="queued",
        text="",
        model=request.model,
        submitted_at_ms=request.submitted_at_ms,
        request=request,
    )


def _grown(
    conversation: Conversation, messages: dict[str, Message], head_id: str, next_position: int, at_ms: int
) -> Conversation:
    return msgspec.structs.replace(
        conversation,
        messages=messages,
        head_id=head_id,
        next_position=next_position,
        updated_at_ms=max(conversation.updated_at_ms, at_ms),
    )


def _stored(conversation: Conversation, messages: dict[str, Message], event: ReplyStored) -> Conversation:
    reply = messages.get(event.reply_id)
    if reply is None or reply.stored is not None:
        return conversation
    messages[event.reply_id] = msgspec.structs.replace(
        reply, status=event.status, text=event.text, model=event.model, stored=event
    )
    return msgspec.structs.replace(
        conversation, messages=messages, updated_at_ms=max(conversation.updated_at_ms, event.ended_at_ms)
    )
