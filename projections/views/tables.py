"""The rows of each table, member for column (`projections/migrations`). Times are text, see `rows`."""

import msgspec

from schemas.topics import MESSAGES, USAGE


class Void(msgspec.Struct, frozen=True):
    """An attempt that came to nothing, without what was said of it.

    Written as an object: a tuple of names to ClickHouse.
    """

    attempt: int
    reason: str
    worker: str


class Row(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A row; its class tells the table."""

    account_id: str
    log_partition: int
    log_offset: int
    version: int


class ContentRow(Row, frozen=True, kw_only=True):
    """A row that is erased with its conversation."""

    conversation_id: str


class MessageRow(ContentRow, frozen=True, kw_only=True):
    """`message_rows`."""

    message_id: str
    role: str
    parent_id: str = ""
    regenerated_id: str = ""
    reply_id: str
    content: str = ""
    title: str = ""
    model: str
    system: str = ""
    sampling: str
    tier: str
    client_message_id: str
    body_digest: str
    new_conversation: int = 0
    submitted_at: str
    sub: int
    event: str = ""


class ReplyRow(ContentRow, frozen=True, kw_only=True):
    """`reply_rows`."""

    reply_id: str
    message_id: str
    tier: str
    pool: str
    model: str
    status: str
    text: str
    attempt: int
    final_offset: int
    input_tokens: int
    cached_input_tokens: int
    cache_write_tokens: int
    output_tokens: int
    counted: bool
    queued_ms: int | None
    first_token_ms: int | None
    total_ms: int | None
    error_code: str
    error_detail: str
    submitted_at: str
    ended_at: str
    void_attempts: tuple[Void, ...] = ()
    void_details: tuple[str, ...] = ()
    """What was said of each of them."""
    event: str


class GenerationRow(Row, frozen=True, kw_only=True):
    """`generation_rows`: a reply as numbers, which stay when its conversation is deleted."""

    conversation_id: str
    message_id: str
    reply_id: str
    tier: str
    pool: str
    model: str
    status: str
    attempt: int
    final_offset: int
    input_tokens: int
    cached_input_tokens: int
    cache_write_tokens: int
    cache_write_long_tokens: int
    output_tokens: int
    reasoning_tokens: int
    counted: bool
    queued_ms: int | None
    first_token_ms: int | None
    total_ms: int | None
    error_code: str
    void_attempts: tuple[Void, ...] = ()
    submitted_at: str
    ended_at: str


class ConversationRow(ContentRow, frozen=True, kw_only=True):
    """`conversation_rows`."""

    kind: str
    value: str
    at: str
    event: str


class UsageRow(Row, frozen=True, kw_only=True):
    """`usage_records`."""

    conversation_id: str = ""
    usage_day: str
    message_id: str
    record_kind: str
    revision: int
    status: str = ""
    tier: str = ""
    pool: str = ""
    model: str = ""
    attempts: int = 0
    uncached_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    cache_write_long_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    counted: bool = True
    charged: bool = True
    cost: str
    currency: str
    price_version: str = ""
    queued_ms: int | None = None
    gpu_ms: int | None = None
    reason: str = ""
    ended_at: str


class InvoiceRow(Row, frozen=True, kw_only=True):
    """`invoice_rows`."""

    period: str
    line: int
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
    closed_at: str


TABLES: dict[type[Row], str] = {
    MessageRow: "message_rows",
    ReplyRow: "reply_rows",
    GenerationRow: "generation_rows",
    ConversationRow: "conversation_rows",
    UsageRow: "usage_records",
    InvoiceRow: "invoice_rows",
}

TOPIC_OF: dict[str, str] = {
    table: USAGE.name if row in (UsageRow, InvoiceRow) else MESSAGES.name for row, table in TABLES.items()
}
"""The topic that a table's rows come from."""


class Progress(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """`progress`: every row of the topic's records below `next_offset` is durable."""

    topic: str
    log_partition: int
    next_offset: int


PROGRESS = "progress"
