-- Reads the topic `usage` into a ClickHouse of your own, with its Kafka engine; each record counts once.
-- Put your broker and the topic's full name (the namespace, a dot, `usage`) in the first statement.

CREATE TABLE usage_stream (raw String)
ENGINE = Kafka
SETTINGS kafka_broker_list = '127.0.0.1:9092',
         kafka_topic_list = 'turnlog.usage',
         kafka_group_name = 'my-billing',
         kafka_format = 'RawBLOB',
         kafka_num_consumers = 1,
         kafka_handle_error_mode = 'stream';

-- The engine delivers at least once, so the identity of a record is the sort key, and the highest revision replaces.
CREATE TABLE usage
(
    account_id String,
    usage_day Date,
    reply_id String,
    record_kind LowCardinality(String),
    revision UInt64,
    model LowCardinality(String),
    tier LowCardinality(String),
    uncached_input_tokens Int64,
    cache_read_input_tokens Int64,
    cache_write_input_tokens Int64,
    cache_write_long_input_tokens Int64,
    output_tokens Int64,
    cost Decimal(38, 12),
    currency LowCardinality(String),
    ce_id String,
    log_partition UInt64,
    log_offset UInt64,
    version UInt64
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(usage_day)
ORDER BY (account_id, usage_day, reply_id, record_kind);

-- Of equal revisions the first in the log wins: 44 bits of the version are for the offset.
CREATE MATERIALIZED VIEW usage_from_stream TO usage AS
SELECT
    JSONExtractString(raw, 'account_id') AS account_id,
    toDate(JSONExtractString(raw, 'usage_day')) AS usage_day,
    JSONExtractString(raw, 'reply_id') AS reply_id,
    JSONExtractString(raw, 'record_kind') AS record_kind,
    JSONExtractUInt(raw, 'revision') AS revision,
    JSONExtractString(raw, 'model') AS model,
    JSONExtractString(raw, 'tier') AS tier,
    JSONExtractInt(raw, 'uncached_input_tokens') AS uncached_input_tokens,
    JSONExtractInt(raw, 'cache_read_input_tokens') AS cache_read_input_tokens,
    JSONExtractInt(raw, 'cache_write_input_tokens') AS cache_write_input_tokens,
    JSONExtractInt(raw, 'cache_write_long_input_tokens') AS cache_write_long_input_tokens,
    JSONExtractInt(raw, 'output_tokens') AS output_tokens,
    toDecimal128(JSONExtractString(raw, 'cost'), 12) AS cost,
    JSONExtractString(raw, 'currency') AS currency,
    _headers.value[indexOf(_headers.name, 'ce_id')] AS ce_id,
    _partition AS log_partition,
    _offset AS log_offset,
    bitShiftLeft(revision, 44) + (bitShiftLeft(toUInt64(1), 44) - 1 - _offset) AS version
FROM usage_stream
WHERE startsWith(_headers.value[indexOf(_headers.name, 'ce_type')], 'turnlog.UsageRecorded.')
   OR startsWith(_headers.value[indexOf(_headers.name, 'ce_type')], 'turnlog.UsageAdjusted.');

-- What people ask. FINAL deduplicates; without it a sum counts a record as often as it was delivered.
CREATE VIEW usage_by_month AS
SELECT account_id, formatDateTime(usage_day, '%Y-%m') AS month, currency, count() AS records, sum(cost) AS amount
FROM usage FINAL
GROUP BY account_id, month, currency;
