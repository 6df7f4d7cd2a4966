"""The rows of each table, member for column (`projections/migrations`). Times are text, see `rows`."""

import msgspec

from schemas.values import VoidAttempt


class Row(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A row; its class tells the table."""

    account_id: str
    conversation_id: str
    log_partition: int
    log_offset: int
    version: int


class MessageRow(Row, frozen=True, kw_only=True):
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


class ReplyRow(Row, frozen=True, kw_only=True):
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
    void_attempts: tuple[VoidAttempt, ...] = ()
    """Written as objects: a tuple of names to ClickHouse."""
    event: str


class ConversationRow(Row, frozen=True, kw_only=True):
    """`conversation_rows`."""

    kind: str
    value: str
    at: str
    event: str


class UsageRow(Row, frozen=True, kw_only=True):
    """`usage_records`."""

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
    output_tokens: int = 0
    counted: bool = True
    cost: str
    currency: str
    price_version: str = ""
    reason: str = ""
    ended_at: str


TABLES: dict[type[Row], str] = {
    MessageRow: "message_rows",
    ReplyRow: "reply_rows",
    ConversationRow: "conversation_rows",
    UsageRow: "usage_records",
}


class Progress(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """`progress`: every row of the topic's records below `next_offset` is durable."""

    topic: str
    log_partition: int
    next_offset: int


PROGRESS = "progress"
