"""What turns holds of a conversation: its fold, its open replies, and how much of its text is still there."""

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from schemas.conversation import Conversation, Message
from schemas.events import MessageSubmitted
from schemas.values import Tier

Phase = Literal["waiting", "admitted", "declined"]

MESSAGE_CHARS = 1_000
"""What a held message costs beside its text."""


class Open(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reply whose `ReplyStored` has not come yet."""

    reply_id: str
    message_id: str
    conversation_id: str
    account_id: str
    tier: Tier
    pool: str
    model: str
    submitted_at_ms: int
    phase: Phase
    due_ms: int
    """When the sweeper looks after it."""
    sweeps: int = 0
    cancelled: bool = False
    """Its cancellation was passed on."""
    traceparent: str | None = None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as turns holds it. `chars` follows from the rest."""

    conversation: Conversation
    open: Mapping[str, Open] = {}
    """By reply id; also of a deleted conversation, until they end."""
    active_offset: int = -1
    """Of the newest event in `messages` that changed it."""
    stubs_until: int = 0
    """Messages up to this position are held without their text."""
    known: frozenset[str] = frozenset()
    """Replies of a deleted conversation, so that a repeated send stays ignored."""
    chars: int = 0


def weighed(held: Held) -> Held:
    """The same with its size."""
    return replace(held, chars=MESSAGE_CHARS + sum(_chars(message) for message in held.conversation.messages.values()))


def _chars(message: Message) -> int:
    system = message.request.system if isinstance(message.request, MessageSubmitted) else None
    return MESSAGE_CHARS + _text_chars(message) + (len(system or "") if message.role == "user" else 0)


def _text_chars(message: Message) -> int:
    """Of what can be forgotten."""
    request = message.request
    brought = request.history if message.role == "user" and isinstance(request, MessageSubmitted) else ()
    return len(message.text) + sum(len(said.content) for said in brought)


def text_chars(held: Held) -> int:
    """Its size without what each message costs beside its text."""
    return held.chars - MESSAGE_CHARS * (1 + len(held.conversation.messages))


def next_due_ms(held: Held) -> int | None:
    """When the sweeper has to look after the conversation; None: it has no open reply."""
    return min((open_.due_ms for open_ in held.open.values()), default=None)


def without_old_text(held: Held, chars_max: int) -> Held:
    """The oldest texts are forgotten until half of the limit is left, if they exceed it.

    Never those from the newest turn on, nor from the oldest open reply's on. A forgotten message keeps its identity,
    place, parents and system prompt.
    """
    chars = text_chars(held)
    if chars <= chars_max:
        return held
    messages = held.conversation.messages
    keep_from = min(
        (messages[id_].position - 1 for id_ in held.open if id_ in messages),
        default=held.conversation.next_position,
    )
    users = [message.position for message in messages.values() if message.role == "user"]
    keep_from = min(keep_from, max(users, default=keep_from))
    until = held.stubs_until
    for message in messages.values():
        if message.position <= held.stubs_until:
            continue
        if message.position >= keep_from or chars <= chars_max // 2:
            break
        chars -= _text_chars(message)
        until = message.position
    if until == held.stubs_until:
        return held
    return weighed(replace(held, conversation=_stubbed(held.conversation, until), stubs_until=until))


def _stubbed(conversation: Conversation, until: int) -> Conversation:
    stubs = {
        id_: _stub(message) if message.position <= until else message for id_, message in conversation.messages.items()
    }
    return replace(conversation, messages=stubs)


def _stub(message: Message) -> Message:
    request = message.request
    return replace(
        message,
        text="",
        request=replace(request, content="", history=()) if isinstance(request, MessageSubmitted) else request,
        stored=replace(message.stored, text="") if message.stored is not None else None,
    )
