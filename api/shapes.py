"""Answers, as clients see them; the OpenAPI document is made of these. Times are RFC 3339, UTC."""

from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.values import MessageStatus, Role

EXAMPLE_CONVERSATION = "conv_068c9t5qv7ig1hq0k3m8e2b4n5r7s0"
EXAMPLE_REPLY = "rep_068c9t5qv7ig1hq0k3m8e2b4n5r7s01h2j3k4l5m6n7o8p9q0r"


class Shape(BaseModel):
    """Base of the answers."""

    model_config = ConfigDict(frozen=True)


class UsageView(Shape):
    """Tokens of one reply. `input_tokens` includes cached ones."""

    input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    cache_write_tokens: int
    cache_write_long_tokens: int
    reasoning_tokens: int
    counted: bool = Field(description="True: counted by the engine. False: estimated from what was streamed.")


class TimingsView(Shape):
    """Milliseconds since the message was accepted."""

    queued_ms: int
    first_token_ms: int | None
    total_ms: int


class ErrorView(Shape):
    """Why a reply was refused or failed."""

    code: str
    detail: str
    retry_after_s: int | None = Field(description="After so long the same is worth another try.")


class ResetView(Shape):
    """The text of the attempts before this one is void; `reason` is that of the stream's `reset`."""

    attempt: int = Field(description="The attempt that began.")
    reason: str = Field(examples=["worker_lost"])
    detail: str | None = Field(description="A sentence for people, where the engine or a provider said why.")


class MessageView(Shape):
    """A message; a reply is one whose role is assistant.

    `parent_id`, `siblings` and `position` are null where they are not known yet: in the answer to a send, and while
    the conversation's view cannot be read.
    """

    id: str
    conversation_id: str
    role: Role
    status: MessageStatus
    text: str
    model: str | None
    parent_id: str | None
    siblings: list[str] | None
    position: int | None
    attempt: int | None
    resets: list[ResetView] | None = Field(description="Of a reply: each time that it began again, in order.")
    usage: UsageView | None
    timings: TimingsView | None
    offset: int | None = Field(description="Offset of the newest event of a reply's stream.")
    error: ErrorView | None
    created_at: str | None
    client_message_id: str | None


class SentView(Shape):
    """What a send or a regeneration began."""

    conversation_id: str
    message: MessageView | None
    """The user's message; null after a regeneration while the conversation's view cannot be read."""
    reply: MessageView
    events_url: str = Field(examples=[f"/v1/messages/{EXAMPLE_REPLY}/events"])


class MessagePage(Shape):
    """Messages of a conversation, by position."""

    data: list[MessageView]
    next_cursor: str | None


class ConversationView(Shape):
    """A conversation with its current branch: ids of its messages, from the first to the newest."""

    id: str
    title: str
    created_at: str
    updated_at: str
    message_count: int
    branch: list[str]


class ConversationItem(Shape):
    """A conversation in a listing."""

    id: str
    title: str
    created_at: str
    updated_at: str


class TicketView(Shape):
    """`events_url` opens the stream without a key until `expires_at`; an open stream goes on after that."""

    ticket: str
    events_url: str
    expires_at: str


class ConversationPage(Shape):
    """Conversations, the latest changed first."""

    data: list[ConversationItem]
    next_cursor: str | None


class UsageTotal(Shape):
    """Sums over the usage records of one group. `cost` is a decimal number, exact."""

    group: str | None
    currency: str
    replies: int = Field(description="That ended; attempts before the last one, and corrections, are none.")
    uncached_input_tokens: int
    cache_read_input_tokens: int
    cache_write_input_tokens: int
    cache_write_long_input_tokens: int
    output_tokens: int
    reasoning_tokens: int = Field(description="Of the output: thought, not shown.")
    cost: str


class UsageTotals(Shape):
    """The caller's usage, both days included."""

    from_day: str
    to_day: str
    group_by: Literal["day", "model", "conversation"] | None
    data: list[UsageTotal]


class UsageRecordView(Shape):
    """One record; `message_id` is the reply's."""

    usage_day: str
    message_id: str
    record_kind: str
    conversation_id: str
    model: str
    status: str
    uncached_input_tokens: int
    cache_read_input_tokens: int
    cache_write_input_tokens: int
    cache_write_long_input_tokens: int
    output_tokens: int
    reasoning_tokens: int = Field(description="Of the output: thought, not shown.")
    counted: bool
    charged: bool = Field(description="False: costs nothing, because it failed.")
    cost: str
    currency: str
    price_version: str
    ended_at: str


class UsageRecordPage(Shape):
    """Records by day, message and kind."""

    data: list[UsageRecordView]
    next_cursor: str | None


class AmountView(Shape):
    """Money; the amount is a decimal number, exact."""

    currency: str
    amount: str


class InvoiceItem(Shape):
    """A bill in a listing. An open one is as it would be now."""

    period: str = Field(examples=["2026-11"])
    status: Literal["open", "closed"]
    closed_at: str | None
    totals: list[AmountView] = Field(description="By currency.")


class InvoiceLineView(Shape):
    """What has the same month, model, tier, price and currency.

    `description`: `usage`; `late`, what came after the bill of its month was closed; `not charged`, what failed; or why
    there is a correction. Differences to earlier bills may be negative.
    """

    description: str
    usage_period: str
    model: str
    tier: str
    price_version: str
    currency: str
    records: int
    uncached_input_tokens: int
    cache_read_input_tokens: int
    cache_write_input_tokens: int
    cache_write_long_input_tokens: int
    output_tokens: int
    amount: str


class InvoiceView(InvoiceItem):
    """A bill; the sum of its lines is its total."""

    lines: list[InvoiceLineView]


class InvoicesView(Shape):
    """Bills, the newest month first."""

    data: list[InvoiceItem]


class BucketView(Shape):
    """One limit. A bucket refills evenly; `running` and `spend` do not refill. Money is text."""

    name: str = Field(examples=["requests"])
    unit: str = Field(description="`requests`, `tokens`, `replies`, or a currency.", examples=["requests"])
    capacity: int | str
    available: int | str | None = Field(description="Null while it cannot be read.")
    refill_per_s: float
    reserved: int = Field(description="Of what is not available: held for replies that have not ended.")


class LimitsView(Shape):
    """The caller's limits."""

    data: list[BucketView]


class PriceView(Shape):
    """Per million tokens."""

    version: str
    currency: str
    input: str
    cached_input: str
    cache_write: str
    cache_write_long: str
    output: str


class ModelView(Shape):
    """A model that the caller may use."""

    name: str
    context_tokens: int
    output_tokens_max: int
    output_tokens_default: int
    price: PriceView


class ModelsView(Shape):
    """The models; `auto` is the first one."""

    data: list[ModelView]


class ReadyView(Shape):
    """Whether this process can serve, and what is missing."""

    status: Literal["ready", "not_ready"]
    missing: list[str]


def timestamp(time_ms: int) -> str:
    """RFC 3339, UTC, with milliseconds."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"
