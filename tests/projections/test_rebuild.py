"""Rebuilding on a real ClickHouse, from a log in memory: complete, exact, resumable, and no reader sees a gap."""

import msgspec
import pytest

from projections.archive.export import export
from projections.archive.history import Missing
from projections.clickhouse import migrations
from projections.clickhouse.beside import catalogue
from projections.clickhouse.client import Database
from projections.rebuild.plan import NoSuchView, plan_of
from projections.rebuild.rebuild import Changed, Compared, Difference, Options, abort, rebuild
from projections.rebuild.state import UnderWay
from projections.views.rows import rows
from projections.views.step import Batch, ViewsStep
from schemas import events as e
from schemas.examples import EXAMPLES
from streams.log.encoding import decoded
from streams.log.memory import MemoryLog
from streams.log.steps import Arrived, Output, Partition
from tests.projections.logs import AT_MS, fresh_namespace
from tests.projections.test_views_step import AT_ONCE, STORY, usage

pytestmark = pytest.mark.servers

replace = msgspec.structs.replace
CONTENT = ("message_rows", "reply_rows", "conversation_rows")


class Deployment:
    """A database with tables, a log, and the projection between them, by hand."""

    def __init__(self, url):
        self.url = url
        self.name = fresh_namespace().replace("-", "_")
        migrations.apply(url, self.name)
        self.database = self.connect()
        self.log = MemoryLog({"usage": 2, "messages": 2}, real_time=False)
        self.writer = self.log.writer("test")
        self.step = ViewsStep(self.connect(), Batch(), AT_ONCE)
        self.positions = {Partition(t, n): 0 for t in ("usage", "messages") for n in range(2)}
        self.step.assigned(self.positions)
        self.told = []

    def connect(self):
        return Database(self.url, self.name, timeout_s=60)

    def append(self, *events):
        for event in events:
            self.writer.append(Output(event=event))

    def project(self):
        """The projection catches up."""
        reader = self.log.reader(list(self.positions), _beginning())
        reader.seek(self.positions)
        records = reader.poll(0)
        self.positions = reader.positions()
        self.step.submit([Arrived(record, decoded(record)) for record in records], AT_MS)
        self.step.poll(AT_MS)
        assert not self.step.trouble

    def rebuild(self, view="billing", **options):
        self.told = []
        return rebuild(self.log, self.connect, view, Options(**options), self.told.append)

    def rows(self, table):
        return sorted(self.database.query(f"SELECT * FROM {table} FINAL"), key=repr)

    def left_over(self):
        return sorted(name for name in catalogue(self.database) if "__" in name)

    def differences(self):
        return [(one.table, one.kind, one.pair.key[-2:]) for one in self.told if isinstance(one, Difference)]


def _beginning():
    from streams.log.log import BEGINNING

    return BEGINNING


@pytest.fixture
def deployed(servers):
    """A deployment of the test's own."""
    made = Deployment(servers.clickhouse_url)
    yield made
    made.database.command(f"DROP DATABASE {made.name}")


def stream(count, accounts=7):
    return [
        usage(n, account_id=f"a{n % accounts}", usage_day=f"2024-{1 + n % 12:02}-15", output_tokens=n)
        for n in range(count)
    ]


def total(database):
    return database.query("SELECT sum(records), sum(output_tokens), sum(cost) FROM billing")[0]


def test_what_is_behind_each_view_is_known(deployed):
    found = catalogue(deployed.database)
    assert plan_of("billing", found).tables == ("usage_records",)
    assert plan_of("invoice_lines", found).tables == ("invoice_rows",)
    for view in ("messages", "conversations", "conversation_heads", "reply_rows"):
        plan = plan_of(view, found)
        assert plan.tables == ("conversation_rows", "message_rows", "reply_rows")
        assert plan.derived == ("conversation_heads",)
        assert len(plan.feeders) == 3
    for name in ("progress", "schema_migrations", "nothing"):
        with pytest.raises(NoSuchView, match="billing"):
            plan_of(name, found)


def test_deleted_and_changed_rows_are_as_the_log_says_again(deployed):
    deployed.append(*stream(50), *stream(20), *[replace(one, revision=2, output_tokens=1) for one in stream(5)])
    deployed.project()
    before, whole = total(deployed.database), deployed.rows("usage_records")
    deployed.database.erase("usage_records", "output_tokens BETWEEN 10 AND 19")
    forged = replace(usage(999), account_id="a1")
    deployed.database.insert("usage_records", rows(_envelope(forged), 0, 10_000))
    done = deployed.rebuild()
    assert (done.exchanged, done.loaded.records) == (True, 75)
    assert total(deployed.database) == before
    assert deployed.rows("usage_records") == whole
    kinds = [kind for _, kind, _ in deployed.differences()]
    assert (kinds.count("missing"), kinds.count("extra")) == (10, 1)
    assert deployed.left_over() == []
    deployed.rebuild()
    assert deployed.differences() == []
    assert [one for one in deployed.told if isinstance(one, Compared)] == [
        Compared(table="usage_records", rows=50, new_rows=50)
    ]


def test_the_projection_goes_on_writing_and_nothing_it_wrote_is_missing_before_or_after(deployed):
    deployed.append(*stream(40))
    deployed.project()
    reads, writes = [], []

    class Watched(Database):
        def command(self, statement, *rest):
            if statement.startswith("EXCHANGE"):
                self._write()
                before = total(self)
                super().command(statement, *rest)
                assert total(self) == before
                self._write()
            else:
                super().command(statement, *rest)
            reads.append(total(self))

        def _write(self):
            writes.append(len(reads))
            deployed.append(*[replace(one, reply_id=f"late_{len(writes)}_{one.reply_id}") for one in stream(10)])
            deployed.project()

    deployed.connect = lambda: Watched(deployed.url, deployed.name, timeout_s=60)
    deployed.rebuild()
    assert [read[0] for read in reads] == sorted(read[0] for read in reads)
    assert total(deployed.database)[0] == 60
    assert deployed.left_over() == []


class Killed(Exception):
    """Of the test."""


class Mortal(Database):
    """A connection of a process that is killed before or after its Nth statement that changes something."""

    left = 10**9

    def _die(self, work):
        Mortal.left -= 1
        if Mortal.left == 0:
            raise Killed
        work()
        Mortal.left -= 1
        if Mortal.left == 0:
            raise Killed

    def insert_block(self, table, block):
        self._die(lambda: super(Mortal, self).insert_block(table, block))

    def command(self, statement, *rest):
        self._die(lambda: super(Mortal, self).command(statement, *rest))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("view", "stride"), [("billing", 3), ("messages", 11)])
def test_killed_before_or_after_a_statement_it_goes_on_and_ends_the_same(deployed, view, stride):
    """A stride of 1 is every moment."""
    other = [replace(one, conversation_id="conv_2", **_ids(one, "2")) for one in STORY]
    deployed.append(*stream(30), *STORY, *other, replace(EXAMPLES[e.ConversationDeleted], conversation_id="conv_2"))
    deployed.project()
    tables = ("usage_records",) if view == "billing" else CONTENT
    whole = {table: deployed.rows(table) for table in tables}
    heads = deployed.database.query("SELECT * FROM conversations")
    connect = deployed.connect
    deployed.connect = lambda: Mortal(deployed.url, deployed.name, timeout_s=60)
    kills = 0
    while True:
        for table in tables:
            deployed.database.erase(table, "log_partition = 0")
        Mortal.left = kills * stride + 1
        try:
            deployed.rebuild(view, batch_rows=10)
        except Killed:
            kills += 1
        else:
            break
        Mortal.left = 10**9
        deployed.rebuild(view, batch_rows=10)
        assert {table: deployed.rows(table) for table in tables} == whole, f"killed at {kills * stride}"
        assert deployed.database.query("SELECT * FROM conversations") == heads
        assert deployed.left_over() == []
    assert kills * stride > 25
    deployed.connect = connect


def _ids(event, suffix):
    names = {"message_id", "reply_id"} & set(type(event).__struct_fields__)
    return {name: getattr(event, name) + suffix for name in names}


def _envelope(event):
    from schemas.codec import Envelope

    return Envelope(event=event, source="test")


def test_a_second_rebuild_is_refused_while_one_runs_and_abort_removes_all(deployed):
    deployed.append(*stream(10))
    deployed.project()
    deployed.connect = lambda: Mortal(deployed.url, deployed.name, timeout_s=60)
    Mortal.left = 9
    with pytest.raises(Killed):
        deployed.rebuild()
    Mortal.left = 10**9
    assert deployed.left_over() != []
    state = "rebuild__usage_records"
    deployed.database.command(f"INSERT INTO {state} (fact, value) VALUES ('owner', 'elsewhere 1 1.00')")
    with pytest.raises(UnderWay, match="--take-over"):
        deployed.rebuild()
    with pytest.raises(UnderWay, match="elsewhere"):
        abort(deployed.database, "billing")
    before = total(deployed.database)
    assert abort(deployed.database, "billing", take_over=True)
    assert not abort(deployed.database, "billing")
    assert deployed.left_over() == []
    assert total(deployed.database) == before


def test_a_migration_in_the_middle_is_noticed_and_a_rebuild_after_it_has_its_columns(deployed):
    deployed.append(*stream(10))
    deployed.project()
    deployed.connect = lambda: Mortal(deployed.url, deployed.name, timeout_s=60)
    Mortal.left = 17
    with pytest.raises(Killed):
        deployed.rebuild()
    Mortal.left = 10**9
    deployed.database.command("ALTER TABLE usage_records ADD COLUMN more String DEFAULT concat('m-', model)")
    with pytest.raises(Changed, match="--abort"):
        deployed.rebuild()
    abort(deployed.database, "billing")
    deployed.rebuild()
    assert deployed.database.query("SELECT DISTINCT more FROM usage_records") == [("m-smollm2-135m-instruct",)]
    assert total(deployed.database)[0] == 10


@pytest.mark.parametrize("view", ["generation_stats", "failures"])
def test_a_table_that_is_sorted_by_an_expression_is_compared_by_its_columns(deployed, view):
    stored = EXAMPLES[e.ReplyStored]
    deployed.append(*(replace(stored, reply_id=f"rep_{n}", final_offset=n) for n in range(10)))
    deployed.project()
    whole = deployed.rows("generation_rows")
    deployed.database.erase("generation_rows", "final_offset = 3")
    assert deployed.rebuild(view).exchanged
    assert [kind for table, kind, _ in deployed.differences() if table == "generation_rows"] == ["missing"]
    assert deployed.rows("generation_rows") == whole


def test_a_check_only_exchanges_nothing(deployed):
    deployed.append(*stream(10))
    deployed.project()
    deployed.database.erase("usage_records", "output_tokens = 3")
    assert not deployed.rebuild(check_only=True).exchanged
    assert [kind for _, kind, _ in deployed.differences()] == ["missing"]
    assert total(deployed.database)[0] == 9
    assert deployed.left_over() == []


def test_what_the_log_has_lost_comes_from_the_archive_and_a_gap_is_named(deployed, tmp_path):
    deployed.append(*stream(60))
    deployed.project()
    whole = deployed.rows("usage_records")
    ends = {n: len([r for r in deployed.log.records("usage") if r.partition == n]) for n in range(2)}
    assert min(ends.values()) > 10
    export(deployed.log, "usage", tmp_path, deployed.database)
    deployed.append(*[replace(one, reply_id=f"x{one.reply_id}") for one in stream(20)])
    deployed.project()
    for number, end in ends.items():
        deployed.log.cut(Partition("usage", number), end - 5)
    deployed.database.command("TRUNCATE TABLE usage_records")
    with pytest.raises(Missing, match=r"usage\[0\]: offsets 0 to \d+ are not in the log any more"):
        deployed.rebuild()
    deployed.rebuild(archive=tmp_path)
    assert [row for row in deployed.rows("usage_records") if not row[2].startswith("x")] == whole
    assert total(deployed.database)[0] == 80
    newer = sum(1 for r in deployed.log.records("usage") if r.partition == 0 and r.offset >= ends[0])
    assert newer > 3
    deployed.log.cut(Partition("usage", 0), ends[0] + 3)
    with pytest.raises(Missing, match=rf"offsets {ends[0]} to {ends[0] + 2} are not in the log"):
        deployed.rebuild(archive=tmp_path)
    abort(deployed.database, "billing")
    assert total(deployed.database)[0] == 80
