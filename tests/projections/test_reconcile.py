"""Any row that is deleted, changed or added by hand is shown and repaired; what is only new or old is left alone."""

from datetime import UTC, datetime

import msgspec
import pytest

from projections.archive.export import export
from projections.clickhouse import compare
from projections.clickhouse.beside import catalogue
from projections.clickhouse.client import Database
from projections.reconcile import tables
from projections.reconcile.reconcile import Options, reconcile
from schemas import events as e
from schemas.examples import EXAMPLES
from streams.log.steps import Partition
from tests.projections.test_rebuild import Deployment, stream, total

pytestmark = pytest.mark.servers

replace = msgspec.structs.replace
TODAY = datetime(2025, 11, 30, 12, tzinfo=UTC)
OF_KIND = {"String": "concat({c}, 'x')", "Date": "{c} + 40", "DateTime64": "{c} + 1", "Nullable": "ifNull({c}, 0) + 1"}
OF_KIND |= {"UInt8": "1 - {c}", "Array": "arrayResize({c}, length({c}) + 1)"}


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


def said(n, conversation="conv_1"):
    """A message, its reply and its bill, in a conversation that has a name."""
    stored, billed = agreed(n)
    ids = {"conversation_id": conversation, "message_id": f"msg_{n}", "reply_id": f"rep_{n}"}
    sent = replace(
        EXAMPLES[e.MessageSubmitted],
        **ids,
        account_id=STORED.account_id,
        new_conversation=n % 10 == 0,
        content=f"m {n}",
    )
    renamed = replace(
        EXAMPLES[e.ConversationRenamed],
        conversation_id=conversation,
        account_id=STORED.account_id,
        title=f"title {n}",
        request_id=f"r{n}",
    )
    return sent, replace(stored, **ids), replace(billed, conversation_id=conversation), renamed


TABLES_OF_VIEWS = (
    "usage_records",
    "invoice_rows",
    "message_rows",
    "reply_rows",
    "generation_rows",
    "conversation_rows",
    "conversation_heads",
)


def shown(deployed, table):
    """What readers get of a table; of the roll-up what its view shows."""
    if table == "conversation_heads":
        return sorted(deployed.database.query("SELECT * FROM conversations"))
    return deployed.rows(table)


def test_each_table_that_a_view_reads_is_compared(deployed):
    found = catalogue(deployed.database)
    stored = {name for name, one in found.items() if one.engine.endswith("MergeTree")}
    views = [one for one in found.values() if one.is_view or one.engine == "MaterializedView"]
    read = set().union(*(view.reads(stored) for view in views))
    assert read == set(TABLES_OF_VIEWS)


def test_a_row_that_is_deleted_from_any_table_of_a_view_is_shown_and_repaired(deployed):
    deployed.append(*[event for n in range(40) for event in said(n, f"conv_{n // 10}")], EXAMPLES[e.PeriodClosed])
    deployed.project()
    outcome, found = run(deployed, replies=True)
    assert (found, outcome.left, outcome.replies_compared) == ([], 0, True)
    whole = {table: shown(deployed, table) for table in TABLES_OF_VIEWS}
    assert all(whole.values())
    for table in TABLES_OF_VIEWS:
        name, condition = {
            "usage_records": ("message_id", "= 'rep_7'"),
            "invoice_rows": ("line", "= 1"),
            "conversation_heads": ("conversation_id", "= 'conv_2'"),
            "conversation_rows": ("value", "= 'title 7'"),
            "message_rows": ("message_id", "= 'msg_7'"),
        }.get(table, ("reply_id", "= 'rep_7'"))
        deployed.database.erase(table, f"{name} {condition}")
        assert shown(deployed, table) != whole[table]
        _, found = run(deployed, replies=True)
        assert [one.kind for one in found if one.table == table] == ["missing"], table
        assert {one.table for one in found} <= {table, "replies"}, "a row of a bill, or of a reply, is missed twice"
        outcome, found = run(deployed, replies=True, repair=True)
        assert ([(one.table, one.kind) for one in found], outcome.left) == ([(table, "missing")], 0)
        assert shown(deployed, table) == whole[table]
        assert run(deployed, replies=True)[1] == []
    assert {table: shown(deployed, table) for table in TABLES_OF_VIEWS} == whole


@pytest.mark.parametrize("table", ["message_rows", "reply_rows", "generation_rows", "conversation_rows"])
def test_a_change_of_any_column_of_messages_is_shown_and_repaired(deployed, table):
    deployed.append(*[event for n in range(60) for event in said(n, f"conv_{n // 10}")])
    deployed.project()
    whole = shown(deployed, table)
    heads = shown(deployed, "conversation_heads")
    entry = catalogue(deployed.database)[table]
    tried = [column for column in entry.columns if column.name != "role"]
    key = {"message_rows": "message_id = 'msg_{}'", "conversation_rows": "value = 'title {}'"}
    rows = key.get(table, "reply_id = 'rep_{}'")
    tamper(deployed, table, [(column, rows.format(number)) for number, column in enumerate(tried, 1)])
    outcome, found = run(deployed, repair=True, replies=True)
    assert len([one for one in found if one.table == table]) >= len(tried)
    changed = {change.column for one in found if one.table == table for change in one.changes}
    kept = {"account_id", "conversation_id", "message_id", "reply_id", "kind", "log_offset", "ended_at"}
    assert changed | kept >= {column.name for column in tried}
    assert outcome.left == 0
    assert shown(deployed, table) == whole
    assert shown(deployed, "conversation_heads") == heads


def test_what_people_said_is_not_shown(deployed):
    deployed.append(*said(0))
    deployed.project()
    columns = {column.name: column for column in catalogue(deployed.database)["message_rows"].columns}
    tamper(deployed, "message_rows", [(columns["content"], "message_id = 'msg_0'")])
    _, found = run(deployed, replies=True)
    [change] = found[0].changes
    assert (change.column, change.live[:12], change.right[:12]) == ("content", "4 characters", "3 characters")


def test_an_event_that_an_earlier_version_of_the_code_wrote_is_no_difference(deployed):
    deployed.append(*said(0))
    deployed.project()
    older = r"replaceRegexpOne(event, '\\.v[0-9]+', '.v0')"
    deployed.database.command(
        f"INSERT INTO message_rows SELECT * REPLACE ({older} AS event) FROM message_rows FINAL WHERE event != ''"
    )
    deployed.database.command("OPTIMIZE TABLE message_rows FINAL")
    assert ".v0" in deployed.database.query("SELECT max(event) FROM message_rows FINAL")[0][0]
    assert run(deployed, replies=True)[1] == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_conversation_that_is_deleted_while_it_is_repaired_does_not_come_back(deployed, moment):
    deployed.append(*[event for n in range(20) for event in said(n, f"conv_{n // 10}")])
    deployed.project()
    kept = [row for row in deployed.rows("message_rows") if row[1] == "conv_1"]
    deployed.database.erase("message_rows", "message_id IN ('msg_3', 'msg_13')")
    deletion = replace(EXAMPLES[e.ConversationDeleted], conversation_id="conv_0", account_id=STORED.account_id)
    connect = deployed.connect

    class Then(Database):
        """The deletion is projected right before, or right after, the repair writes."""

        deleted = False

        def command(self, statement, *rest):
            now = statement.startswith("INSERT INTO message_rows (") and not Then.deleted
            Then.deleted |= now
            if now and moment == "before":
                self._delete()
            super().command(statement, *rest)
            if now and moment == "after":
                self._delete()

        def _delete(self):
            deployed.append(deletion)
            deployed.project()

    deployed.connect = lambda: Then(deployed.url, deployed.name, timeout_s=60)
    run(deployed, repair=True, replies=True)
    deployed.connect = connect
    assert Then.deleted
    assert [row for row in deployed.rows("message_rows") if row[1] == "conv_0"] == []
    assert deployed.database.query("SELECT conversation_id FROM conversations") == [("conv_1",)]
    assert [row for row in deployed.rows("message_rows") if row[1] == "conv_1"] == kept
    assert run(deployed, replies=True)[1] == []


def test_some_days_of_messages_are_enough_for_an_hourly_run(deployed):
    day_ms = 86_400_000
    old, new = [event for n in range(10) for event in said(n, "conv_0")], said(10, "conv_1")
    now_ms = int(TODAY.timestamp() * 1000)
    times = ("submitted_at_ms", "ended_at_ms", "renamed_at_ms")

    def at(event, time_ms):
        mine = {name: time_ms for name in times if name in type(event).__struct_fields__}
        day = {"usage_day": "2025-11-30"} if isinstance(event, e.UsageRecorded) else {}
        return replace(event, **mine, **day)

    deployed.log.now_ms = lambda: now_ms - 20 * day_ms
    deployed.append(*(at(one, now_ms - 20 * day_ms) for one in old if not isinstance(one, e.UsageRecorded)))
    deployed.log.now_ms = lambda: now_ms
    deployed.append(*(at(one, now_ms) for one in new))
    deployed.project()
    for table in ("message_rows", "reply_rows", "generation_rows"):
        deployed.database.erase(table, "reply_id IN ('rep_3', 'rep_10')")
    outcome, found = run(deployed, days=2, repair=True, replies=True)
    assert sorted((one.table, one.kind) for one in found) == [
        ("generation_rows", "missing"),
        ("message_rows", "missing"),
        ("message_rows", "missing"),
        ("reply_rows", "missing"),
    ]
    assert outcome.left == 0
    assert deployed.database.query("SELECT count() FROM generation_rows FINAL WHERE reply_id = 'rep_10'") == [(1,)]


def test_days_with_more_differences_than_fit_in_memory_at_once_are_looked_at_in_parts(deployed, monkeypatch):
    monkeypatch.setattr(compare, "ROWS_AT_ONCE", 7)
    deployed.append(*[replace(one, usage_day="2025-11-29") for one in stream(100)])
    deployed.project()
    whole = deployed.rows("usage_records")
    deployed.database.erase("usage_records", "output_tokens < 60")
    most = 0
    pairs = compare.pairs

    def counted(*arguments):
        nonlocal most
        found = pairs(*arguments)
        most = max(most, len(found))
        return found

    monkeypatch.setattr(tables, "pairs", counted)
    outcome, found = run(deployed, repair=True)
    assert (len(found), outcome.found, outcome.left) == (60, 60, 0)
    assert len({one.key for one in found}) == 60
    assert 0 < most < 30
    assert deployed.rows("usage_records") == whole


def test_a_log_that_disagrees_with_itself_is_told_and_cannot_be_repaired(deployed):
    stored, billed = agreed(1)
    deployed.append(stored, replace(billed, output_tokens=999), agreed(2)[0], agreed(3)[1])
    deployed.project()
    outcome, found = run(deployed, repair=True, replies=True)
    assert [(one.table, one.kind, one.key[1]) for one in found] == [
        ("replies", "differs", "rep_1"),
        ("replies", "no_bill", "rep_2"),
        ("replies", "no_reply", "rep_3"),
    ]
    assert outcome.left == 3


def test_a_deleted_conversation_keeps_its_bill_and_is_no_difference(deployed):
    stored, billed = agreed(1)
    deployed.append(stored, billed, replace(EXAMPLES[e.ConversationDeleted], conversation_id=stored.conversation_id))
    deployed.project()
    assert deployed.database.query("SELECT count() FROM reply_rows") == [(0,)]
    assert run(deployed, replies=True)[1] == []
    assert total(deployed.database)[0] == 1
