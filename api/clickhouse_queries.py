"""The API's questions to ClickHouse. Parameters are bound by the server; no value is ever written into the text."""

from typing import Literal

CONVERSATION = """
SELECT log_offset, event FROM (
  SELECT log_offset, event FROM message_rows FINAL
   WHERE account_id = {account:String} AND conversation_id = {conversation:String} AND event != ''
  UNION ALL
  SELECT log_offset, event FROM reply_rows FINAL
   WHERE account_id = {account:String} AND conversation_id = {conversation:String}
  UNION ALL
  SELECT log_offset, event FROM conversation_rows FINAL
   WHERE account_id = {account:String} AND conversation_id = {conversation:String}
)
ORDER BY log_offset
"""

PROGRESS = """
SELECT log_partition, toInt64(max(next_offset)) FROM progress WHERE topic = 'messages' GROUP BY log_partition
"""


def events_between(ranges: int) -> str:
    """Events of conversations in so many ranges (`p0`, `from0`, `to0`, …) of offsets.

    Without FINAL, since whoever follows drops what it knows: so the index on offsets leaves out old parts.
    """
    within = " OR ".join(
        f"(log_partition = {{p{n}:Int32}} AND log_offset >= {{from{n}:Int64}} AND log_offset < {{to{n}:Int64}})"
        for n in range(ranges)
    )
    rows = " UNION ALL ".join(
        f"""
  SELECT account_id, conversation_id, log_offset, event FROM {table}
   WHERE account_id IN {{accounts:Array(String)}} AND conversation_id IN {{conversations:Array(String)}}
     AND event != '' AND ({within})"""  # noqa: S608 - names and numbers of this module
        for table in ("message_rows", "reply_rows", "conversation_rows")
    )
    return f"SELECT account_id, conversation_id, log_offset, event FROM ({rows}) ORDER BY log_offset"  # noqa: S608


REPLY = """
SELECT event FROM reply_rows FINAL
 WHERE account_id = {account:String} AND conversation_id = {conversation:String} AND reply_id = {reply:String}
"""

FIRST_USE = """
SELECT body_digest FROM message_rows
 WHERE account_id = {account:String} AND client_message_id = {client:String}
 ORDER BY submitted_at, log_offset LIMIT 1
"""

_HEAD = """conversation_id, title, toInt64(toUnixTimestamp64Milli(created_at)) AS created_ms,
       toInt64(toUnixTimestamp64Milli(updated_at)) AS updated_ms"""

CONVERSATIONS = f"""
SELECT * FROM (SELECT {_HEAD} FROM conversations WHERE account_id = {{account:String}})
 WHERE (updated_ms, conversation_id) < ({{at:Int64}}, {{id:String}})
 ORDER BY updated_ms DESC, conversation_id DESC LIMIT {{limit:UInt32}}
"""  # noqa: S608 - both parts are constants of this module

HEADS = f"""
SELECT {_HEAD} FROM conversations
 WHERE account_id = {{account:String}} AND conversation_id IN {{ids:Array(String)}}
"""  # noqa: S608 - both parts are constants of this module

_TOKENS = (
    "uncached_input_tokens",
    "cache_read_input_tokens",
    "cache_write_input_tokens",
    "cache_write_long_input_tokens",
    "output_tokens",
    "reasoning_tokens",
)

_RANGE = """account_id = {account:String}
   AND usage_day >= toDate({from:String}) AND usage_day <= toDate({to:String})"""

_GROUPS: dict[str | None, str] = {
    None: "''",
    "day": "toString(usage_day)",
    "model": "model",
    "conversation": "conversation_id",
}

GroupBy = Literal["day", "model", "conversation"]


def totals(group_by: str | None) -> str:
    """Sums of the deduplicated records, by group and currency."""
    sums = ", ".join(f"toInt64(sum({column}))" for column in _TOKENS)
    return f"""
SELECT {_GROUPS[group_by]} AS group_name, currency, toInt64(countIf(record_kind = 'reply')), {sums}, toString(sum(cost))
  FROM usage_records FINAL WHERE {_RANGE}
 GROUP BY group_name, currency ORDER BY group_name, currency
"""  # noqa: S608 - both parts are constants of this module


TOTAL_COLUMNS = ("group", "currency", "replies", *_TOKENS, "cost")

RECORD_COLUMNS = (
    "usage_day",
    "message_id",
    "record_kind",
    "conversation_id",
    "model",
    "status",
    *_TOKENS,
    "counted",
    "charged",
    "cost",
    "currency",
    "price_version",
    "ended_at_ms",
)

RECORDS = f"""
SELECT toString(usage_day), message_id, record_kind, conversation_id, model, status, {", ".join(_TOKENS)},
       counted, charged, toString(cost), currency, price_version, toInt64(toUnixTimestamp64Milli(ended_at))
  FROM usage_records FINAL WHERE {_RANGE}
   AND (toString(usage_day), message_id, record_kind) > ({{day:String}}, {{message:String}}, {{kind:String}})
 ORDER BY toString(usage_day), message_id, record_kind LIMIT {{limit:UInt32}}
"""  # noqa: S608 - both parts are constants of this module
