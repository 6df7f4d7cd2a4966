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
  FROM invoice_lines WHERE account_id = {account:String} ORDER BY period, line
"""

RECORDS_OF = """
SELECT record_kind, toString(usage_day), currency, toString(cost), reason
  FROM usage_records FINAL WHERE account_id = {account:String} AND message_id = {reply:String}
"""
