"""The views when the server itself is killed, or lives in another time zone."""

import os
import subprocess
import sys
from decimal import Decimal

import pytest

from projections.clickhouse import migrations
from projections.clickhouse.client import Database
from projections.views.pace import Pace
from projections.views.step import Batch, ViewsStep
from schemas import events as e
from schemas.examples import EXAMPLES
from tests.projections.clickhouse import ClickHouse
from tests.projections.logs import AT_MS, arrived, fresh_namespace
from tests.projections.test_views_step import AT_ONCE, USAGE, bill, folded, replace, usage

pytestmark = pytest.mark.servers

NEAR_MIDNIGHT_MS = 1_764_460_799_999  # 2025-11-29T23:59:59.999Z, the 30th in Tokyo
TOTALS = """
SELECT usage_day, records, cost, toUnixTimestamp64Milli(m) FROM billing
CROSS JOIN (SELECT max(ended_at) AS m FROM usage_records FINAL) AS newest
"""
WRITE = """
import sys
from tests.projections.test_views_server import write_and_read
for url, name in zip(sys.argv[1::2], sys.argv[2::2]):
    print(write_and_read(url, name))
"""


def write_and_read(url, name):
    """Write one record that ends just before midnight, and read the totals as text."""
    migrations.apply(url, name)
    database = Database(url, name)
    step = ViewsStep(database, Batch(), Pace())
    step.assigned({USAGE: 0})
    event = replace(EXAMPLES[e.UsageRecorded], ended_at_ms=NEAR_MIDNIGHT_MS, usage_day="2025-11-29")
    step.submit(arrived([event], USAGE), AT_MS)
    step.poll(AT_MS)
    found = database.query(TOTALS)
    database.command(f"DROP DATABASE {name}")
    return [(str(day), records, cost, at_ms) for day, records, cost, at_ms in found]


def test_totals_are_the_same_under_every_time_zone_of_process_and_server(servers, tmp_path):
    expected = [("2025-11-29", 1, Decimal("0.000002230000"), NEAR_MIDNIGHT_MS)]
    tokyo = ClickHouse(tmp_path, zone="Asia/Tokyo")
    tokyo.start()
    try:
        for zone in ("UTC", "Asia/Tokyo"):
            places = []
            for url in (servers.clickhouse_url, tokyo.url):
                places += [url, fresh_namespace().replace("-", "_")]
            done = subprocess.run(
                [sys.executable, "-c", WRITE, *places],
                env={**os.environ, "TZ": zone, "PYTHONPATH": os.pathsep.join(sys.path)},
                capture_output=True,
                text=True,
                check=False,
                timeout=100,
            )
            assert done.stdout.splitlines() == [str(expected)] * 2, done.stderr
        assert Database(tokyo.url, "system").query("SELECT serverTimezone()") == [("Asia/Tokyo",)]
    finally:
        tokyo.kill()


def test_killing_clickhouse_loses_and_doubles_nothing(tmp_path):
    server = ClickHouse(tmp_path)
    server.start()
    try:
        migrations.apply(server.url, "views")
        database = Database(server.url, "views", timeout_s=5)
        step = ViewsStep(database, Batch(), AT_ONCE)
        step.assigned({USAGE: 0})
        log = [usage(n) for n in range(60)]
        at_ms = AT_MS
        for first in range(0, 60, 10):
            if first in (20, 40):
                server.kill()
            step.submit(arrived(log[first : first + 10], USAGE, first), at_ms)
            step.poll(at_ms)
            if first in (20, 40):
                assert step.trouble
                assert step.settled() == {USAGE: first}
                server.start()
                at_ms += 20_000
                step.poll(at_ms)
            assert not step.trouble
            assert step.settled() == {USAGE: first + 10}
        assert bill(database) == folded(log)
    finally:
        server.kill()
