-- What an engine or a provider said of an attempt that came to nothing, and of a reply that failed. It may repeat some of
-- the prompt, so it stands where a deletion erases it: beside the text, and not among the numbers.

ALTER TABLE reply_rows ADD COLUMN IF NOT EXISTS
    void_details Array(String)
    COMMENT 'What was said of each of void_attempts, empty text: nothing; none of them where nothing was said of any';

CREATE OR REPLACE VIEW messages
DEFINER = CURRENT_USER SQL SECURITY DEFINER
AS SELECT
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
    r.void_attempts.reason AS void_reasons,
    r.void_details AS void_details,
    r.error_code AS error_code,
    r.error_detail AS error_detail
FROM (SELECT * FROM message_rows FINAL) AS m
LEFT JOIN (SELECT * FROM reply_rows FINAL) AS r
    ON r.account_id = m.account_id AND r.conversation_id = m.conversation_id AND r.reply_id = m.message_id
SETTINGS optimize_move_to_prewhere_if_final = 0, do_not_merge_across_partitions_select_final = 0, join_use_nulls = 0
COMMENT 'Messages of all conversations, each once. A reply that has not ended yet has status open, no text and 0 attempts';
