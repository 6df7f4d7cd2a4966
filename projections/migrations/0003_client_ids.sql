-- Finding a message by its client's id (is this a repeated send?) without reading all of an account's rows.

ALTER TABLE message_rows ADD INDEX IF NOT EXISTS client_message_ids client_message_id TYPE bloom_filter(0.01) GRANULARITY 1;
