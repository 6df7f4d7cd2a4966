"""One account's bill for a month, and what dashboards ask, out of millions of usage records with copies and revisions.

`python -m tests.benchmarks.bill_month [--records 10000000]`, against the server at TURNLOG_CLICKHOUSE_URL, else one of
its own. Records of a year, of 951 accounts, one of which has a twentieth of all; 4 % come twice, 1 % again with a
higher revision and other dimensions. Times are those of the whole question over HTTP, as a reader has them. Direct: the
same sums over the table without deduplication, which are wrong. Bills are compared with a count of the records made.
"""

import random
import sys
import time
import uuid

from api.bill_queries import SUMS
from projections.clickhouse import migrations
from projections.clickhouse.client import Database
from tests.benchmarks import report
from tests.benchmarks.clickhouse import server

TARGET_MS = 50.0
ACCOUNTS = 1_000
YEAR = "2025-12-01"
MONTHS = ("2026-02-01", "2026-06-01", "2026-10-01")
MADE = """
SELECT
    if(n % 20 = 0, 'account-0', 'account-' || toString(n % {accounts})) AS account_id,
    toDate('{year}') + toUInt32(intDiv(n * 365, {records})) AS usage_day,
    'rep_' || lower(hex(sipHash128(n))) AS message_id,
    'reply' AS record_kind,
    toUInt64(1) AS revision,
    'conv_' || lower(hex(sipHash64(intDiv(n, 5)))) AS conversation_id,
    ['completed', 'completed', 'completed', 'cancelled', 'length'][n % 5 + 1] AS status,
    ['free', 'paid', 'paid'][n % 3 + 1] AS tier,
    ['default', 'large'][n % 2 + 1] AS pool,
    ['small', 'medium', 'large', 'smollm2'][intDiv(n, 7) % 4 + 1] AS model,
    toUInt32(1) AS attempts,
    toInt64(n % 900) AS uncached_input_tokens,
    toInt64(n % 300) AS cache_read_input_tokens,
    toInt64(0) AS cache_write_input_tokens,
    toInt64(n % 700) AS output_tokens,
    toUInt8(1) AS counted,
    toDecimal128(n % 100000, 12) / 1000000 AS cost,
    'USD' AS currency,
    '2026-11' AS price_version,
    toDateTime64(usage_day, 3, 'UTC') + (n % 86400) AS ended_at,
    toInt32(n % 8) AS log_partition,
    toInt64(intDiv(n, 8)) AS log_offset,
    toUInt64(1) AS version
FROM (SELECT number AS n FROM numbers({records}))
"""
BILL = """
SELECT model, tier, price_version, currency, sum(records), sum(uncached_input_tokens), sum(cache_read_input_tokens),
       sum(output_tokens), sum(cost)
FROM billing
WHERE account_id = %(account)s AND usage_day >= toDate(%(month)s) AND usage_day < toDate(%(month)s) + INTERVAL 1 MONTH
GROUP BY model, tier, price_version, currency ORDER BY model, tier, price_version, currency
"""
BILL_MADE = BILL.replace("FROM billing", "FROM made").replace("sum(records)", "count()")
PLAIN = BILL.replace("FROM billing", "FROM usage_records").replace("sum(records)", "count()")
OTHERS = {
    "the last day by hour and model, all accounts (usage_hourly)": """
        SELECT hour, model, sum(replies), sum(output_tokens), sum(cost) FROM usage_hourly
        WHERE usage_day = toDate('2026-11-30') GROUP BY hour, model ORDER BY hour, model""",
    "the same by FINAL (what usage_daily does)": """
        SELECT toStartOfHour(ended_at) AS hour, model, count(), sum(output_tokens), sum(cost) FROM usage_records FINAL
        WHERE usage_day = toDate('2026-11-30') GROUP BY hour, model ORDER BY hour, model""",
    "a month by day, all accounts (usage_daily)": """
        SELECT usage_day, uniqExact(account_id), sum(replies), sum(cost) FROM usage_daily
        WHERE usage_day BETWEEN '2026-10-01' AND '2026-10-31' GROUP BY usage_day""",
    "the year by day, all accounts (usage_daily)": """
        SELECT usage_day, uniqExact(account_id), sum(replies), sum(cost) FROM usage_daily GROUP BY usage_day""",
}


def fill(database: Database, records: int) -> None:
    """Make the records, some of them again, some of them wrong at first."""
    database.command(f"CREATE VIEW made AS {MADE.format(accounts=ACCOUNTS, year=YEAR, records=records)}")
    found = database.query("SELECT name FROM system.columns WHERE database = currentDatabase() AND table = 'made'")
    names = [name for (name,) in found]
    put = f"INSERT INTO usage_records ({', '.join(names)}) SELECT {{}} FROM made {{}} "
    put += "SETTINGS max_partitions_per_insert_block = 0"
    wrong = {"model": "if({0}, 'other', model)", "output_tokens": "if({0}, 99999, output_tokens)"}
    revised = "cityHash64(message_id) % 100 = 1"
    first = [wrong[name].format(revised) if name in wrong else name for name in names]
    newer = ["toUInt64(2)" if name in ("revision", "version") else name for name in names]
    database.command(put.format(", ".join(first), ""))
    database.command(put.format(", ".join(first), "WHERE cityHash64(message_id) % 25 = 0"))
    database.command(put.format(", ".join(newer), f"WHERE {revised}"))


def times_of(database: Database, questions: list[tuple[str, dict[str, str]]]) -> list[float]:
    """Milliseconds of each question, after one that nobody counts."""
    database.query(*questions[0])
    found = []
    for question, names in questions:
        began = time.perf_counter()
        database.query(question, names)
        found.append((time.perf_counter() - began) * 1000)
    return found


def row(name: str, found: list[float], rows: int | None = None) -> tuple[str, ...]:
    """Of the table."""
    shown = (f"{report.percentile(found, share):.1f} ms" for share in (0.5, 0.95))
    return (name, *shown, f"{min(found):.1f} ms", f"{rows:,}" if rows else "")


def main() -> int:
    """Run it and print; exit code 1 when a target was missed."""
    options = report.options(__doc__)
    options.add_argument("--records", type=int, default=10_000_000)
    options.add_argument("--bills", type=int, default=60)
    chosen = options.parse_args()
    name = f"bench_{uuid.uuid4().hex[:8]}"
    rng = random.Random(1)
    with server() as url:
        migrations.apply(url, name)
        database = Database(url, name, timeout_s=3000)
        try:
            fill(database, chosen.records)
            small = [f"account-{rng.choice([n for n in range(ACCOUNTS) if n % 20])}" for _ in range(chosen.bills)]
            asked = [{"account": account, "month": rng.choice(MONTHS)} for account in small]
            large = [{"account": "account-0", "month": MONTHS[n % 3]} for n in range(chosen.bills // 3)]
            exact = all(
                database.query(BILL, names) == database.query(BILL_MADE, names) for names in (asked[0], large[0])
            )
            parts = database.query(
                "SELECT max(n) FROM (SELECT count() AS n FROM system.parts WHERE active AND "
                "database = currentDatabase() AND table = 'usage_records' GROUP BY partition)"
            )[0][0]
            bills = times_of(database, [(BILL, names) for names in asked])
            heavy = times_of(database, [(BILL, names) for names in large])
            plain = times_of(database, [(PLAIN, names) for names in asked])
            years = times_of(database, [(SUMS, {"account": names["account"]}) for names in asked])
            heavy_years = times_of(database, [(SUMS, {"account": "account-0"})] * (chosen.bills // 6))
            others = [row(title, times_of(database, [(question, {})] * 5)) for title, question in OTHERS.items()]
        finally:
            database.command(f"DROP DATABASE {name} SYNC")
    table = report.Table(
        "",
        ("question", "p50", "p95", "least", "records of it"),
        (
            row("a bill of a month, view billing", bills, chosen.records // ACCOUNTS // 12),
            row("the same, of the largest account", heavy, chosen.records // 20 // 12),
            row("direct: the first without deduplication (wrong)", plain, chosen.records // ACCOUNTS // 12),
            row("what GET /v1/invoices asks: all months of an account", years, chosen.records // ACCOUNTS),
            row("the same, of the largest account", heavy_years, chosen.records // 20),
            *others,
        ),
    )
    p50 = report.percentile(bills, 0.5)
    accounts = ACCOUNTS - ACCOUNTS // 20 + 1
    how = f"""{chosen.records:,} usage records of a year and {accounts} accounts, one of which has a twentieth;
    4 % twice, 1 % again with a higher revision and other dimensions; at most {parts} active parts a month. Whole
    questions over HTTP."""
    reached = {
        f"a bill of a month in {TARGET_MS:.0f} ms (p50)": p50 <= TARGET_MS,
        "bills equal the records made": exact,
    }
    return report.finish(report.result("bill_month", how, [table], {"bill_p50_ms": p50}, reached), chosen)


if __name__ == "__main__":
    sys.exit(main())
