-- The attempts at a reply that came to nothing: which, why, and on which worker. Replies stored before have none.

ALTER TABLE reply_rows ADD COLUMN IF NOT EXISTS
    void_attempts Array(Tuple(attempt UInt32, reason LowCardinality(String), worker String))
    COMMENT 'Attempts before the last one, in order; worker: the instance that had begun it, empty: none had';

CREATE OR REPLACE VIEW messages AS
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
    ) AS position,
    r.attempt AS attempts,
    r.void_attempts.reason AS void_reasons
FROM (SELECT * FROM message_rows FINAL) AS m
LEFT JOIN (SELECT * FROM reply_rows FINAL) AS r
    ON r.account_id = m.account_id AND r.conversation_id = m.conversation_id AND r.reply_id = m.message_id
COMMENT 'Messages of all conversations, each once. A reply that has not ended yet has status open, no text and 0 attempts';

CREATE OR REPLACE VIEW generation_stats AS
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
    if(output_tokens > 1, (total_ms - first_token_ms) / (output_tokens - 1), NULL) AS inter_token_ms,
    error_code,
    void_attempts.attempt AS void_numbers,
    void_attempts.reason AS void_reasons,
    void_attempts.worker AS void_workers
FROM reply_rows FINAL
COMMENT 'How long each reply waited and took (from acceptance, in ms), and its attempts: number of the last, and why and where those before it came to nothing';
