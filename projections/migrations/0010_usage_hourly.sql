-- The newest of each record by the order that the projection has already: a third of the work of a maximum over groups.

CREATE OR REPLACE VIEW usage_hourly
DEFINER = CURRENT_USER SQL SECURITY DEFINER
AS SELECT
    u.account_id AS account_id,
    u.usage_day AS usage_day,
    toStartOfHour(u.ended_at) AS hour,
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
FROM
(
    SELECT
        account_id, usage_day, message_id, record_kind, status, tier, pool, model, currency,
        uncached_input_tokens, cache_read_input_tokens, cache_write_input_tokens, cache_write_long_input_tokens,
        output_tokens, reasoning_tokens, queued_ms, gpu_ms, ended_at, cost
    FROM usage_records
    ORDER BY account_id, usage_day, message_id, record_kind, version DESC
    LIMIT 1 BY account_id, usage_day, message_id, record_kind
) AS u
GROUP BY account_id, usage_day, hour, pool, model, tier, currency
SETTINGS final = 0
COMMENT 'As usage_daily, by hour of the end (UTC). Give usage_day too: the rows lie in the order of days';
