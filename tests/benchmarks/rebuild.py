"""The billing view rebuilt from the log: read from Kafka, decoded, inserted beside the live table, compared, exchanged.

`python -m tests.benchmarks.rebuild [--records 500000]`, on servers of its own. One record in twenty is in the log
twice. The live table is full before: the rebuild's first run, which is not measured, has written it. Beside it: the
same records only read from Kafka, and ClickHouse's own `INSERT … SELECT` of the table. Totals are compared with a fold.
"""

import json
import sys
import tempfile
import time
import uuid
from pathlib import Path

import msgspec

from projections.clickhouse.client import Database
from projections.rebuild.rebuild import Options, Rebuilt, rebuild
from schemas.codec import Envelope, encode
from schemas.events import UsageRecorded
from schemas.examples import AT_MS, EXAMPLES
from streams.log.kafka import KafkaLog
from streams.log.log import BEGINNING
from streams.log.steps import Partition
from tests.benchmarks import report
from tests.benchmarks.stack import turnlog
from tests.deployment import Deployment, Servers

TARGET = 50_000
REPEATED = 20


def number_of(offset: int) -> int:
    """Which reply the record is about: one in twenty comes again."""
    return offset if offset % REPEATED else offset // 2


def fill(log: KafkaLog, count: int) -> None:
    """Write so many records."""
    example = EXAMPLES[UsageRecorded]
    writer = log.writer("bench", linger_ms=20, delivery_timeout_s=300)
    for offset in range(count):
        number = number_of(offset)
        event = msgspec.structs.replace(
            example,
            account_id=f"account-{number % 997}",
            reply_id=f"rep_{number:032}",
            usage_day=f"2025-{1 + number % 12:02}-{1 + number % 28:02}",
            output_tokens=number % 800,
        )
        value, headers = encode(Envelope(event=event, source="turnlog/streams/settlement/0", time_ms=AT_MS))
        writer.append_record("usage", event.account_id, value, headers)
        if offset % 50_000 == 49_999:
            writer.flush(120)
    writer.close(120)


def read_only(log: KafkaLog) -> float:
    """Seconds of reading the topic and doing nothing."""
    reader = log.reader([Partition("usage", number) for number in range(log.partitions("usage"))], BEGINNING)
    ends = reader.ends()
    began = time.perf_counter()
    while any(reader.positions()[partition] < end for partition, end in ends.items()):
        reader.poll(0.2)
    took = time.perf_counter() - began
    reader.close()
    return took


def main() -> int:
    """Run it and print; exit code 1 when a target was missed."""
    options = report.options(__doc__)
    options.add_argument("--records", type=int, default=500_000)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="turnlog-bench-") as folder:
        lines = turnlog("up", "--servers-only", "--detach", "--json", "--data", folder).splitlines()
        environment = json.loads(lines[-1])["environment"]
        try:
            return measure(environment, chosen)
        finally:
            turnlog("down", "--data", str(Path(folder)))


def measure(environment: dict[str, str], chosen: object) -> int:
    """Of servers that run."""
    servers = Servers(*(environment[f"TURNLOG_{name}"] for name in ("KAFKA_BOOTSTRAP", "REDIS_URL", "CLICKHOUSE_URL")))
    deployment = Deployment(f"bench-{uuid.uuid4().hex[:8]}", servers)
    deployment.provision()
    log = KafkaLog(servers.kafka_bootstrap, deployment.namespace, "bench")
    count = chosen.records  # type: ignore[attr-defined]

    def connect() -> Database:
        return Database(servers.clickhouse_url, deployment.database, timeout_s=300)

    fill(log, count)
    took_reading = read_only(log)
    rebuild(log, connect, "billing", Options(), lambda _: None)
    began, cpu = time.perf_counter(), time.process_time()
    done = rebuild(log, connect, "billing", Options(), lambda _: None)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    database = connect()
    listed = database.query("SELECT sum(records), sum(output_tokens) FROM billing")[0]
    database.command("CREATE TABLE copied AS usage_records")
    copying = time.perf_counter()
    database.command("INSERT INTO copied SELECT * FROM usage_records")
    copied = time.perf_counter() - copying
    log.close()
    return told(count, done, (took, cpu), took_reading, copied, listed, chosen)


def told(
    count: int,
    done: Rebuilt,
    whole: tuple[float, float],
    reading: float,
    copied: float,
    listed: tuple[int, int],
    chosen: object,
) -> int:
    """Print the result. `whole`: seconds and CPU-seconds of this process."""
    took, cpu = whole
    numbers = {number_of(offset) for offset in range(count)}
    exact = listed == (len(numbers), sum(number % 800 for number in numbers))
    equal = sum(compared.differences for compared in done.compared) == 0
    table = report.Table(
        "",
        ("part", "seconds", "records/s", "CPU-s per 100,000, this process"),
        (
            ("read, decode, insert", f"{done.load_s:.1f}", f"{count / done.load_s:,.0f}", ""),
            (
                "the same, compared row by row and exchanged",
                f"{took:.1f}",
                f"{count / took:,.0f}",
                f"{cpu / count * 1e5:.2f}",
            ),
            ("reading alone", f"{reading:.1f}", f"{count / reading:,.0f}", ""),
            ("ClickHouse copies its own table", f"{copied:.1f}", f"{len(numbers) / copied:,.0f}", ""),
        ),
    )
    how = f"{count:,} usage records, one in twenty twice. {' '.join((__doc__ or '').split())}"
    reached = {
        f"at least {TARGET:,} records/s, comparison and exchange included": count / took >= TARGET,
        "totals equal a fold of the events, no row differs": exact and equal,
    }
    figures = {"records_per_s": count / took, "loading_per_s": count / done.load_s}
    return report.finish(report.result("rebuild", how, [table], figures, reached), chosen)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
