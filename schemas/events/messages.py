"""What people did in a conversation: the topics `messages`, kept forever, and `cancellations`."""

import msgspec

from schemas.events.base import Event
from schemas.values import EndStatus, Failure, Priority, PromptMessage, Tier, TimeMs, Timings, Usage, VoidAttempt


class MessageSubmitted(Event, frozen=True):
    """A user message was accepted, together with the id of the reply that will answer it.

    Version 2 added `history` and `metadata`; version 3 `priority`.
    """

    TOPIC = "messages"
    VERSION = 3

    conversation_id: str
    message_id: str
    reply_id: str
    account_id: str
    tier: Tier
    content: str
    body_digest: str
    """SHA-256 (hex) of the canonical request body: the same client id with another digest is a conflict."""
    submitted_at_ms: TimeMs
    new_conversation: bool
    """The request named no conversation: this message begins one."""
    client_message_id: str | None = None
    parent_id: str | None = None
    """The message it answers; absent: the newest of the current branch."""
    model: str = "auto"
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    system: str | None = None
    """Absent: the one that holds on its branch; empty: none from here on."""
    history: tuple[PromptMessage, ...] = ()
    """What was said before it, as a client that keeps the conversation itself tells it; what stands before it on its
    branch is not taken then."""
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    """What the client wants to find on it again."""
    priority: Priority | None = None
    """Which queue it waits in, as it was let in; None: the one of its tier."""

    def identity(self) -> str:
        return self.message_id


class RegenerationRequested(Event, frozen=True):
    """A new sibling of a reply was asked for; the user's message stays as it is. Version 2 added `priority`."""

    TOPIC = "messages"
    VERSION = 2

    conversation_id: str
    reply_id: str
    """The new reply."""
    regenerated_id: str
    """The reply that it is a sibling of."""
    account_id: str
    tier: Tier
    body_digest: str
    submitted_at_ms: TimeMs
    client_message_id: str | None = None
    model: str = "auto"
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    priority: Priority | None = None
    """As of `MessageSubmitted`."""

    def identity(self) -> str:
        return self.reply_id


class ReplyStored(Event, frozen=True):
    """A reply reached its end: the text that readers saw, as one piece. Written by settlement.

    Version 2 added `void_attempts`, and `retry_after_s` to errors; version 3 `cache_write_long_tokens` and
    `reasoning_tokens` to the usage; version 4 `detail` to `void_attempts`.
    """

    TOPIC = "messages"
    VERSION = 4

    conversation_id: str
    reply_id: str
    message_id: str
    """The user message that it answers."""
    account_id: str
    tier: Tier
    pool: str
    model: str
    status: EndStatus
    text: str
    attempt: int
    final_offset: int
    """Offset of the stream's `ended` event."""
    usage: Usage
    submitted_at_ms: TimeMs
    ended_at_ms: TimeMs
    timings: Timings | None = None
    error: Failure | None = None
    void_attempts: tuple[VoidAttempt, ...] = ()
    """Those before the last one, in order."""

    def identity(self) -> str:
        return f"{self.reply_id}/stored"


class ConversationRenamed(Event, frozen=True):
    """The conversation got a title of its owner's choice."""

    TOPIC = "messages"

    conversation_id: str
    account_id: str
    title: str
    renamed_at_ms: TimeMs
    request_id: str

    def identity(self) -> str:
        return f"{self.conversation_id}/renamed/{self.request_id}"


class BranchChosen(Event, frozen=True):
    """The current branch is the one that ends in (or passes through) this message."""

    TOPIC = "messages"

    conversation_id: str
    account_id: str
    message_id: str
    chosen_at_ms: TimeMs
    request_id: str

    def identity(self) -> str:
        return f"{self.conversation_id}/branch/{self.request_id}"


class ConversationDeleted(Event, frozen=True):
    """The conversation is gone for every reader; its content is erased from the views."""

    TOPIC = "messages"

    conversation_id: str
    account_id: str
    deleted_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.conversation_id}/deleted"


class ConversationSummarised(Event, frozen=True):
    """Messages up to one were summarised, for a context policy that uses summaries."""

    TOPIC = "messages"

    conversation_id: str
    account_id: str
    until_message_id: str
    summary: str
    summarised_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.conversation_id}/summary/{self.until_message_id}"


class CancellationRequested(Event, frozen=True):
    """Somebody who may do so asked that a reply stop. May come before its message."""

    TOPIC = "cancellations"

    conversation_id: str
    reply_id: str
    account_id: str
    requested_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.reply_id}/cancel"
