"""The views on the real server: totals that nothing can change that is not a new fact."""

import time
from decimal import Decimal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projections.clickhouse import migrations
from projections.clickhouse.client import ClickHouseUnavailable, Database
from projections.views.pace import Pace
from projections.views.step import Batch, ViewsStep
from projections.views.tables import TABLES
from schemas import events as e
from schemas.codec import Undecodable, hot_decode
from schemas.conversation import fold
from schemas.examples import ACCOUNT, CONVERSATION, EXAMPLES, MESSAGE, REPLY
from schemas.values import VoidAttempt
from streams.log.steps import Busy, Partition
from tests.projections.logs import AT_MS, arrived, fresh_namespace
from tests.schemas.strategies import AWKWARD

pytestmark = pytest.mark.servers

MESSAGES = Partition("messages", 0)
USAGE = Partition("usage", 0)
AT_ONCE = Pace(burst=1e9, per_s=1e9, left=1e9)
replace = msgspec.structs.replace


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
    """The database without rows."""
    for table in (*TABLES.values(), "conversation_heads"):
        database.command(f"TRUNCATE TABLE {table}")
    return database


def step_on(database, starts=None, **options):
    step = ViewsStep(database, Batch(**options), AT_ONCE)
    step.assigned(starts or {MESSAGES: 0, USAGE: 0})
    return step


def write(step, events, partition=MESSAGES, first=0):
    step.submit(arrived(events, partition, first), AT_MS)
    step.poll(AT_MS)
    assert not step.trouble


def usage(number, **changes):
    given = {"reply_id": f"rep_{number}", "cost": str(Decimal(number) / 10**6), "output_tokens": number} | changes
    return replace(EXAMPLES[e.UsageRecorded], **given)


def bill(database):
    """What the view says, and what the fold of the events says must be the same."""
    [row] = database.query("SELECT sum(records), sum(output_tokens), sum(cost) FROM billing")
    listed = database.query("SELECT count(), sum(output_tokens), sum(cost) FROM usage_records FINAL")
    assert listed == [row]
    return row


def folded(log):
    """The totals by a fold of the events: the highest revision of each record counts."""
    best = {}
    for event in log:
        identity = (event.reply_id, event.record_kind)
        if identity not in best or best[identity].revision <= event.revision:
            best[identity] = event
    costs = [Decimal(event.cost) for event in best.values()]
    return len(best), sum(event.output_tokens for event in best.values()), sum(costs, Decimal(0))


REPEATS = st.lists(st.tuples(st.integers(0, 14), st.integers(1, 15)), max_size=5)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REPEATS, st.integers(1, 15))
def test_batches_repeated_and_regrouped_leave_every_total_unchanged(empty, repeats, size):
    empty.command("TRUNCATE TABLE usage_records")
    log = [usage(n, usage_day=f"2025-1{n % 2}-15", account_id=f"a{n % 3}") for n in range(15)]
    for first in range(0, len(log), size):
        write(step_on(empty), log[first : first + size], USAGE, first)
    for first, count in repeats:
        write(step_on(empty), log[first : first + count], USAGE, first)
    assert bill(empty) == folded(log)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
def test_the_highest_revision_counts_in_any_order_and_in_one_group_only(empty, order):
    for at, revision in enumerate(order):
        changed = usage(7, revision=revision, model=f"m{revision}", tier="free", output_tokens=revision * 10)
        write(step_on(empty), [changed], USAGE, at)
    assert empty.query("SELECT model, records, output_tokens FROM billing") == [("m3", 1, 30)]


def test_a_refund_is_a_record_of_its_own(empty):
    charge = usage(5)
    refund = replace(EXAMPLES[e.UsageAdjusted], reply_id=charge.reply_id, cost=f"-{charge.cost}")
    write(step_on(empty), [charge, refund], USAGE)
    [(records, cost)] = empty.query("SELECT sum(records), sum(cost) FROM billing")
    assert (records, cost) == (2, Decimal(0))


def test_ten_thousand_distinct_records_of_one_flush_are_all_there(empty):
    log = [usage(n) for n in range(10_000)]
    step = step_on(empty)
    write(step, log, USAGE)
    assert step.counts.inserts == 1
    assert bill(empty) == folded(log)


def test_a_kill_between_insert_and_commit_leaves_totals_equal(empty):
    log = [usage(n) for n in range(30)]
    killed = step_on(empty)
    write(killed, log[:20], USAGE)  # its offsets were never committed
    write(step_on(empty), log, USAGE)
    assert bill(empty) == folded(log)


def test_deleting_rows_and_replaying_restores_them(empty):
    log = [usage(n) for n in range(20)]
    step = step_on(empty)
    write(step, log, USAGE)
    empty.command("DELETE FROM usage_records WHERE output_tokens < 11", settings={"lightweight_deletes_sync": "2"})
    assert bill(empty)[0] == 9
    step.assigned({USAGE: 0})
    write(step, log, USAGE)
    assert bill(empty) == folded(log)


def test_nothing_is_settled_before_its_rows_are_durable(servers, empty):
    away = Database("http://127.0.0.1:1", "nowhere", timeout_s=1)
    step = ViewsStep(away, Batch(waiting_rows_max=20), AT_ONCE)
    step.assigned({USAGE: 0, MESSAGES: 4})
    step.submit(arrived([usage(n) for n in range(30)], USAGE), AT_MS)
    for turn in range(3):
        step.poll(AT_MS + 20_000 * turn)
        assert step.trouble
        assert step.settled() == {USAGE: 0, MESSAGES: 4}
    with pytest.raises(Busy):
        step.submit(arrived([usage(31)], USAGE, 30), AT_MS)
    step._database = step._erasure._database = empty
    step.poll(AT_MS + 100_000)
    assert step.trouble == ""
    assert step.settled() == {USAGE: 30, MESSAGES: 4}
    assert bill(empty)[0] == 30


def test_tables_that_are_not_there_yet_are_waited_for(servers):
    database = Database(servers.clickhouse_url, fresh_namespace().replace("-", "_"))
    step = step_on(database)
    step.submit(arrived([usage(1)], USAGE), AT_MS)
    step.poll(AT_MS)
    assert "UNKNOWN_DATABASE" in step.trouble
    with pytest.raises(ClickHouseUnavailable):
        database.query("SELECT 1 FROM usage_records")


def test_a_value_that_no_column_can_hold_is_refused_with_its_place(empty):
    step = step_on(empty)
    batch = arrived([usage(1), usage(2, cost="much"), usage(3)], USAGE, 10)
    with pytest.raises(Undecodable) as refused:
        step.submit(batch, AT_MS)
    assert (refused.value.topic, refused.value.offset, refused.value.field) == ("usage", 11, "cost")
    step.submit([batch[0], batch[2]], AT_MS)
    step.poll(AT_MS)
    assert step.settled()[USAGE] == 13


def test_rows_wait_for_company_under_load_and_go_at_once_when_idle(empty):
    step = ViewsStep(empty, Batch(), Pace(left=1.0, at_ms=AT_MS))
    step.assigned({USAGE: 0})
    step.submit(arrived([usage(0)], USAGE), AT_MS)
    step.poll(AT_MS)
    assert step.settled() == {USAGE: 1}
    for number in range(1, 5):
        step.submit(arrived([usage(number)], USAGE, number), AT_MS + 100 * number)
        step.poll(AT_MS + 100 * number)
    assert (step.counts.inserts, step.settled()) == (1, {USAGE: 1})
    step.poll(AT_MS + 1_000)
    assert (step.counts.inserts, step.settled()) == (2, {USAGE: 5})


def test_draining_writes_what_waits(empty):
    step = ViewsStep(empty, Batch(), Pace(left=0.0, at_ms=AT_MS, per_s=0.0))
    step.assigned({USAGE: 0})
    step.submit(arrived([usage(0)], USAGE), AT_MS)
    step.poll(AT_MS)
    step.drain(10)
    assert step.settled() == {USAGE: 1}


def test_revoked_partitions_are_not_written(empty):
    step = ViewsStep(empty, Batch(), Pace(left=0.0, at_ms=AT_MS, per_s=0.0))
    step.assigned({USAGE: 0, MESSAGES: 0})
    step.submit(arrived([usage(0)], USAGE), AT_MS)
    step.revoked([USAGE])
    step.drain(10)
    assert bill(empty)[0] == 0
    assert step.settled() == {MESSAGES: 0}


STORY = [
    EXAMPLES[e.MessageSubmitted],
    EXAMPLES[e.ReplyStored],
    replace(EXAMPLES[e.RegenerationRequested], reply_id="rep_2", regenerated_id=REPLY),
    EXAMPLES[e.ConversationRenamed],
    EXAMPLES[e.BranchChosen],
    EXAMPLES[e.ConversationSummarised],
    replace(EXAMPLES[e.ReplyStored], reply_id="rep_2", text="Another answer."),
]


def loaded(database):
    """The conversation, folded from what the tables hold of it."""
    found = []
    for table in ("message_rows", "reply_rows", "conversation_rows"):
        found += database.query(
            f"SELECT log_offset, event FROM {table} FINAL WHERE account_id = %(a)s AND conversation_id = %(c)s "
            "AND event != ''",
            {"a": ACCOUNT, "c": CONVERSATION},
        )
    return fold(hot_decode(event.encode()) for _, event in sorted(found))


def test_a_conversation_is_the_same_from_the_tables_as_from_the_log(empty):
    write(step_on(empty), STORY)
    write(step_on(empty), STORY[1:4], first=1)
    write(step_on(empty), STORY, first=20)  # a repeated send, further on in the log
    assert loaded(empty) == fold([*STORY, *STORY])
    positions = empty.query("SELECT position, message_id, status, text FROM messages ORDER BY position")
    assert positions == [
        (1, MESSAGE, "completed", "What is a log?"),
        (2, REPLY, "completed", "A sequence that only grows."),
        (3, "rep_2", "completed", "Another answer."),
    ]
    conversation = fold(STORY)
    [(title, count, created, updated)] = empty.query(
        "SELECT title, message_count, toUnixTimestamp64Milli(created_at), toUnixTimestamp64Milli(updated_at) "
        "FROM conversations"
    )
    assert (title, count) == (conversation.title, 3)
    assert (created, updated) == (conversation.created_at_ms, conversation.updated_at_ms)


def test_a_conversation_without_a_title_has_its_first_line(empty):
    write(step_on(empty), STORY[:2])
    assert empty.query("SELECT title, message_count FROM conversations") == [("What is a log?", 2)]


def test_a_reply_that_has_not_ended_is_open(empty):
    write(step_on(empty), STORY[:1])
    assert empty.query("SELECT role, status, text FROM messages ORDER BY position") == [
        ("user", "completed", "What is a log?"),
        ("assistant", "open", ""),
    ]


VOIDS = (
    VoidAttempt(attempt=1, reason="worker_lost", worker="w1"),
    VoidAttempt(attempt=2, reason="overloaded", detail="north: HTTP 429"),
)


def test_the_views_tell_why_and_where_a_reply_began_again(empty):
    stored = replace(EXAMPLES[e.ReplyStored], attempt=3, void_attempts=VOIDS)
    step = step_on(empty)
    write(step, [EXAMPLES[e.MessageSubmitted], stored])
    write(step_on(empty), [EXAMPLES[e.MessageSubmitted], stored])
    select = "SELECT attempt, void_numbers, void_reasons, void_workers FROM generation_stats"
    assert empty.query(select) == [(3, [1, 2], ["worker_lost", "overloaded"], ["w1", ""])]
    shown = empty.query("SELECT role, attempts, void_reasons, void_details FROM messages ORDER BY position")
    assert shown == [
        ("user", 0, [], []),
        ("assistant", 3, ["worker_lost", "overloaded"], ["", "north: HTTP 429"]),
    ]
    write(step, [EXAMPLES[e.ConversationDeleted]], first=2)
    assert empty.query("SELECT * FROM messages") == []
    assert len(empty.query(select)) == 1, "numbers without content stay"


@pytest.mark.parametrize("content", [*AWKWARD, "x" * 262_144])
def test_text_comes_back_as_it_was(empty, content):
    submitted = replace(STORY[0], content=content)
    write(step_on(empty), [submitted, replace(STORY[1], text=content)])
    assert {text for (text,) in empty.query("SELECT text FROM messages")} == {content}
    assert loaded(empty) == fold([submitted, replace(STORY[1], text=content)])


def content_left(database):
    counts = [
        database.query("SELECT count() FROM message_rows"),
        database.query("SELECT count() FROM reply_rows"),
        database.query("SELECT count() FROM conversation_rows WHERE kind != 'deleted'"),
        database.query("SELECT count() FROM conversations"),
    ]
    return sum(rows[0][0] for rows in counts)


def test_a_deleted_conversation_leaves_nothing_but_its_deletion(empty):
    other = replace(STORY[0], conversation_id="conv_other", message_id="msg_other", reply_id="rep_other")
    write(step_on(empty), [*STORY, other])
    write(step_on(empty), [EXAMPLES[e.ConversationDeleted]], first=10)
    assert {row[0] for row in empty.query("SELECT conversation_id FROM message_rows")} == {"conv_other"}
    assert empty.query("SELECT conversation_id FROM conversations") == [("conv_other",)]
    assert empty.query("SELECT kind, value FROM conversation_rows") == [("deleted", "")]
    assert empty.query("SELECT count() FROM reply_rows") == [(0,)]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_reply_that_is_stored_after_the_deletion_is_not_kept(empty, restarted):
    deleted = replace(EXAMPLES[e.ConversationDeleted], deleted_at_ms=now_ms())
    step = step_on(empty)
    write(step, [STORY[0], deleted])
    if restarted:
        step = step_on(empty, {MESSAGES: 2})
    write(step, [STORY[1], STORY[3]], first=2)
    assert content_left(empty) == 0


def test_what_a_killed_process_left_of_a_deleted_conversation_is_erased_by_the_next(empty):
    deleted = replace(EXAMPLES[e.ConversationDeleted], deleted_at_ms=now_ms())
    write(step_on(empty), [deleted], first=5)
    late = step_on(empty)
    late._erasure._prepared = True  # a process that knew nothing of the deletion
    write(late, STORY[:2])
    assert content_left(empty) > 0
    write(step_on(empty), [usage(1)], USAGE)
    assert content_left(empty) == 0


def test_deletion_replayed_from_the_beginning_ends_the_same(empty):
    log = [*STORY, EXAMPLES[e.ConversationDeleted]]
    for size in (8, 3, 1):
        step = step_on(empty)
        for first in range(0, len(log), size):
            write(step, log[first : first + size], first=first)
        assert content_left(empty) == 0


def test_parts_stay_few_at_peak(empty):
    step = ViewsStep(empty, Batch(rows=500), Pace())
    step.assigned({USAGE: 0})
    for turn in range(60):
        step.submit(arrived([usage(turn * 500 + n) for n in range(500)], USAGE, turn * 500), AT_MS + turn * 20)
        step.poll(AT_MS + turn * 20)
    most = empty.query(
        "SELECT max(n) FROM (SELECT count() AS n FROM system.parts WHERE active AND database = currentDatabase() "
        "GROUP BY table, partition)"
    )
    assert most[0][0] < 300


def now_ms():
    return time.time_ns() // 1_000_000
