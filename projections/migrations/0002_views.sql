-- What readers get: each deduplicates, so that the number listed is the number billed.

CREATE VIEW IF NOT EXISTS messages AS
SELECT
    m.account_id AS account_id,
    m.conversation_id AS conversation_id,
    m.message_id AS message_id,
    m.role AS role,
    m.parent_id AS parent_id,
    m.regenerated_id AS regenerated_id,
    if(m.role = 'user', 'completed', if(r.reply_id = '', 'open', r.status)) AS status,
    if(m.role = 'user', m.content, r.text) AS text,
    if(r.reply_id = '', m.model, r.model) AS model,
    m.tier AS tier,
    r.output_tokens AS output_tokens,
    m.submitted_at AS submitted_at,
    if(r.reply_id = '', NULL, r.ended_at) AS ended_at,
    m.log_offset AS log_offset,
    m.sub AS sub,
    row_number() OVER (
        PARTITION BY m.account_id, m.conversation_id ORDER BY m.log_offset, m.sub
    ) AS position
FROM (SELECT * FROM message_rows FINAL) AS m
LEFT JOIN (SELECT * FROM reply_rows FINAL) AS r
    ON r.account_id = m.account_id AND r.conversation_id = m.conversation_id AND r.reply_id = m.message_id
COMMENT 'Messages of all conversations, each once. A reply that has not ended yet has status open and no text';

CREATE VIEW IF NOT EXISTS conversations AS
SELECT
    account_id,
    conversation_id,
    min(created_at) AS created_at,
    max(updated_at) AS updated_at,
    if(max(renamed) = 1, argMaxMerge(renamed_to), argMinMerge(first_title)) AS title,
    uniqExactMerge(message_ids) AS message_count
FROM conversation_heads
GROUP BY account_id, conversation_id
HAVING max(begun) = 1 AND max(deleted) = 0
COMMENT 'Conversations that are there, each once';

CREATE VIEW IF NOT EXISTS billing AS
SELECT
    account_id,
    usage_day,
    model,
    tier,
    currency,
    count() AS records,
    countIf(record_kind = 'reply') AS replies,
    sum(uncached_input_tokens) AS uncached_input_tokens,
    sum(cache_read_input_tokens) AS cache_read_input_tokens,
    sum(cache_write_input_tokens) AS cache_write_input_tokens,
    sum(output_tokens) AS output_tokens,
    sum(cost) AS cost
FROM usage_records FINAL
GROUP BY account_id, usage_day, model, tier, currency
COMMENT 'Totals by account, day (UTC), model, tier and currency; corrections stand under an empty model';

CREATE VIEW IF NOT EXISTS generation_stats AS
SELECT
    account_id,
    conversation_id,
    reply_id,
    pool,
    model,
    tier,
    status,
    attempt,
    submitted_at,
    ended_at,
    input_tokens,
    cached_input_tokens,
    output_tokens,
    queued_ms,
    first_token_ms,
    total_ms,
    if(output_tokens > 1, (total_ms - first_token_ms) / (output_tokens - 1), NULL) AS inter_token_ms
FROM reply_rows FINAL
COMMENT 'How long each reply waited and took; times from acceptance, in milliseconds';
