"""Any row that is deleted, changed or added by hand is shown and repaired; what is only new or old is left alone."""

from datetime import UTC, datetime

import msgspec
import pytest

from projections.archive.export import export
from projections.clickhouse.beside import catalogue
from projections.reconcile.reconcile import Options, reconcile
from schemas import events as e
from schemas.examples import EXAMPLES
from streams.log.steps import Partition
from tests.projections.test_rebuild import Deployment, stream, total

pytestmark = pytest.mark.servers

replace = msgspec.structs.replace
TODAY = datetime(2025, 11, 30, 12, tzinfo=UTC)
OF_KIND = {"String": "concat({c}, 'x')", "Date": "{c} + 40", "DateTime64": "{c} + 1", "Nullable": "ifNull({c}, 0) + 1"}
OF_KIND["UInt8"] = "1 - {c}"


@pytest.fixture
def deployed(servers):
    """A deployment of the test's own."""
    made = Deployment(servers.clickhouse_url)
    yield made
    made.database.command(f"DROP DATABASE {made.name}")


def run(deployed, **options):
    found = []
    given = Options(**({"wait_s": 0.0, "replies": False} | options))
    outcome = reconcile(deployed.log, deployed.connect, given, found.append, today=TODAY)
    assert deployed.left_over() == []
    return outcome, found


def tamper(deployed, table, changes):
    """Change columns of rows (column, SQL of the row), as somebody might by hand, also of their keys."""
    database = deployed.database
    database.command(f"CREATE TABLE forged ENGINE = Memory AS SELECT * FROM {table} WHERE 0")
    for column, row in changes:
        kind = column.type.removeprefix("LowCardinality(").split("(")[0].rstrip(")")
        other = OF_KIND.get(kind, "{c} + 1000").format(c=column.name)
        database.command(
            f"INSERT INTO forged SELECT * REPLACE ({other} AS {column.name}) "
            f"FROM (SELECT * FROM {table} FINAL WHERE {row})"
        )
    database.erase(table, " OR ".join(f"({row})" for _, row in changes))
    database.command(f"INSERT INTO {table} SELECT * FROM forged")
    database.command("DROP TABLE forged SYNC")


def test_what_is_right_has_no_differences(deployed):
    deployed.append(*stream(60), *stream(20), EXAMPLES[e.UsageAdjusted], EXAMPLES[e.PeriodClosed])
    deployed.project()
    outcome, found = run(deployed)
    assert found == []
    assert (outcome.records, outcome.rows, outcome.behind, outcome.left) == (82, 62, 0, 0)
    assert not outcome.replies_compared


RECORD_COLUMNS = """
account_id usage_day message_id record_kind revision conversation_id status tier pool model attempts
uncached_input_tokens cache_read_input_tokens cache_write_input_tokens cache_write_long_input_tokens output_tokens
reasoning_tokens counted charged cost currency price_version queued_ms gpu_ms reason ended_at log_partition log_offset
version
"""
LINE_COLUMNS = """
account_id period line description usage_period model tier price_version currency records uncached_input_tokens
cache_read_input_tokens cache_write_input_tokens cache_write_long_input_tokens output_tokens amount closed_at
log_partition log_offset version
"""


@pytest.mark.parametrize(
    ("table", "names", "key", "keys"),
    [
        (
            "usage_records",
            RECORD_COLUMNS.split(),
            "message_id = 'rep_{}'",
            ("account_id", "usage_day", "message_id", "record_kind"),
        ),
        ("invoice_rows", LINE_COLUMNS.split(), "line = {}", ("account_id", "period", "line")),
    ],
)
def test_a_change_of_any_column_is_shown_and_repaired(deployed, table, names, key, keys):
    closed = EXAMPLES[e.PeriodClosed]
    records = [replace(one, usage_day="2025-11-29") for one in stream(40)]
    deployed.append(*records, replace(closed, lines=closed.lines[:1] * 40))
    deployed.project()
    whole = deployed.rows(table)
    columns = {column.name: column for column in catalogue(deployed.database)[table].columns}
    assert set(columns) == set(names), "every column is tried"
    tamper(deployed, table, [(columns[name], key.format(number)) for number, name in enumerate(names, 1)])
    assert len(set(deployed.rows(table)) - set(whole)) == len(names)
    outcome, found = run(deployed, repair=True)
    changed = [change.column for one in found for change in one.changes]
    assert sorted(changed) == sorted(set(names) - set(keys))
    assert sorted(one.kind for one in found if not one.changes) == ["extra"] * len(keys) + ["missing"] * len(keys)
    assert outcome.left == 0
    assert deployed.rows(table) == whole


def test_deleted_rows_are_shown_and_inserted_again(deployed):
    deployed.append(*stream(30))
    deployed.project()
    before = total(deployed.database)
    deployed.database.erase("usage_records", "output_tokens < 10")
    outcome, found = run(deployed)
    assert [(one.table, one.kind) for one in found] == [("usage_records", "missing")] * 10
    assert (outcome.found, outcome.left, total(deployed.database)[0]) == (10, 10, 20)
    outcome, _ = run(deployed, repair=True)
    assert (outcome.found, outcome.left) == (10, 0)
    assert total(deployed.database) == before
    deployed.database.command("TRUNCATE TABLE usage_records")
    outcome, _ = run(deployed, repair=True)
    assert (outcome.found, outcome.left) == (30, 0)
    assert total(deployed.database) == before


def test_a_forged_revision_above_and_wrong_rows_beneath_it_are_taken_away(deployed):
    deployed.append(*stream(5))
    deployed.project()
    whole = deployed.rows("usage_records")
    for version in (2**62, 2**62 + 1):
        deployed.database.command(
            f"INSERT INTO usage_records SELECT * REPLACE (0 AS cost, {version} AS version) FROM usage_records FINAL "
            "WHERE message_id = 'rep_3'"
        )
    outcome, found = run(deployed, repair=True)
    assert (len(found), outcome.left) == (1, 0)
    assert deployed.rows("usage_records") == whole


def test_what_the_projection_has_not_come_to_is_no_difference(deployed):
    deployed.append(*stream(10))
    deployed.project()
    deployed.append(*[replace(one, reply_id=f"new_{one.reply_id}") for one in stream(4)])
    outcome, found = run(deployed, replies=True)
    assert (found, outcome.behind, outcome.replies_compared) == ([], 4, False)


def test_dead_letters_at_the_end_hold_up_nothing(deployed):
    deployed.append(*[event for n in range(8) for event in agreed(n)])
    deployed.project()
    deployed.append(*[replace(one, queued_ms=-1) for one in stream(6)])
    outcome, found = run(deployed, replies=True)
    assert (found, outcome.behind, outcome.unreadable, outcome.replies_compared) == ([], 0, 6, True)


def test_records_that_came_while_it_looked_are_no_difference(deployed):
    deployed.append(*stream(10))
    deployed.project()
    connect = deployed.connect

    def connect_late():
        made = connect()
        query = made.query

        def late(statement, *rest):
            if "row_hash" in statement or "count()" in statement:
                deployed.append(replace(stream(1)[0], reply_id=f"late_{len(deployed.log.records('usage'))}"))
                deployed.project()
            return query(statement, *rest)

        made.query = late
        return made

    deployed.connect = connect_late
    outcome, found = run(deployed, repair=True)
    assert (found, outcome.left) == ([], 0)
    assert total(deployed.database)[0] > 11


def test_some_days_are_enough_for_an_hourly_run(deployed):
    old, new = stream(24), [replace(one, usage_day="2025-11-30", reply_id=f"n{one.reply_id}") for one in stream(6)]
    deployed.log.now_ms = lambda: int(datetime(2025, 11, 20, tzinfo=UTC).timestamp() * 1000)
    deployed.append(*old)
    deployed.log.now_ms = lambda: int(TODAY.timestamp() * 1000)
    deployed.append(*new)
    deployed.project()
    deployed.database.erase("usage_records", "message_id IN ('rep_3', 'nrep_3')")
    outcome, found = run(deployed, days=2)
    assert (outcome.records, outcome.rows) == (6, 5)
    assert [one.key[2] for one in found] == ["nrep_3"]


def test_records_that_the_log_has_lost_come_from_the_archive_or_are_left_alone(deployed, tmp_path):
    deployed.append(*stream(60))
    deployed.project()
    export(deployed.log, "usage", tmp_path, deployed.database)
    for number in range(2):
        deployed.log.cut(Partition("usage", number), 15)
    assert run(deployed)[1] == []
    deployed.database.erase("usage_records", "log_offset = 3")
    assert run(deployed)[1] == []
    outcome, found = run(deployed, archive=tmp_path, repair=True)
    assert [one.kind for one in found] == ["missing"] * 2
    assert (outcome.left, total(deployed.database)[0]) == (0, 60)
    next((tmp_path / "usage" / "00000").glob("*.parquet")).rename(tmp_path / "kept")
    assert run(deployed, archive=tmp_path)[1] == []


STORED = EXAMPLES[e.ReplyStored]
BILLED = EXAMPLES[e.UsageRecorded]


def agreed(n):
    """A reply and its record, as settlement writes them."""
    ids = {"reply_id": f"rep_{n}"}
    usage = STORED.usage
    billed = replace(
        BILLED,
        **ids,
        account_id=STORED.account_id,
        status=STORED.status,
        tier=STORED.tier,
        pool=STORED.pool,
        model=STORED.model,
        uncached_input_tokens=usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens,
        cache_read_input_tokens=usage.cached_input_tokens,
        cache_write_input_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
        counted=usage.counted,
        ended_at_ms=STORED.ended_at_ms,
    )
    return replace(STORED, **ids, ended_at_ms=billed.ended_at_ms), billed


def test_messages_and_bills_tell_the_same_and_a_row_that_does_not_is_repaired(deployed):
    deployed.append(*[event for n in range(8) for event in agreed(n)])
    deployed.project()
    assert run(deployed, replies=True)[1] == []
    whole = deployed.rows("reply_rows")
    columns = {column.name: column for column in catalogue(deployed.database)["reply_rows"].columns}
    for name in ("status", "tier", "pool", "model", "input_tokens", "cached_input_tokens", "output_tokens", "counted"):
        tamper(deployed, "reply_rows", [(columns[name], "reply_id = 'rep_2'")])
        outcome, found = run(deployed, repair=True, replies=True)
        assert [(one.kind, one.key[1]) for one in found] == [("differs", "rep_2")], name
        assert outcome.left == 0
        assert deployed.rows("reply_rows") == whole
    deployed.database.erase("reply_rows", "reply_id = 'rep_5'")
    tamper(deployed, "reply_rows", [(columns["reply_id"], "reply_id = 'rep_6'")])
    outcome, found = run(deployed, repair=True, replies=True)
    assert sorted((one.kind, one.key[1]) for one in found) == [
        ("no_bill", "rep_6x"),
        ("no_reply", "rep_5"),
        ("no_reply", "rep_6"),
    ]
    assert deployed.rows("reply_rows") == whole


def test_a_log_that_disagrees_with_itself_is_told_and_cannot_be_repaired(deployed):
    stored, billed = agreed(1)
    deployed.append(stored, replace(billed, output_tokens=999))
    deployed.project()
    outcome, found = run(deployed, repair=True, replies=True)
    assert [one.kind for one in found] == ["differs", "log_disagrees"]
    assert outcome.left == 1


def test_a_deleted_conversation_keeps_its_bill_and_is_no_difference(deployed):
    stored, billed = agreed(1)
    deployed.append(stored, billed, replace(EXAMPLES[e.ConversationDeleted], conversation_id=stored.conversation_id))
    deployed.project()
    assert deployed.database.query("SELECT count() FROM reply_rows") == [(0,)]
    assert run(deployed, replies=True)[1] == []
    assert total(deployed.database)[0] == 1
