"""Do messages and bills tell the same of each reply? `reply_rows` against the `usage_records` of kind `reply`.

By day of the reply's end first (digests), then the replies of days that differ. Replies that ended in the last minute
are left out: the two records of a reply are written one after the other. So are deleted conversations, whose replies
are erased and whose bills stay, and records with a revision: a correction is not what the reply said.
"""

from collections.abc import Iterator

from projections.clickhouse.client import Database
from projections.clickhouse.compare import Change, Digest, Part, parts
from projections.reconcile.findings import Finding

SETTLES_S = 60
_SAID = ("status", "tier", "pool", "model", "input", "cached", "written", "output", "counted")
_DELETED = """
(account_id, conversation_id) NOT IN (SELECT account_id, conversation_id FROM conversation_rows WHERE kind = 'deleted')
"""
_SETTLED = f"ended_at < now() - INTERVAL {SETTLES_S} SECOND"
_REPLIES = f"""
SELECT account_id, reply_id, toDate(ended_at, 'UTC') AS day, toString(status) AS status, toString(tier) AS tier,
       toString(pool) AS pool, toString(model) AS model, input_tokens AS input, cached_input_tokens AS cached,
       cache_write_tokens AS written, output_tokens AS output, counted, toUInt64(1) AS revision, 1 AS here
FROM reply_rows FINAL WHERE {_SETTLED} AND {_DELETED}
"""  # noqa: S608 - constants of this module
_BILLED = f"""
SELECT account_id, message_id AS reply_id, toDate(ended_at, 'UTC') AS day, toString(status) AS status,
       toString(tier) AS tier, toString(pool) AS pool, toString(model) AS model,
       uncached_input_tokens + cache_read_input_tokens + cache_write_input_tokens + cache_write_long_input_tokens
           AS input,
       cache_read_input_tokens AS cached, cache_write_input_tokens AS written, output_tokens AS output, counted,
       revision, 1 AS here
FROM usage_records FINAL WHERE record_kind = 'reply' AND {_SETTLED} AND {_DELETED}
"""  # noqa: S608 - constants of this module
_HASH = f"sum(cityHash64(account_id, reply_id, {', '.join(_SAID)}))"
REPLIES = "replies"


def disagreements(database: Database, since: str = "") -> Iterator[Finding]:
    """Of all days, or of those from `since` (YYYY-MM-DD) on. `live` is what the message says, `right` the bill.

    Raises:
        ClickHouseError: not now.
    """
    said, billed = (_digests(database, source, since) for source in (_REPLIES, _BILLED))
    for part in parts(said, billed):
        yield from _of_part(database, part)


def _digests(database: Database, source: str, since: str) -> dict[str, Digest]:
    where = "day >= %(since)s" if since else "1"
    statement = f"SELECT toString(day), count(), {_HASH} FROM ({source}) WHERE {where} GROUP BY day"  # noqa: S608
    found = database.query(statement, {"since": since} if since else None)
    return {day: Digest(int(count), int(total)) for day, count, total in found}


def _of_part(database: Database, part: Part) -> list[Finding]:
    changed = ", ".join(f"('{name}', toString(m.{name}), toString(b.{name}))" for name in _SAID)
    within = f"day = %(day)s AND modulo(cityHash64(account_id, reply_id), {part.of}) = {part.number}"
    found = database.query(
        "SELECT if(m.here = 1, m.account_id, b.account_id), if(m.here = 1, m.reply_id, b.reply_id), m.here, b.here, "  # noqa: S608
        f"if(m.here + b.here < 2, [], arrayFilter(c -> c.2 != c.3, [{changed}])) AS changes "
        f"FROM (SELECT * FROM ({_REPLIES}) WHERE {within}) AS m "
        f"FULL OUTER JOIN (SELECT * FROM ({_BILLED}) WHERE {within}) AS b "
        "ON m.account_id = b.account_id AND m.reply_id = b.reply_id "
        "WHERE (m.here != b.here OR notEmpty(changes)) AND b.revision < 2 ORDER BY 1, 2 SETTINGS join_use_nulls = 0",
        {"day": part.group},
    )
    return [
        Finding(table=REPLIES, kind=_kind(m, b), key=(account, reply), changes=tuple(Change(*c) for c in changes))
        for account, reply, m, b, changes in found
    ]


def _kind(said: int, billed: int) -> str:
    if said and billed:
        return "differs"
    return "no_bill" if said else "no_reply"
