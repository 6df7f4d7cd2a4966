"""The views when much is written in small pieces: parts stay few, totals the same, in every time zone and order."""

import os
import subprocess
import sys
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projections.clickhouse import migrations
from projections.clickhouse.client import Database
from projections.views.pace import Pace
from projections.views.step import Batch, ViewsStep
from schemas import events as e
from schemas.examples import EXAMPLES
from schemas.models import SMOLLM2, cost, uncached
from schemas.values import Usage
from tests.projections.analytics_world import AT_ONCE, USAGE, day, fill, replace, world
from tests.projections.clickhouse import ClickHouse
from tests.projections.logs import AT_MS, arrived, fresh_namespace

pytestmark = pytest.mark.servers

WORLD = world()
DAY_MS = 86_400_000
TOTALS = "SELECT sum(records), sum(output_tokens), sum(cost) FROM {}"
VIEWS = ("billing", "usage_daily", "usage_hourly")
SEEN = """
import sys
from projections.clickhouse.client import Database
database = Database(sys.argv[1], sys.argv[2])
for question in (
    "SELECT usage_day, sum(records), sum(cost) FROM billing GROUP BY usage_day ORDER BY usage_day",
    "SELECT toUnixTimestamp(hour), sum(records), sum(cost) FROM usage_hourly GROUP BY hour ORDER BY hour",
    "SELECT toDate(ended_at), toUnixTimestamp(toStartOfHour(ended_at)), count() FROM generation_stats "
    "GROUP BY ALL ORDER BY ALL",
    "SELECT cohort_week, weeks_after, accounts FROM retention ORDER BY ALL",
    "SELECT account_id, active_days FROM account_activity ORDER BY ALL",
):
    print([tuple(map(str, row)) for row in database.query(question)])
"""


@pytest.fixture(scope="module")
def database(servers):
    """An empty database with tables."""
    name = fresh_namespace().replace("-", "_")
    migrations.apply(servers.clickhouse_url, name)
    made = Database(servers.clickhouse_url, name)
    yield made
    made.command(f"DROP DATABASE {name}")
    made.close()


@pytest.fixture
def empty(database):
    """The database without usage."""
    database.command("TRUNCATE TABLE usage_records")
    return database


def write(database, events, first=0):
    step = ViewsStep(database, Batch(), AT_ONCE)
    step.assigned({USAGE: first})
    step.submit(arrived(events, USAGE, first), AT_MS)
    step.poll(AT_MS)
    assert not step.trouble


def test_parts_of_a_month_stay_few_when_much_comes_in_small_pieces_for_many_months(empty):
    """An insert of each month after the other, without the pace that keeps them to one a second."""
    step = ViewsStep(empty, Batch(), Pace(burst=1e9, per_s=1e9, left=1e9))
    step.assigned({USAGE: 0})
    record, most = EXAMPLES[e.UsageRecorded], 0
    for batch in range(250):
        events = [
            replace(
                record,
                reply_id=f"rep_{batch}_{month}",
                usage_day=day(AT_MS - month * 30 * DAY_MS),
                ended_at_ms=AT_MS - month * 30 * DAY_MS,
            )
            for month in range(12)
        ]
        step.submit(arrived(events, USAGE, batch * 12), AT_MS)
        step.poll(AT_MS)
        assert not step.trouble
        if batch % 20 == 0:
            counted = empty.query(
                "SELECT max(n) FROM (SELECT count() AS n FROM system.parts WHERE active AND "
                "database = currentDatabase() GROUP BY table, partition)"
            )
            most = max(most, counted[0][0])
    assert most < 300
    assert empty.query(TOTALS.format("billing"))[0][0] == 3_000


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.permutations([1, 2, 3, 3, 2]),
    st.lists(st.tuples(st.sampled_from(["m1", "m2"]), st.sampled_from(["free", "paid"])), min_size=3, max_size=3),
    st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_a_record_with_changed_dimensions_counts_in_one_group_only_in_any_order(empty, order, dimensions, merges):
    """The highest revision counts, whether or not parts were merged in between."""
    empty.command("TRUNCATE TABLE usage_records")
    for place, (revision, merge) in enumerate(zip(order, merges, strict=True)):
        model, tier = dimensions[revision - 1]
        write(
            empty,
            [
                replace(
                    EXAMPLES[e.UsageRecorded],
                    revision=revision,
                    model=model,
                    tier=tier,
                    pool=f"p{revision}",
                    output_tokens=revision,
                    cost=f"0.{revision}",
                )
            ],
            place,
        )
        if merge:
            empty.command("OPTIMIZE TABLE usage_records FINAL")
    model, tier = dimensions[2]
    for view in VIEWS:
        found = empty.query(f"SELECT model, tier, records, output_tokens, cost FROM {view}")
        assert found == [(model, tier, 1, 3, Decimal("0.3"))], view
        for other in {"m1", "m2"} - {model}:
            assert empty.query(f"SELECT count() FROM {view} WHERE model = '{other}'") == [(0,)]


def test_an_explicit_zero_stays_zero_and_is_not_taken_for_unknown(empty):
    nothing = replace(
        EXAMPLES[e.UsageRecorded],
        uncached_input_tokens=0,
        cache_read_input_tokens=0,
        output_tokens=0,
        cost="0",
        queued_ms=0,
        gpu_ms=0,
    )
    write(empty, [nothing])
    columns = "uncached_input_tokens, cache_read_input_tokens, output_tokens, cost, queued_ms, gpu_ms"
    assert empty.query(f"SELECT {columns} FROM usage_records FINAL") == [(0, 0, 0, Decimal(0), 0, 0)]
    assert empty.query("SELECT records, output_tokens, cost, estimated_records FROM billing") == [(1, 0, Decimal(0), 0)]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 10**6), min_size=5, max_size=5))
def test_parts_of_the_input_are_the_input_and_the_cost_is_that_of_the_price_list(empty, tokens):
    """A stream and an answer in one piece give the same usage, so the same record; the view sums it exactly."""
    empty.command("TRUNCATE TABLE usage_records")
    usage = Usage(
        input_tokens=sum(tokens[:4]),
        cached_input_tokens=tokens[1],
        cache_write_tokens=tokens[2],
        cache_write_long_tokens=tokens[3],
        output_tokens=tokens[4],
    )
    record = replace(
        EXAMPLES[e.UsageRecorded],
        uncached_input_tokens=uncached(usage),
        cache_read_input_tokens=usage.cached_input_tokens,
        cache_write_input_tokens=usage.cache_write_tokens,
        cache_write_long_input_tokens=usage.cache_write_long_tokens,
        output_tokens=usage.output_tokens,
        cost=f"{cost(usage, SMOLLM2.price):f}",
    )
    write(empty, [record, record])
    kinds = ("uncached", "cache_read", "cache_write", "cache_write_long")
    parts = f"{' + '.join(f'{kind}_input_tokens' for kind in kinds)}, cost"
    expected = [(usage.input_tokens, cost(usage, SMOLLM2.price))]
    assert empty.query(f"SELECT {parts} FROM billing") == expected
    for view in ("usage_daily", "usage_hourly"):
        assert empty.query(f"SELECT input_tokens, cost FROM {view}") == expected


def test_every_view_says_the_same_under_every_time_zone_of_reader_and_server(servers, tmp_path):
    tokyo = ClickHouse(tmp_path, zone="Asia/Tokyo")
    tokyo.start()
    seen = set()
    try:
        for url in (servers.clickhouse_url, tokyo.url):
            name = fresh_namespace().replace("-", "_")
            migrations.apply(url, name)
            database = Database(url, name)
            fill(database, WORLD)
            for zone in ("UTC", "Asia/Tokyo"):
                done = subprocess.run(
                    [sys.executable, "-c", SEEN, url, name],
                    env={**os.environ, "TZ": zone, "PYTHONPATH": os.pathsep.join(sys.path)},
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=100,
                )
                assert done.returncode == 0, done.stderr
                seen.add(done.stdout)
            database.command(f"DROP DATABASE {name}")
    finally:
        tokyo.kill()
    [same] = seen
    assert day(WORLD.usage[0].ended_at_ms) in same


def test_rows_written_before_a_table_was_there_are_in_it_afterwards(servers, monkeypatch):
    """The migration fills the new table from the old one; applied again it changes nothing."""
    name = fresh_namespace().replace("-", "_")
    everything = migrations.migrations()
    before = next(n for n, one in enumerate(everything) if one.name.endswith("_analytics"))
    monkeypatch.setattr(migrations, "migrations", lambda: everything[:before])
    migrations.apply(servers.clickhouse_url, name)
    database = Database(servers.clickhouse_url, name)
    database.command(
        "INSERT INTO reply_rows (account_id, conversation_id, reply_id, message_id, output_tokens, ended_at, version) "
        "VALUES ('a', 'c', 'r1', 'm1', 5, '2025-01-31 23:59:59.999', 9), "
        "('a', 'c', 'r1', 'm1', 5, '2025-01-31 23:59:59.999', 8), "
        "('a', 'c', 'r2', 'm1', 7, '2025-02-01 00:00:00', 7)"
    )
    database.command(
        "INSERT INTO usage_records (account_id, usage_day, message_id, record_kind, output_tokens, cost, version) "
        "VALUES ('a', '2025-01-31', 'r1', 'reply', 5, 0.5, 1), ('a', '2025-01-31', 'r1', 'reply', 6, 0.6, 2)"
    )
    monkeypatch.setattr(migrations, "migrations", lambda: everything)
    for _ in range(2):
        migrations.apply(servers.clickhouse_url, name)
        assert database.query("SELECT reply_id, output_tokens FROM generation_stats ORDER BY 1") == [
            ("r1", 5),
            ("r2", 7),
        ]
        assert database.query("SELECT replies, message_id FROM regenerations") == [(2, "m1")]
        for view in VIEWS:
            assert database.query(TOTALS.format(view)) == [(1, 6, Decimal("0.6"))], view
        database.command("TRUNCATE TABLE schema_migrations")
    database.command(f"DROP DATABASE {name}")
