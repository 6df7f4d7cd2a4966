"""What analysts read: documented column by column, deduplicated in the view, and right."""

import re
from collections import Counter, defaultdict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from projections.clickhouse import migrations
from projections.clickhouse.client import Database
from projections.views.step import Batch, ViewsStep
from projections.views.tables import PROGRESS, TABLES
from schemas import events as e
from schemas.examples import EXAMPLES
from schemas.values import Timings
from tests.projections.analytics_world import AT_ONCE, MESSAGES, day, fill, world
from tests.projections.logs import AT_MS, arrived, fresh_namespace

pytestmark = pytest.mark.servers

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "analytics.md").read_text(encoding="utf-8")
QUERIES = dict(re.findall(r"```sql\n-- (\w+)\n(.*?)```", PAGE, re.DOTALL))
WORLD = world()
GIVEN = {
    "account": "acme",
    "month": "2025-10-01",
    "from": "2025-10-10",
    "to": "2025-11-10",
    "day": day(WORLD.usage[0].ended_at_ms),
    "conversation": WORLD.submitted[0].conversation_id,
    "period": "2025-10",
}
RAW = (*TABLES.values(), PROGRESS, "conversation_heads")


@pytest.fixture(scope="module")
def database(servers):
    """A database that holds the world."""
    name = fresh_namespace().replace("-", "_")
    migrations.apply(servers.clickhouse_url, name)
    made = Database(servers.clickhouse_url, name)
    fill(made, WORLD)
    yield made
    made.command(f"DROP DATABASE {name}")
    made.close()


def ask(database, statement, settings=""):
    """The rows of a statement with the values above for its parameters."""
    for name, value in GIVEN.items():
        statement = re.sub(rf"\{{{name}:((?:[^{{}}])+)\}}", rf"CAST('{value}' AS \1)", statement)
    return database.query(statement + settings)


def at(at_ms):
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def monday(at_ms):
    found = at(at_ms).date()
    return found - timedelta(days=found.weekday())


def of_days(first, behind):
    """Usage records of these days, as text."""
    return [one for one in WORLD.usage if first <= one.usage_day < behind]


def refunds_of_days(first, behind):
    return [one for one in WORLD.adjustments if first <= one.usage_day < behind]


def grouped(rows, key):
    groups = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return sorted(groups.items())


def cost(records):
    return sum((Decimal(one.cost) for one in records), Decimal(0))


def inputs(record):
    return (
        record.uncached_input_tokens
        + record.cache_read_input_tokens
        + record.cache_write_input_tokens
        + record.cache_write_long_input_tokens
    )


def bill_of_a_month():
    mine = [one for one in of_days("2025-10-01", "2025-11-01") if one.account_id == "acme"]
    refunds = [one for one in refunds_of_days("2025-10-01", "2025-11-01") if one.account_id == "acme"]
    lines = [("", "", "", "USD", len(refunds), 0, 0, 0, 0, cost(refunds))] if refunds else []
    for (model, tier, version), found in grouped(mine, lambda one: (one.model, one.tier, one.price_version)):
        lines.append(
            (
                model,
                tier,
                version,
                "USD",
                len(found),
                sum(one.uncached_input_tokens for one in found),
                sum(one.cache_read_input_tokens for one in found),
                sum(one.cache_write_input_tokens for one in found),
                sum(one.output_tokens for one in found),
                cost(found),
            )
        )
    return lines


def uncharged():
    found = grouped([one for one in of_days("2025-10-10", "2025-11-10") if not one.charged], lambda one: one.model)
    return [(model, len(records), sum(one.output_tokens for one in records)) for model, records in found]


def usage_by_day():
    everything = [*of_days("2025-10-10", "2025-11-10"), *refunds_of_days("2025-10-10", "2025-11-10")]
    lines = []
    for usage_day, found in grouped(everything, lambda one: one.usage_day):
        records = [one for one in found if isinstance(one, e.UsageRecorded)]
        lines.append(
            (
                date.fromisoformat(usage_day),
                len({one.account_id for one in found}),
                sum(one.record_kind == "reply" for one in records),
                sum(map(inputs, records)),
                sum(one.cache_read_input_tokens for one in records),
                sum(one.output_tokens for one in records),
                cost(found),
            )
        )
    return lines


def largest_accounts():
    everything = [*of_days("2025-10-10", "2025-11-10"), *refunds_of_days("2025-10-10", "2025-11-10")]
    lines = [
        (account, cost(found), sum(getattr(one, "output_tokens", 0) for one in found))
        for account, found in grouped(everything, lambda one: one.account_id)
    ]
    return sorted(lines, key=lambda line: (-line[1], line[0]))


def usage_by_hour():
    mine = [one for one in WORLD.usage if one.usage_day == GIVEN["day"]]
    mine += [one for one in WORLD.adjustments if one.usage_day == GIVEN["day"]]
    found = grouped(
        mine, lambda one: (one.ended_at_ms if isinstance(one, e.UsageRecorded) else one.adjusted_at_ms) // 3_600_000
    )
    return [
        (
            at(hour * 3_600_000).replace(tzinfo=None),
            sum(one.record_kind == "reply" for one in records),
            sum(getattr(one, "output_tokens", 0) for one in records),
        )
        for hour, records in found
    ]


def ended_between(first, behind):
    return [one for one in WORLD.replies if first <= day(one.ended_at_ms) < behind]


def quantile(values, share):
    """As `quantileExact` counts it."""
    ordered = sorted(value for value in values if value is not None)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None


def latency_by_model():
    lines = []
    mine = [one for one in ended_between("2025-10-10", "2025-11-10") if one.timings and one.timings.first_token_ms]
    for group, found in grouped(mine, lambda one: (one.model, one.pool, one.tier)):
        times = [one.timings for one in found]
        paces = [
            (one.timings.total_ms - one.timings.first_token_ms) / (one.usage.output_tokens - 1)
            for one in found
            if one.usage.output_tokens > 1
        ]
        rates = [1000 / pace for pace in paces if pace > 0]
        lines.append(
            (
                *group,
                len(found),
                quantile([one.queued_ms for one in times], 0.5),
                quantile([one.queued_ms for one in times], 0.95),
                quantile([one.first_token_ms for one in times], 0.5),
                quantile([one.first_token_ms for one in times], 0.95),
                pytest.approx(quantile(paces, 0.5), abs=1e-5),
                pytest.approx(quantile(rates, 0.5), abs=1e-5),
            )
        )
    return lines


def cached_share():
    lines = []
    for model, found in grouped(WORLD.replies, lambda one: one.model):
        cached = sum(one.usage.cached_input_tokens for one in found)
        read = sum(one.usage.input_tokens for one in found)
        lines.append((model, cached, read, pytest.approx(cached / read)))
    return lines


def failures_by_reason():
    found = []
    for reply in ended_between("2025-10-10", "2025-11-10"):
        found += [("attempt", void.reason, reply) for void in reply.void_attempts]
        if reply.error:
            found.append(("reply", reply.error.code, reply))
    return [
        (*group, len(rows), len({row[2].reply_id for row in rows}), sum(row[2].status == "completed" for row in rows))
        for group, rows in grouped(found, lambda row: row[:2])
    ]


def stopped_where():
    classes = Counter()
    for reply in WORLD.replies:
        if reply.status == "cancelled":
            digits = len(str(reply.usage.output_tokens)) if reply.usage.output_tokens else 0
            classes[digits] += 1
    names = {0: "0", 1: "1-9", 2: "10-99", 3: "100-999", 4: "1000-"}
    return [(names[digits], number) for digits, number in sorted(classes.items())]


def answered():
    """Replies by the message that they answer, in order of time."""
    by_message = defaultdict(list)
    for reply in sorted(WORLD.replies, key=lambda one: one.submitted_at_ms):
        by_message[reply.message_id].append(reply)
    return by_message


def asked_again():
    found = [replies for replies in answered().values() if len(replies) > 1]
    return [
        (*models, len(rows), sum(map(len, rows)))
        for models, rows in grouped(found, lambda replies: (replies[0].model, replies[-1].model))
    ]


def accounts():
    lines = []
    for account, found in grouped(WORLD.replies, lambda one: one.account_id):
        asked = {one.message_id for one in found}
        lines.append(
            (
                account,
                len({day(one.ended_at_ms) for one in found}),
                len({one.conversation_id for one in found}),
                len(asked),
                len(found),
                len(found) - len(asked),
                sum(one.status == "cancelled" for one in found),
                sum(one.status in ("failed", "refused") for one in found),
            )
        )
    return sorted(lines, key=lambda line: (-line[4], line[0]))


def weeks_of_accounts():
    return {
        account: sorted({monday(one.ended_at_ms) for one in found})
        for account, found in grouped(WORLD.replies, lambda one: one.account_id)
    }


def who_comes_back():
    weeks = weeks_of_accounts()
    sizes = Counter(found[0] for found in weeks.values())
    there = Counter((found[0], (week - found[0]).days // 7) for found in weeks.values() for week in found)
    return [(cohort, after, number, sizes[cohort]) for (cohort, after), number in sorted(there.items())]


def how_far():
    reached = Counter()
    for _, found in grouped(WORLD.replies, lambda one: one.account_id):
        steps = (
            True,
            any(one.status in ("completed", "length") for one in found),
            len({one.message_id for one in found}) > 1,
            len({one.conversation_id for one in found}) > 1,
            len({day(one.ended_at_ms) for one in found}) > 1,
        )
        for step in range(1, 6):
            reached[step] += all(steps[:step])
    names = ("sent a message", "got an answer", "sent another", "began another conversation", "came back another day")
    return [(step, names[step - 1], reached[step]) for step in range(1, 6)]


def a_conversation():
    lines = []
    for event in WORLD.messages:
        if event.conversation_id == GIVEN["conversation"] and not isinstance(event, e.ReplyStored):
            if isinstance(event, e.MessageSubmitted):
                lines.append(("user", "completed", event.content))
            [reply] = [one for one in WORLD.replies if one.reply_id == event.reply_id]
            lines.append(("assistant", reply.status, reply.text))
    return [(position, *line) for position, line in enumerate(lines, 1)]


def closed_bill():
    total = sum((Decimal(line.amount) for line in WORLD.closed.lines), Decimal(0))
    return [
        (number, line.description, line.model, Decimal(line.amount), total)
        for number, line in enumerate(WORLD.closed.lines, 1)
    ]


ANSWERS = {
    answer.__name__: answer
    for answer in (
        bill_of_a_month,
        uncharged,
        usage_by_day,
        largest_accounts,
        usage_by_hour,
        latency_by_model,
        cached_share,
        failures_by_reason,
        stopped_where,
        asked_again,
        accounts,
        who_comes_back,
        how_far,
        a_conversation,
        closed_bill,
    )
}


def test_every_query_of_the_page_has_an_answer_here():
    assert set(QUERIES) == set(ANSWERS)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_query_of_the_page_is_answered_as_the_events_say(database, name):
    expected = ANSWERS[name]()
    assert len(expected) > 1, "the world is too small for this question"
    assert ask(database, QUERIES[name]) == expected


def views_of(database):
    return dict(
        database.query(
            "SELECT name, create_table_query FROM system.tables "
            "WHERE database = currentDatabase() AND engine = 'View' ORDER BY name"
        )
    )


def test_the_page_describes_each_view_column_by_column(database):
    described = {
        view: re.findall(r"^\| `(\w+)` \| (.+?) \| .+? \|$", text, re.MULTILINE)
        for view, text in re.findall(r"^### `(\w+)`\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    }
    found = defaultdict(list)
    for view, name, kind in database.query(
        "SELECT table, name, type FROM system.columns WHERE database = currentDatabase() "
        "AND table IN (SELECT name FROM system.tables WHERE database = currentDatabase() AND engine = 'View') "
        "ORDER BY table, position"
    ):
        found[view].append((name, kind))
    assert described == dict(found)


def test_each_view_says_what_it_is_and_reads_with_the_rights_of_its_maker(database):
    views = views_of(database)
    comments = dict(database.query("SELECT name, comment FROM system.tables WHERE database = currentDatabase()"))
    for view, statement in views.items():
        assert len(comments[view]) > 20, view
        assert "SQL SECURITY DEFINER" in statement, view


NEWEST = (
    "FROM {0}.usage_records ORDER BY account_id ASC, usage_day ASC, message_id ASC, record_kind ASC, version DESC "
    "LIMIT 1 BY account_id, usage_day, message_id, record_kind"
)
"""The newest of each whole sort key: as good as FINAL."""


def test_each_view_reads_raw_tables_deduplicated(database):
    """All but `conversation_heads`, whose columns are functions that duplicates do not change."""
    for view, written in views_of(database).items():
        name = written.split(" ", 3)[2].split(".")[0]
        statement = re.sub(r"\s+", " ", written)
        if view == "usage_hourly":
            assert NEWEST.format(name) in statement
            continue
        for table in set(RAW) - {"conversation_heads"}:
            read = re.findall(rf"(?:FROM|JOIN) {name}\.{table}\b( AS \w+)? FINAL", statement)
            assert len(read) == len(re.findall(rf"\b{name}\.{table}\b", statement)), (view, table)


def test_no_setting_of_a_reader_makes_a_view_count_twice_or_show_what_was_replaced(database):
    """A reader may move conditions before the deduplication, or skip it between months: not here."""
    bad = (
        " SETTINGS optimize_move_to_prewhere_if_final = 1, do_not_merge_across_partitions_select_final = 1, "
        "use_skip_indexes_if_final = 1, use_skip_indexes_if_final_exact_mode = 0, final = 0"
    )
    for model in ("small", "large", "other"):
        for view in ("billing", "usage_daily", "usage_hourly"):
            statement = f"SELECT sum(records), sum(output_tokens), sum(cost) FROM {view} WHERE model = '{model}'"
            mine = [one for one in WORLD.usage if one.model == model]
            expected = (len(mine), sum(one.output_tokens for one in mine), cost(mine))
            assert ask(database, statement) == [expected]
            assert ask(database, statement, bad) == [expected]


def test_what_is_listed_is_what_is_billed(database):
    totals = "sum(records), sum(output_tokens), sum(cost)"
    everything = [*WORLD.usage, *WORLD.adjustments]
    expected = (len(everything), sum(one.output_tokens for one in WORLD.usage), cost(everything))
    for view in ("billing", "usage_daily", "usage_hourly"):
        assert database.query(f"SELECT {totals} FROM {view}") == [expected], view
    listed = "SELECT count(), sum(output_tokens), sum(cost) FROM usage_records FINAL"
    assert database.query(listed) == [expected]


def test_replies_of_a_deleted_conversation_stay_as_numbers_only(servers):
    name = fresh_namespace().replace("-", "_")
    migrations.apply(servers.clickhouse_url, name)
    database = Database(servers.clickhouse_url, name)
    reply, deleted = EXAMPLES[e.ReplyStored], EXAMPLES[e.ConversationDeleted]
    late = msgspec.structs.replace(
        reply, reply_id="rep_late", timings=Timings(queued_ms=1, first_token_ms=2, total_ms=3)
    )
    step = ViewsStep(database, Batch(), AT_ONCE)
    step.assigned({MESSAGES: 0})
    for offset, event in enumerate((EXAMPLES[e.MessageSubmitted], reply, deleted, late)):
        step.submit(arrived([event], MESSAGES, offset), AT_MS)
        step.poll(AT_MS)
    assert database.query("SELECT count() FROM messages") == [(0,)]
    assert database.query("SELECT count(), sum(total_ms) FROM generation_stats") == [(2, 233)]
    columns = database.query(
        "SELECT name FROM system.columns WHERE database = currentDatabase() AND table = 'generation_rows'"
    )
    assert not {"text", "content", "event", "title", "error_detail"} & {column for (column,) in columns}
    database.command(f"DROP DATABASE {name}")
