-- What usage records say since their second version, and the bills that are closed.

ALTER TABLE usage_records
    ADD COLUMN IF NOT EXISTS cache_write_long_input_tokens Int64 DEFAULT 0
        COMMENT 'Written to a cache that is kept for an hour or more' AFTER cache_write_input_tokens,
    ADD COLUMN IF NOT EXISTS reasoning_tokens Int64 DEFAULT 0
        COMMENT 'Of the output: thought, not shown' AFTER output_tokens,
    ADD COLUMN IF NOT EXISTS charged UInt8 DEFAULT 1
        COMMENT '0: costs nothing because it was our failure' AFTER counted,
    ADD COLUMN IF NOT EXISTS queued_ms Nullable(Int64)
        COMMENT 'From acceptance until the engine had the prompt; NULL: it never had it' AFTER price_version,
    ADD COLUMN IF NOT EXISTS gpu_ms Nullable(Int64)
        COMMENT 'From then until the end; NULL: not known' AFTER queued_ms;

CREATE TABLE IF NOT EXISTS invoice_rows
(
    account_id String,
    period String COMMENT 'YYYY-MM (UTC)',
    line UInt32 COMMENT 'Place on the bill, from 1',
    description LowCardinality(String) COMMENT 'usage, late, or what the correction was',
    usage_period String COMMENT 'YYYY-MM in which it was used',
    model LowCardinality(String),
    tier LowCardinality(String),
    price_version LowCardinality(String),
    currency LowCardinality(String),
    records UInt64,
    uncached_input_tokens Int64,
    cache_read_input_tokens Int64,
    cache_write_input_tokens Int64,
    cache_write_long_input_tokens Int64,
    output_tokens Int64,
    amount Decimal(38, 12) COMMENT 'In currency, not rounded; the sum of the lines is the total',
    closed_at DateTime64(3, 'UTC'),
    log_partition Int32 COMMENT 'Partition of topic usage',
    log_offset Int64 COMMENT 'Records of the account behind it are late for the period',
    version UInt64 COMMENT '2^63 - 1 - log_offset: the first occurrence wins'
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (account_id, period, line)
COMMENT 'Raw, may hold duplicates: the lines of closed bills. Read the view invoice_lines instead';

CREATE OR REPLACE VIEW invoice_lines AS
SELECT * EXCEPT (log_partition, log_offset, version) FROM invoice_rows FINAL
COMMENT 'The lines of closed bills, each once; the sum of the amounts of an account and period is its total';
