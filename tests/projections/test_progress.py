"""How far the views say that they are: never further than every row of every table."""

import pytest

from projections.clickhouse.client import ClickHouseUnavailable
from projections.views.step import Batch, ViewsStep
from schemas import events as e
from schemas.examples import CONVERSATION, EXAMPLES
from streams.log.steps import Partition
from tests.projections.logs import AT_MS, arrived
from tests.projections.test_views_step import AT_ONCE, MESSAGES, STORY, USAGE, database, replace, step_on, usage, write

__all__ = ["database"]

pytestmark = pytest.mark.servers

TABLES = ("message_rows", "reply_rows", "conversation_rows", "conversation_heads", "usage_records", "progress")


@pytest.fixture
def clean(database):
    """The database without rows."""
    for table in TABLES:
        database.command(f"TRUNCATE TABLE {table}")
    return database


def progress(database, topic="messages"):
    found = database.query(
        "SELECT log_partition, toInt64(max(next_offset)) FROM progress WHERE topic = %(t)s GROUP BY log_partition",
        {"t": topic},
    )
    return dict(found)


class Failing:
    """A database that one table cannot be written in."""

    def __init__(self, database, table):
        self._database = database
        self.table = table

    def insert(self, table, rows):
        if rows and table == self.table:
            raise ClickHouseUnavailable(f"{table} cannot be written")
        self._database.insert(table, rows)

    def __getattr__(self, name):
        return getattr(self._database, name)


def test_an_assignment_is_told_and_then_each_flush(clean):
    other = Partition("messages", 3)
    step = step_on(clean, {MESSAGES: 7, other: 40, USAGE: 5})
    step.poll(AT_MS)
    assert progress(clean) == {0: 7, 3: 40}
    assert progress(clean, "usage") == {0: 5}
    write(step, STORY, first=10)
    assert progress(clean) == {0: 10 + len(STORY), 3: 40}
    write(step, [usage(1)], USAGE, 5)
    assert progress(clean, "usage") == {0: 6}
    assert step.settled() == {MESSAGES: 17, other: 40, USAGE: 6}


@pytest.mark.parametrize("table", ["message_rows", "reply_rows", "conversation_rows", "progress"])
def test_it_does_not_go_on_while_a_table_lacks_rows(clean, table):
    failing = Failing(clean, table)
    step = ViewsStep(failing, Batch(), AT_ONCE)
    step.assigned({MESSAGES: 0})
    failing.table = ""
    write(step, STORY[:1])
    failing.table = table
    step.submit(arrived([replace(STORY[0], message_id="m", reply_id="r"), *STORY[1:]], MESSAGES, 1), AT_MS)
    step.poll(AT_MS)
    assert step.trouble
    assert progress(clean) == {0: 1}
    assert step.settled() == {MESSAGES: 1}
    successor = step_on(clean, {MESSAGES: 1})
    successor.poll(AT_MS)
    assert progress(clean) == {0: 1}
    failing.table = ""
    step.poll(AT_MS + 20_000)
    assert progress(clean) == {0: 1 + len(STORY)}


def test_going_back_does_not_take_back_what_is_there(clean):
    write(step_on(clean), STORY)
    write(step_on(clean), STORY[:2])
    clean.command("OPTIMIZE TABLE progress FINAL")
    assert progress(clean) == {0: len(STORY)}


def test_a_deletion_is_told_with_its_row(clean):
    step = step_on(clean)
    write(step, [*STORY, EXAMPLES[e.ConversationDeleted]])
    assert progress(clean) == {0: len(STORY) + 1}
    assert clean.query("SELECT kind, log_offset FROM conversation_rows") == [("deleted", len(STORY))]


def test_what_is_new_is_found_without_reading_what_is_old(clean):
    many = [
        replace(STORY[0], conversation_id=f"conv_{n}", message_id=f"msg_{n}", reply_id=f"rep_{n}")
        for n in range(20_000)
    ]
    write(step_on(clean, rows=100_000), many)
    clean.command("OPTIMIZE TABLE message_rows FINAL")
    write(step_on(clean), STORY[:1], first=20_000)
    plan = clean.query(
        f"EXPLAIN indexes = 1 SELECT event FROM message_rows WHERE conversation_id IN ('conv_3', '{CONVERSATION}') AND "
        "((log_partition = 0 AND log_offset >= 20000 AND log_offset < 20001) "
        "OR (log_partition = 3 AND log_offset >= 30000 AND log_offset < 30001))"
    )
    text = "\n".join(line for (line,) in plan)
    assert "Name: log_offsets" in text, text
    assert "Parts: 1 | Granules: 1\n" in text, text
