-- How far the views are, and finding what is new in them without reading what is old: for followers of a conversation.

CREATE TABLE IF NOT EXISTS progress
(
    topic LowCardinality(String),
    log_partition Int32,
    next_offset UInt64 COMMENT 'Every row of the records below it was written (and is there, unless it was erased since)'
)
ENGINE = ReplacingMergeTree(next_offset)
ORDER BY (topic, log_partition)
COMMENT 'Raw, may hold old rows, the highest next_offset of a partition counts. Truncate it together with the tables';

ALTER TABLE message_rows ADD INDEX IF NOT EXISTS log_offsets log_offset TYPE minmax GRANULARITY 1;
ALTER TABLE message_rows MATERIALIZE INDEX log_offsets;

ALTER TABLE reply_rows ADD INDEX IF NOT EXISTS log_offsets log_offset TYPE minmax GRANULARITY 1;
ALTER TABLE reply_rows MATERIALIZE INDEX log_offsets;

ALTER TABLE conversation_rows ADD INDEX IF NOT EXISTS log_offsets log_offset TYPE minmax GRANULARITY 1;
ALTER TABLE conversation_rows MATERIALIZE INDEX log_offsets;
