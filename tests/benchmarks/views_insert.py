"""Usage records into ClickHouse by one projection process: decode, rows and inserts, beside the library's own insert.

`python -m tests.benchmarks.views_insert [--records 200000]`, against the server at TURNLOG_CLICKHOUSE_URL, else one of
its own. The log itself is not part of it: records stand ready as bytes. Direct: the same rows, ready as columns of
Python values, by clickhouse-connect's `insert` in batches of the same size. Totals are compared with a fold of the
events, by account.
"""

import sys
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

import clickhouse_connect
import msgspec

from projections.clickhouse import migrations
from projections.clickhouse.client import Database
from projections.views.pace import Pace
from projections.views.step import Batch, ViewsStep
from projections.views.tables import UsageRow
from schemas.codec import Envelope, decode, encode
from schemas.events import UsageRecorded
from schemas.examples import AT_MS, EXAMPLES
from streams.log.steps import Arrived, Partition, Record
from tests.benchmarks import report
from tests.benchmarks.clickhouse import server

USAGE = Partition("usage", 0)
TARGET = 30_000
POLL = 2_000
"""Records that one turn of the loop brings."""


def records(count: int) -> list[Record]:
    """So many records of different replies, one in twenty of them twice."""
    example = EXAMPLES[UsageRecorded]
    made: list[Record] = []
    for offset in range(count):
        number = offset if offset % 20 else offset // 2
        event = msgspec.structs.replace(
            example, account_id=f"account-{number % 97}", reply_id=f"rep_{number:032}", output_tokens=number % 800
        )
        value, headers = encode(Envelope(event=event, source="turnlog/streams/settlement/0", time_ms=AT_MS))
        made.append(Record("usage", 0, offset, event.account_id, value, headers, AT_MS))
    return made


def through_the_step(database: Database, made: Sequence[Record]) -> tuple[float, float]:
    """Seconds, and CPU-seconds of this process."""
    step = ViewsStep(database, Batch(), Pace())
    step.assigned({USAGE: 0})
    began, cpu = time.perf_counter(), time.process_time()
    for first in range(0, len(made), POLL):
        batch = [
            Arrived(r, decode(r.value, r.headers, topic=r.topic, partition=r.partition, offset=r.offset))
            for r in made[first : first + POLL]
        ]
        now_ms = time.time_ns() // 1_000_000
        step.submit(batch, now_ms)
        step.poll(now_ms)
    step.drain(60)
    if step.settled()[USAGE] != len(made):
        raise SystemExit(step.trouble)
    return time.perf_counter() - began, time.process_time() - cpu


def folded(made: Sequence[Record]) -> list[tuple[str, int, int, Decimal]]:
    """Records, tokens and cost of each account, by a fold of the events."""
    counted = {e.reply_id: e for r in made if isinstance(e := decode(r.value, r.headers).event, UsageRecorded)}
    totals: dict[str, tuple[int, int, Decimal]] = {}
    for event in counted.values():
        records, tokens, cost = totals.get(event.account_id, (0, 0, Decimal(0)))
        totals[event.account_id] = (records + 1, tokens + event.output_tokens, cost + Decimal(event.cost))
    return sorted((account, *sums) for account, sums in totals.items())


def directly(url: str, name: str, made: Sequence[Record]) -> float:
    """Seconds of the library's own inserts of the same rows."""
    events = [decode(r.value, r.headers).event for r in made]
    names = [field.name for field in msgspec.structs.fields(UsageRow)]
    at = datetime.fromtimestamp(AT_MS / 1000, UTC)
    rows = [
        [
            {
                "message_id": event.reply_id,
                "usage_day": date.fromisoformat(event.usage_day),
                "cost": Decimal(event.cost),
                "ended_at": at,
                "log_partition": 0,
                "log_offset": offset,
                "version": event.revision,
                "reason": "",
            }.get(name, getattr(event, name, None))
            for name in names
        ]
        for offset, event in enumerate(events)
        if isinstance(event, UsageRecorded)
    ]
    client = clickhouse_connect.get_client(dsn=f"{url.rstrip('/')}/{name}", settings={"async_insert": 0})
    began = time.perf_counter()
    for first in range(0, len(rows), 10_000):
        client.insert("usage_records", rows[first : first + 10_000], column_names=names)
    return time.perf_counter() - began


def main() -> int:
    """Run it and print; exit code 1 when a target was missed."""
    options = report.options(__doc__)
    options.add_argument("--records", type=int, default=200_000)
    chosen = options.parse_args()
    name = f"bench_{uuid.uuid4().hex[:8]}"
    made = records(chosen.records)
    with server() as url:
        migrations.apply(url, name)
        database = Database(url, name, timeout_s=60)
        try:
            took, cpu = through_the_step(database, made)
            listed = database.query(
                "SELECT account_id, sum(records), sum(output_tokens), sum(cost) FROM billing GROUP BY account_id"
            )
            database.command("TRUNCATE TABLE usage_records")
            direct = directly(url, name, made)
        finally:
            database.command(f"DROP DATABASE {name}")
    exact = sorted(listed) == folded(made)
    rate = len(made) / took
    table = report.Table(
        "",
        ("way", "records/s", "CPU-s per 100,000 records, this process"),
        (
            ("the projection: decode, check, rows, insert", f"{rate:,.0f}", f"{cpu / len(made) * 1e5:.2f}"),
            ("the library's insert of ready values", f"{len(made) / direct:,.0f}", ""),
        ),
    )
    how = f"{len(made):,} usage records of 97 accounts, one in twenty twice, in batches of 10,000, without the log."
    reached = {f"at least {TARGET:,} records/s": rate >= TARGET, "totals equal a fold of the events": exact}
    return report.finish(report.result("views_insert", how, [table], {"records_per_s": rate}, reached), chosen)


if __name__ == "__main__":
    sys.exit(main())
