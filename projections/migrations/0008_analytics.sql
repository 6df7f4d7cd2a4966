-- What analysts read. Each view deduplicates, whatever settings its reader has, and reads its tables with the rights of
-- whoever made it, so that a reader needs no access to them. Nothing is summed before it is deduplicated.

-- Replies as numbers, in the order of time: what dashboards ask for. Without content, so deletion leaves them alone.
CREATE TABLE IF NOT EXISTS generation_rows
(
    account_id String,
    conversation_id String,
    message_id String COMMENT 'The user message that it answers',
    reply_id String,
    tier LowCardinality(String),
    pool LowCardinality(String),
    model LowCardinality(String) COMMENT 'The model that answered',
    status LowCardinality(String) COMMENT 'completed, length, cancelled, refused or failed',
    attempt UInt32 COMMENT 'Number of the last attempt',
    final_offset UInt64 COMMENT 'Offset of the stream''s last event',
    input_tokens Int64 COMMENT 'Cached ones included',
    cached_input_tokens Int64,
    cache_write_tokens Int64,
    cache_write_long_tokens Int64,
    output_tokens Int64,
    reasoning_tokens Int64 COMMENT 'Of the output: thought, not shown',
    counted UInt8 COMMENT '1: counted by the engine, 0: estimated from the chunks in the log',
    queued_ms Nullable(Int64) COMMENT 'From acceptance until the engine had the prompt',
    first_token_ms Nullable(Int64) COMMENT 'From acceptance until the first token',
    total_ms Nullable(Int64) COMMENT 'From acceptance until the end',
    error_code LowCardinality(String) COMMENT 'Empty: none',
    void_attempts Array(Tuple(attempt UInt32, reason LowCardinality(String), worker String))
        COMMENT 'Attempts before the last one, in order; worker: the instance that had begun it, empty: none had',
    submitted_at DateTime64(3, 'UTC'),
    ended_at DateTime64(3, 'UTC') COMMENT 'Of the one event that ended it, so the same in every copy of the row',
    log_partition Int32 COMMENT 'Partition of topic messages',
    log_offset Int64,
    version UInt64 COMMENT '2^63 - 1 - log_offset: the first occurrence wins'
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(ended_at)
ORDER BY (toStartOfHour(ended_at), account_id, reply_id)
COMMENT 'Raw, may hold duplicates: replies as numbers. Read the view generation_stats instead';

INSERT INTO generation_rows
SELECT
    account_id, conversation_id, message_id, reply_id, tier, pool, model, status, attempt, final_offset,
    input_tokens, cached_input_tokens, cache_write_tokens, 0, output_tokens, 0, counted,
    queued_ms, first_token_ms, total_ms, error_code, void_attempts, submitted_at, ended_at,
    log_partition, log_offset, version
FROM reply_rows FINAL
SETTINGS max_partitions_per_insert_block = 0;

CREATE OR REPLACE VIEW billing
DEFINER = CURRENT_USER SQL SECURITY DEFINER
AS SELECT
    u.account_id AS account_id,
    u.usage_day AS usage_day,
    u.model AS model,
    u.tier AS tier,
    u.price_version AS price_version,
    u.currency AS currency,
    count() AS records,
    countIf(u.record_kind = 'reply') AS replies,
    countIf(u.charged = 1) AS charged_records,
    countIf(u.charged = 0) AS uncharged_records,
    countIf(u.counted = 0) AS estimated_records,
    sum(u.uncached_input_tokens) AS uncached_input_tokens,
    sum(u.cache_read_input_tokens) AS cache_read_input_tokens,
    sum(u.cache_write_input_tokens) AS cache_write_input_tokens,
    sum(u.cache_write_long_input_tokens) AS cache_write_long_input_tokens,
    sum(u.output_tokens) AS output_tokens,
    sum(u.reasoning_tokens) AS reasoning_tokens,
    sumIf(
        u.uncached_input_tokens + u.cache_read_input_tokens + u.cache_write_input_tokens
        + u.cache_write_long_input_tokens, u.charged = 0
    ) AS uncharged_input_tokens,
    sumIf(u.output_tokens, u.charged = 0) AS uncharged_output_tokens,
    sum(ifNull(u.gpu_ms, 0)) AS gpu_ms,
    sum(u.cost) AS cost
FROM usage_records AS u FINAL
GROUP BY account_id, usage_day, model, tier, price_version, currency
SETTINGS optimize_move_to_prewhere_if_final = 0, do_not_merge_across_partitions_select_final = 0
COMMENT 'Totals by account, day (UTC), model, tier, price version and currency, exact at every read; corrections stand under an empty model';

CREATE OR REPLACE VIEW usage_daily
DEFINER = CURRENT_USER SQL SECURITY DEFINER
AS SELECT
    u.account_id AS account_id,
    u.usage_day AS usage_day,
    u.pool AS pool,
    u.model AS model,
    u.tier AS tier,
    u.currency AS currency,
    count() AS records,
    countIf(u.record_kind = 'reply') AS replies,
    countIf(u.record_kind = 'reply' AND u.status = 'cancelled') AS cancelled_replies,
    countIf(u.record_kind = 'reply' AND u.status = 'refused') AS refused_replies,
    countIf(u.record_kind = 'reply' AND u.status = 'failed') AS failed_replies,
    countIf(startsWith(u.record_kind, 'attempt-')) AS void_attempts,
    sum(
        u.uncached_input_tokens + u.cache_read_input_tokens + u.cache_write_input_tokens
        + u.cache_write_long_input_tokens
    ) AS input_tokens,
    sum(u.cache_read_input_tokens) AS cached_input_tokens,
    sum(u.output_tokens) AS output_tokens,
    sum(u.reasoning_tokens) AS reasoning_tokens,
    sum(ifNull(u.queued_ms, 0)) AS queued_ms,
    sum(ifNull(u.gpu_ms, 0)) AS gpu_ms,
    sum(u.cost) AS cost
FROM usage_records AS u FINAL
GROUP BY account_id, usage_day, pool, model, tier, currency
SETTINGS optimize_move_to_prewhere_if_final = 0, do_not_merge_across_partitions_select_final = 0
COMMENT 'What was used and what became of it, by account, day (UTC), pool, model, tier and currency';

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
    r.void_attempts.reason AS void_reasons
FROM (SELECT * FROM message_rows FINAL) AS m
LEFT JOIN (SELECT * FROM reply_rows FINAL) AS r
    ON r.account_id = m.account_id AND r.conversation_id = m.conversation_id AND r.reply_id = m.message_id
SETTINGS optimize_move_to_prewhere_if_final = 0, do_not_merge_across_partitions_select_final = 0, join_use_nulls = 0
COMMENT 'Messages of all conversations, each once. A reply that has not ended yet has status open, no text and 0 attempts';

CREATE OR REPLACE VIEW conversations
DEFINER = CURRENT_USER SQL SECURITY DEFINER
AS SELECT
    account_id,
    conversation_id,
    toDateTime64(min(created_at), 3, 'UTC') AS created_at,
    toDateTime64(max(updated_at), 3, 'UTC') AS updated_at,
    if(max(renamed) = 1, argMaxMerge(renamed_to), argMinMerge(first_title)) AS title,
    uniqExactMerge(message_ids) AS message_count
FROM conversation_heads
GROUP BY account_id, conversation_id
HAVING max(begun) = 1 AND max(deleted) = 0
COMMENT 'Conversations that are there, each once';

CREATE OR REPLACE VIEW invoice_lines
DEFINER = CURRENT_USER SQL SECURITY DEFINER
AS SELECT * EXCEPT (log_partition, log_offset, version, first_offset) FROM
(
    SELECT *, min(log_offset) OVER (PARTITION BY account_id, period) AS first_offset FROM invoice_rows FINAL
)
WHERE log_offset = first_offset
SETTINGS optimize_move_to_prewhere_if_final = 0, do_not_merge_across_partitions_select_final = 0
COMMENT 'The lines of closed bills, each once; the sum of the amounts of an account and period is its total';

CREATE OR REPLACE VIEW generation_stats
DEFINER = CURRENT_USER SQL SECURITY DEFINER
AS SELECT
    account_id,
    conversation_id,
    message_id,
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
    cache_write_tokens,
    cache_write_long_tokens,
    output_tokens,
    reasoning_tokens,
    counted,
    final_offset,
    queued_ms,
    first_token_ms,
    total_ms,
    if(output_tokens > 1, (total_ms - first_token_ms) / (output_tokens - 1), NULL) AS inter_token_ms,
    if(output_tokens > 1 AND total_ms > first_token_ms,
       1000 * (output_tokens - 1) / (total_ms - first_token_ms), NULL) AS tokens_per_s,
    if(input_tokens > 0, cached_input_tokens / input_tokens, NULL) AS cached_share,
    error_code,
    void_attempts.attempt AS void_numbers,
    void_attempts.reason AS void_reasons,
    void_attempts.worker AS void_workers
FROM generation_rows FINAL
SETTINGS optimize_move_to_prewhere_if_final = 0, do_not_merge_across_partitions_select_final = 0
COMMENT 'How long each ended reply waited and took (from acceptance, in ms), what it read and wrote, and its attempts; deleted conversations included';

CREATE OR REPLACE VIEW failures
DEFINER = CURRENT_USER SQL SECURITY DEFINER
AS SELECT
    account_id,
    conversation_id,
    reply_id,
    ended_at,
    pool,
    model,
    tier,
    f.1 AS kind,
    f.2 AS attempt,
    f.3 AS reason,
    f.4 AS worker,
    status
FROM
(
    SELECT
        account_id, conversation_id, reply_id, ended_at, pool, model, tier, status,
        arrayConcat(
            arrayMap(v -> ('attempt', v.attempt, toString(v.reason), v.worker), void_attempts),
            if(status IN ('failed', 'refused'), [('reply', attempt, toString(error_code), '')], [])
        ) AS found
    FROM generation_rows FINAL
)
ARRAY JOIN found AS f
SETTINGS optimize_move_to_prewhere_if_final = 0, do_not_merge_across_partitions_select_final = 0
COMMENT 'What went wrong: replies that failed or were refused, and attempts that came to nothing';

CREATE OR REPLACE VIEW cancellations
DEFINER = CURRENT_USER SQL SECURITY DEFINER
AS SELECT
    account_id,
    conversation_id,
    reply_id,
    ended_at,
    pool,
    model,
    tier,
    output_tokens,
    final_offset,
    total_ms,
    multiIf(
        output_tokens = 0, '0', output_tokens < 10, '1-9', output_tokens < 100, '10-99', output_tokens < 1000, '100-999',
        '1000-'
    ) AS after_tokens
FROM generation_rows FINAL
WHERE status = 'cancelled'
SETTINGS optimize_move_to_prewhere_if_final = 0, do_not_merge_across_partitions_select_final = 0
COMMENT 'Replies that their readers stopped, and where in them';

CREATE OR REPLACE VIEW regenerations
DEFINER = CURRENT_USER SQL SECURITY DEFINER
AS SELECT
    g.account_id AS account_id,
    g.conversation_id AS conversation_id,
    g.message_id AS message_id,
    count() AS replies,
    argMin(g.model, g.submitted_at) AS first_model,
    argMax(g.model, g.submitted_at) AS last_model,
    argMin(g.status, g.submitted_at) AS first_status,
    argMax(g.status, g.submitted_at) AS last_status,
    min(g.submitted_at) AS first_at,
    max(g.submitted_at) AS last_at
FROM generation_rows AS g FINAL
GROUP BY account_id, conversation_id, message_id
HAVING count() > 1
SETTINGS optimize_move_to_prewhere_if_final = 0, do_not_merge_across_partitions_select_final = 0
COMMENT 'User messages that were answered more than once, because their reader asked for it';

CREATE OR REPLACE VIEW account_activity
DEFINER = CURRENT_USER SQL SECURITY DEFINER
AS SELECT
    g.account_id AS account_id,
    min(g.ended_at) AS first_at,
    max(g.ended_at) AS last_at,
    uniqExact(toDate(g.ended_at)) AS active_days,
    uniqExact(g.conversation_id) AS conversations,
    uniqExact(g.message_id) AS user_messages,
    count() AS replies,
    count() - uniqExact(g.message_id) AS regenerations,
    countIf(g.status = 'cancelled') AS cancellations,
    countIf(g.status IN ('failed', 'refused')) AS failures,
    sum(g.output_tokens) AS output_tokens
FROM generation_rows AS g FINAL
GROUP BY account_id
SETTINGS optimize_move_to_prewhere_if_final = 0, do_not_merge_across_partitions_select_final = 0
COMMENT 'What each account has done so far; deleted conversations included';

CREATE OR REPLACE VIEW retention
DEFINER = CURRENT_USER SQL SECURITY DEFINER
AS SELECT
    cohort_week,
    toUInt32(intDiv(week - cohort_week, 7)) AS weeks_after,
    count() AS accounts,
    max(count()) OVER (PARTITION BY cohort_week) AS cohort_accounts,
    count() / max(count()) OVER (PARTITION BY cohort_week) AS share
FROM
(
    SELECT account_id, min(toMonday(ended_at)) AS cohort_week, groupUniqArray(toMonday(ended_at)) AS weeks
    FROM generation_rows FINAL
    GROUP BY account_id
)
ARRAY JOIN weeks AS week
GROUP BY cohort_week, week
SETTINGS optimize_move_to_prewhere_if_final = 0, do_not_merge_across_partitions_select_final = 0
COMMENT 'Of the accounts whose first reply ended in a week (from its Monday, UTC): how many had one so many weeks later';

CREATE OR REPLACE VIEW funnel
DEFINER = CURRENT_USER SQL SECURITY DEFINER
AS SELECT
    cohort_week,
    step,
    ['sent a message', 'got an answer', 'sent another', 'began another conversation', 'came back another day'][step] AS name,
    countIf(arrayAll(x -> x, arraySlice(reached, 1, step))) AS accounts,
    accounts / count() AS share
FROM
(
    SELECT
        min(toMonday(g.ended_at)) AS cohort_week,
        [
            true,
            countIf(g.status IN ('completed', 'length')) > 0,
            uniqExact(g.message_id) > 1,
            uniqExact(g.conversation_id) > 1,
            uniqExact(toDate(g.ended_at)) > 1
        ] AS reached
    FROM generation_rows AS g FINAL
    GROUP BY g.account_id
)
ARRAY JOIN [1, 2, 3, 4, 5] AS step
GROUP BY cohort_week, step
SETTINGS optimize_move_to_prewhere_if_final = 0, do_not_merge_across_partitions_select_final = 0
COMMENT 'How far the accounts came whose first reply ended in a week (from its Monday, UTC): five steps, each of those who took the ones before';

-- The records in the order of days, for all accounts at once. Copies and old revisions of a record have its usage_day, so
-- one day's part of the projection holds all that there is of that day's records.
ALTER TABLE usage_records
    MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild', lightweight_mutation_projection_mode = 'rebuild';

ALTER TABLE usage_records ADD PROJECTION IF NOT EXISTS by_day
(
    SELECT
        account_id, usage_day, message_id, record_kind, version, status, tier, pool, model, currency,
        uncached_input_tokens, cache_read_input_tokens, cache_write_input_tokens, cache_write_long_input_tokens,
        output_tokens, reasoning_tokens, queued_ms, gpu_ms, ended_at, cost
    ORDER BY usage_day, account_id, message_id, record_kind
);

ALTER TABLE usage_records MATERIALIZE PROJECTION by_day;

CREATE OR REPLACE VIEW usage_hourly
DEFINER = CURRENT_USER SQL SECURITY DEFINER
AS SELECT
    account_id,
    usage_day,
    toStartOfHour(r.ended_at) AS hour,
    r.pool AS pool,
    r.model AS model,
    r.tier AS tier,
    r.currency AS currency,
    count() AS records,
    countIf(record_kind = 'reply') AS replies,
    countIf(record_kind = 'reply' AND r.status = 'cancelled') AS cancelled_replies,
    countIf(record_kind = 'reply' AND r.status = 'refused') AS refused_replies,
    countIf(record_kind = 'reply' AND r.status = 'failed') AS failed_replies,
    countIf(startsWith(record_kind, 'attempt-')) AS void_attempts,
    sum(r.input_tokens) AS input_tokens,
    sum(r.cached_input_tokens) AS cached_input_tokens,
    sum(r.output_tokens) AS output_tokens,
    sum(r.reasoning_tokens) AS reasoning_tokens,
    sum(r.queued_ms) AS queued_ms,
    sum(r.gpu_ms) AS gpu_ms,
    sum(r.cost) AS cost
FROM
(
    SELECT
        account_id, usage_day, message_id, record_kind,
        argMax(
            CAST(
                (
                    ended_at, pool, model, tier, currency, status,
                    uncached_input_tokens + cache_read_input_tokens + cache_write_input_tokens
                    + cache_write_long_input_tokens,
                    cache_read_input_tokens, output_tokens, reasoning_tokens, ifNull(queued_ms, 0), ifNull(gpu_ms, 0), cost
                ),
                'Tuple(ended_at DateTime64(3, \'UTC\'), pool LowCardinality(String), model LowCardinality(String), tier LowCardinality(String), currency LowCardinality(String), status LowCardinality(String), input_tokens Int64, cached_input_tokens Int64, output_tokens Int64, reasoning_tokens Int64, queued_ms Int64, gpu_ms Int64, cost Decimal(38, 12))'
            ),
            version
        ) AS r
    FROM usage_records
    GROUP BY account_id, usage_day, message_id, record_kind
)
GROUP BY account_id, usage_day, hour, pool, model, tier, currency
SETTINGS final = 0
COMMENT 'As usage_daily, by hour of the end (UTC). Give usage_day too: the rows lie in the order of days';
