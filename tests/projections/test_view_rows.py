"""Which rows an event gives, and which events no row can hold."""

import contextlib
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.views.columns import Unstorable
from projections.views.pace import Pace
from projections.views.rows import rows
from projections.views.tables import TABLES, Void
from schemas import events as e
from schemas.codec import Envelope, hot_decode
from schemas.examples import EXAMPLES
from schemas.invoice import REVISION_MAX, held_of
from schemas.values import VoidAttempt
from tests.schemas.strategies import events


def made(event, offset=7, **changes):
    changed = msgspec.structs.replace(event, **changes) if changes else event
    return rows(Envelope(event=changed, source="test"), 3, offset)


def test_a_submission_gives_its_message_and_the_place_of_its_reply():
    event = EXAMPLES[e.MessageSubmitted]
    user, reply = made(event)
    assert (user.message_id, user.role, user.content, user.sub) == (event.message_id, "user", event.content, 0)
    assert (reply.message_id, reply.role, reply.parent_id, reply.sub) == (
        event.reply_id,
        "assistant",
        event.message_id,
        1,
    )
    assert hot_decode(user.event.encode()) == event
    assert reply.event == ""
    assert user.title == "What is a log?"
    assert user.version == reply.version == 2**63 - 1 - 7
    assert user.submitted_at == "1764434400.123"
    assert user.sampling == '{"max_output_tokens":512,"temperature":0.7,"seed":42,"stop":["\\n\\n"]}'


def test_an_earlier_occurrence_has_the_higher_version():
    event = EXAMPLES[e.ReplyStored]
    assert made(event, offset=4)[0].version > made(event, offset=5)[0].version


@pytest.mark.parametrize("cls", [e.UsageRecorded, e.UsageAdjusted])
def test_of_a_record_of_usage_the_highest_revision_wins_and_of_equal_ones_the_first(cls):
    def version(revision, offset):
        [row] = made(EXAMPLES[cls], offset=offset, revision=revision)
        assert row.revision == revision
        return row.version

    assert version(2, 2**43 - 1) > version(1, 0) > version(1, 1) > version(0, 0)
    assert 0 <= version(0, 2**43 - 1) < version(REVISION_MAX, 0) < 2**63
    with pytest.raises(Unstorable, match="revision"):
        version(REVISION_MAX + 1, 0)


def test_a_reply_has_the_attempts_that_came_to_nothing():
    voids = (VoidAttempt(attempt=1, reason="worker_lost", worker="w1"), VoidAttempt(attempt=2, reason="overloaded"))
    row, numbers = made(EXAMPLES[e.ReplyStored], void_attempts=voids)
    assert row.void_attempts == numbers.void_attempts == (Void(1, "worker_lost", "w1"), Void(2, "overloaded", ""))
    assert row.void_details == (), "nothing was said of them"
    said, numbers = made(
        EXAMPLES[e.ReplyStored], void_attempts=(*voids, VoidAttempt(attempt=3, reason="r", detail="d"))
    )
    assert said.void_details == ("", "", "d")
    assert b'"d"' not in msgspec.json.encode(numbers), "it may repeat some of the prompt"
    with pytest.raises(Unstorable, match="void_attempts"):
        made(EXAMPLES[e.ReplyStored], void_attempts=(VoidAttempt(attempt=2**32, reason="r"),))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"usage_day": "2025-02-30"}, "usage_day"),
        ({"usage_day": "20250228"}, "usage_day"),
        ({"usage_day": "1969-12-31"}, "usage_day"),
        ({"cost": "NaN"}, "cost"),
        ({"cost": "1e-13"}, "cost"),
        ({"cost": "1e26"}, "cost"),
        ({"cost": "dear"}, "cost"),
        ({"output_tokens": 2**63}, "output_tokens"),
        ({"attempts": -1}, "attempts"),
        ({"ended_at_ms": -1}, "ended_at_ms"),
    ],
)
def test_what_no_column_can_hold_is_refused_by_name(changes, field):
    with pytest.raises(Unstorable) as refused:
        made(EXAMPLES[e.UsageRecorded], **changes)
    assert refused.value.field == field


@given(st.decimals(min_value=-(10**25), max_value=10**25, places=12))
def test_any_amount_of_money_that_fits_is_kept_exactly(cost):
    [row] = made(EXAMPLES[e.UsageRecorded], cost=str(cost))
    assert Decimal(row.cost) == cost


NUMBERS = [
    (cls, name)
    for cls in (e.UsageRecorded, e.UsageAdjusted)
    for name in cls.__struct_fields__
    if isinstance(getattr(EXAMPLES[cls], name), int)
]
EDGES = (-1, 0, 1, 2**20 - 1, 2**20, 2**32 - 1, 2**32, 9_000_000_000_000, 9_000_000_000_001, 2**63 - 1, 2**63)


@pytest.mark.parametrize("value", EDGES)
@pytest.mark.parametrize(("cls", "name"), NUMBERS)
def test_what_no_column_can_hold_is_on_no_bill_either(cls, name, value):
    event = msgspec.structs.replace(EXAMPLES[cls], **{name: value})
    try:
        rows(Envelope(event=event, source="test"), 0, 0)
    except Unstorable:
        assert held_of(event) is None
    else:
        assert held_of(event) is not None


def test_a_closed_bill_without_lines_is_a_row_and_one_of_no_month_is_none():
    [row] = made(EXAMPLES[e.PeriodClosed], lines=())
    assert (row.period, row.line, row.amount) == ("2025-11", 0, "0")
    for period in ("zz", "2025-13", "2025-1", ""):
        with pytest.raises(Unstorable, match="period"):
            made(EXAMPLES[e.PeriodClosed], period=period)


@given(events())
def test_any_event_gives_rows_or_is_refused(event):
    with contextlib.suppress(Unstorable):
        assert all(type(row) in TABLES for row in rows(Envelope(event=event, source="test"), 0, 0))


@given(st.lists(st.integers(0, 500), min_size=1, max_size=200))
def test_inserts_keep_to_one_a_second_on_average_after_a_burst(gaps_ms):
    pace, now_ms, done = Pace(), 0, 0
    for gap_ms in gaps_ms:
        now_ms += gap_ms
        pace = pace.passed(now_ms)
        if pace.allows:
            pace, done = pace.spent(), done + 1
    assert done <= 5 + now_ms / 1000


def test_after_a_second_of_rest_the_next_insert_is_due_at_once():
    pace = Pace(left=0.0, at_ms=0)
    assert not pace.passed(900).allows
    assert pace.passed(1_000).allows
