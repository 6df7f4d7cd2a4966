"""The questions about bills to ClickHouse. Parameters are bound by the server."""

from schemas.invoice import CORRECTION, LATE, UNCHARGED, USAGE

SUMS = f"""
SELECT formatDateTime(usage_day, '%Y-%m') AS usage_period,
       multiIf(status = '', if(reason IN ('', '{USAGE}', '{LATE}', '{UNCHARGED}'), '{CORRECTION}', reason),
               charged, '', '{UNCHARGED}') AS why,
       model, tier, price_version, currency,
       toInt64(count()), toInt64(sum(uncached_input_tokens)), toInt64(sum(cache_read_input_tokens)),
       toInt64(sum(cache_write_input_tokens)), toInt64(sum(cache_write_long_input_tokens)),
       toInt64(sum(output_tokens)), toString(sum(cost))
  FROM usage_records FINAL WHERE account_id = {{account:String}}
 GROUP BY usage_period, why, model, tier, price_version, currency
"""  # noqa: S608 - constants of ours
"""All that the account's records are, under the headings of `schemas.invoice.Heading`."""

LINES = """
SELECT period, toInt64(toUnixTimestamp64Milli(closed_at)), description, usage_period, model, tier, price_version,
       currency, records, uncached_input_tokens, cache_read_input_tokens, cache_write_input_tokens,
       cache_write_long_input_tokens, output_tokens, toString(amount)
  FROM (
    SELECT *, min(log_offset) OVER (PARTITION BY period) AS first_offset
      FROM invoice_rows FINAL WHERE account_id = {account:String}
  )
 WHERE log_offset = first_offset ORDER BY period, line
"""
"""The lines of closed bills; of one without lines a row of line 0, which has no description."""

RECORDS_OF = """
SELECT record_kind, toString(usage_day), currency, toString(cost), reason
  FROM usage_records FINAL WHERE account_id = {account:String} AND message_id = {reply:String}
"""
