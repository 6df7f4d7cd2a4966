-- Tables of the views. Every row has an identity in its sort key that depends on the event alone, so that rows which
-- come again replace themselves. Read with FINAL, or through the views of 0002.
-- version: for messages the first occurrence in the log wins (2^63 - 1 - offset); for usage the highest revision.

CREATE TABLE IF NOT EXISTS message_rows
(
    account_id String COMMENT 'Owner of the conversation',
    conversation_id String,
    message_id String COMMENT 'msg_... of a user, rep_... of a reply',
    role LowCardinality(String) COMMENT 'user or assistant',
    parent_id String COMMENT 'As the request gave it; empty: the newest message of the branch at that time',
    regenerated_id String COMMENT 'The reply that this one is a new sibling of; empty otherwise',
    reply_id String COMMENT 'The reply that answers it (of a user message), or itself',
    content String COMMENT 'Text of a user message; replies have theirs in reply_rows' CODEC(ZSTD(1)),
    title String COMMENT 'Title derived from the message, on the one that began its conversation',
    model LowCardinality(String) COMMENT 'The model that was asked for',
    system String COMMENT 'System prompt of the request; empty: none' CODEC(ZSTD(1)),
    sampling String COMMENT 'JSON: max_output_tokens, temperature, top_p, seed, stop, where given',
    tier LowCardinality(String),
    client_message_id String COMMENT 'Id that the client gave; empty: none',
    body_digest String COMMENT 'SHA-256 of the canonical request body',
    new_conversation UInt8 COMMENT '1: the request began the conversation',
    submitted_at DateTime64(3, 'UTC'),
    log_partition Int32 COMMENT 'Partition of topic messages',
    log_offset Int64 COMMENT 'Offset in it: the order of messages',
    sub UInt8 COMMENT 'Order within one record: 0 the user message, 1 the reply',
    event String COMMENT 'The event as JSON {type, data}; on the first row of its record' CODEC(ZSTD(1)),
    version UInt64 COMMENT '2^63 - 1 - log_offset: the first occurrence wins'
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (account_id, conversation_id, message_id)
COMMENT 'Raw, may hold duplicates: user messages and the places of replies. Read the view messages instead';

CREATE TABLE IF NOT EXISTS reply_rows
(
    account_id String,
    conversation_id String,
    reply_id String,
    message_id String COMMENT 'The user message that it answers',
    tier LowCardinality(String),
    pool LowCardinality(String),
    model LowCardinality(String) COMMENT 'The model that answered',
    status LowCardinality(String) COMMENT 'completed, length, cancelled, refused or failed',
    text String CODEC(ZSTD(1)),
    attempt UInt32,
    final_offset UInt64 COMMENT 'Offset of the stream''s last event',
    input_tokens Int64 COMMENT 'Cached ones included',
    cached_input_tokens Int64,
    cache_write_tokens Int64,
    output_tokens Int64,
    counted UInt8 COMMENT '1: counted by the engine, 0: estimated from the chunks in the log',
    queued_ms Nullable(Int64) COMMENT 'From acceptance until the engine had the prompt',
    first_token_ms Nullable(Int64) COMMENT 'From acceptance until the first token',
    total_ms Nullable(Int64),
    error_code LowCardinality(String) COMMENT 'Empty: none',
    error_detail String,
    submitted_at DateTime64(3, 'UTC'),
    ended_at DateTime64(3, 'UTC'),
    log_partition Int32 COMMENT 'Partition of topic messages',
    log_offset Int64,
    event String COMMENT 'The event as JSON {type, data}' CODEC(ZSTD(1)),
    version UInt64 COMMENT '2^63 - 1 - log_offset: the first occurrence wins'
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (account_id, conversation_id, reply_id)
COMMENT 'Raw, may hold duplicates: replies as they ended. Read the views messages and generation_stats instead';

CREATE TABLE IF NOT EXISTS conversation_rows
(
    account_id String,
    conversation_id String,
    kind LowCardinality(String) COMMENT 'renamed, branch, deleted or summarised',
    value String COMMENT 'The title, the chosen message, or the summary' CODEC(ZSTD(1)),
    at DateTime64(3, 'UTC'),
    log_partition Int32 COMMENT 'Partition of topic messages',
    log_offset Int64,
    event String COMMENT 'The event as JSON {type, data}' CODEC(ZSTD(1)),
    version UInt64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (account_id, conversation_id, kind, log_offset)
COMMENT 'Raw, may hold duplicates: what was done to a conversation as a whole';

CREATE TABLE IF NOT EXISTS conversation_heads
(
    account_id String,
    conversation_id String,
    created_at SimpleAggregateFunction(min, DateTime64(3, 'UTC')),
    updated_at SimpleAggregateFunction(max, DateTime64(3, 'UTC')),
    begun SimpleAggregateFunction(max, UInt8) COMMENT '1: the message that began it is here',
    deleted SimpleAggregateFunction(max, UInt8),
    first_title AggregateFunction(argMin, String, Int64) COMMENT 'From the message that began it',
    renamed_to AggregateFunction(argMax, String, Int64) COMMENT 'The last title that its owner chose',
    renamed SimpleAggregateFunction(max, UInt8),
    message_ids AggregateFunction(uniqExact, String) COMMENT 'For the number of messages'
)
ENGINE = AggregatingMergeTree
ORDER BY (account_id, conversation_id)
COMMENT 'Roll-up, only of functions that duplicates do not change. Read the view conversations instead';

CREATE MATERIALIZED VIEW IF NOT EXISTS conversation_heads_from_messages TO conversation_heads AS
SELECT
    account_id,
    conversation_id,
    min(submitted_at) AS created_at,
    max(submitted_at) AS updated_at,
    max(new_conversation) AS begun,
    toUInt8(0) AS deleted,
    argMinStateIf(title, log_offset, new_conversation = 1) AS first_title,
    argMaxStateIf('', toInt64(0), 0) AS renamed_to,
    toUInt8(0) AS renamed,
    uniqExactState(message_id) AS message_ids
FROM message_rows
GROUP BY account_id, conversation_id;

CREATE MATERIALIZED VIEW IF NOT EXISTS conversation_heads_from_replies TO conversation_heads AS
SELECT
    account_id,
    conversation_id,
    min(submitted_at) AS created_at,
    max(ended_at) AS updated_at,
    toUInt8(0) AS begun,
    toUInt8(0) AS deleted,
    argMinStateIf('', toInt64(0), 0) AS first_title,
    argMaxStateIf('', toInt64(0), 0) AS renamed_to,
    toUInt8(0) AS renamed,
    uniqExactStateIf('', 0) AS message_ids
FROM reply_rows
GROUP BY account_id, conversation_id;

CREATE MATERIALIZED VIEW IF NOT EXISTS conversation_heads_from_changes TO conversation_heads AS
SELECT
    account_id,
    conversation_id,
    min(at) AS created_at,
    max(at) AS updated_at,
    toUInt8(0) AS begun,
    max(toUInt8(kind = 'deleted')) AS deleted,
    argMinStateIf('', toInt64(0), 0) AS first_title,
    argMaxStateIf(value, log_offset, kind = 'renamed') AS renamed_to,
    max(toUInt8(kind = 'renamed')) AS renamed,
    uniqExactStateIf('', 0) AS message_ids
FROM conversation_rows
WHERE kind != 'summarised'
GROUP BY account_id, conversation_id;

CREATE TABLE IF NOT EXISTS usage_records
(
    account_id String,
    usage_day Date COMMENT 'UTC, computed once, by the producer',
    message_id String COMMENT 'The reply',
    record_kind LowCardinality(String) COMMENT 'reply: its charge; others are corrections of their own',
    revision UInt64 COMMENT 'The highest revision of a record counts',
    conversation_id String COMMENT 'Empty on corrections, as are status to attempts',
    status LowCardinality(String),
    tier LowCardinality(String),
    pool LowCardinality(String),
    model LowCardinality(String),
    attempts UInt32,
    uncached_input_tokens Int64,
    cache_read_input_tokens Int64,
    cache_write_input_tokens Int64,
    output_tokens Int64,
    counted UInt8 COMMENT '1: counted by the engine, 0: estimated',
    cost Decimal(38, 12) COMMENT 'In currency; negative on refunds',
    currency LowCardinality(String),
    price_version LowCardinality(String),
    reason String COMMENT 'Why there is a correction',
    ended_at DateTime64(3, 'UTC') COMMENT 'End of the reply, or time of the correction',
    log_partition Int32 COMMENT 'Partition of topic usage, for reconciliation',
    log_offset Int64,
    version UInt64 COMMENT 'revision'
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(usage_day)
ORDER BY (account_id, usage_day, message_id, record_kind)
COMMENT 'Raw, may hold duplicates and old revisions: what each reply used. Read the view billing instead';
