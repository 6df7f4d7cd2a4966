"""Without any one of its guards the projection bills wrongly, and the checker says so within a few histories."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import pytest

from projections.clickhouse.client import ClickHouseUnavailable
from projections.views import rows as rows_module
from projections.views.step import ViewsStep
from tests.money.__main__ import play
from tests.money.world import Broken

SEEDS = 25
replace = msgspec.structs.replace


def taken(step):
    """Settled is what was taken, durable or not."""
    return {partition: waiting.taken for partition, waiting in step._waiting.items()}


def read(loop, partitions):
    """Committed is what was read."""
    return {partition: loop._positions[partition] for partition in partitions if partition in loop._positions}


FLUSH = ViewsStep._flush
USAGE = rows_module._usage


def told_first(step, now_ms):
    """Tell, then write."""
    for waiting in step._untold():
        step._database._tell(waiting)
    FLUSH(step, now_ms)


def dropped_on_failure(step, now_ms, failure):
    """What could not be written is not tried again."""
    assert isinstance(failure, ClickHouseUnavailable)
    for waiting in step._waiting.values():
        waiting.durable = waiting.taken
        waiting.rows, waiting.bytes = [], 0


def last_inserted(before, row):
    """No revision is looked at."""
    return row


def day_of_the_copy(event, partition, offset):
    """The day is taken from where the record stands, not from the event."""
    return replace(USAGE(event, partition, offset), usage_day=f"2025-10-{1 + offset % 28:02}")


class Guard(NamedTuple):
    """A guard, by what it is replaced where it is taken out, and which invariants may fall then."""

    name: str
    without: Mapping[str, object]
    falls: tuple[str, ...]


LOSES = ("what_is_told_is_there", "at_the_end_all_is_equal", "everything_is_written")
GUARDS = (
    Guard("settled after durable", {"projections.views.step.ViewsStep.settled": taken}, LOSES),
    Guard("only what the step settled is committed", {"streams.log.loop.Loop._settled": read}, LOSES),
    Guard("rows before progress", {"projections.views.step.ViewsStep._flush": told_first}, LOSES),
    Guard(
        "rows are kept until they are written", {"projections.views.step.ViewsStep._put_off": dropped_on_failure}, LOSES
    ),
    Guard(
        "the highest revision",
        {"tests.money.tables.newer": last_inserted},
        ("the_highest_revision_counts", "at_the_end_all_is_equal"),
    ),
    Guard(
        "identity of the event alone",
        {"projections.views.rows._usage": day_of_the_copy},
        ("a_record_is_billed_once",),
    ),
)


@pytest.mark.parametrize("guard", GUARDS, ids=[guard.name for guard in GUARDS])
def test_the_checker_notices_a_missing_guard(guard, monkeypatch):
    for target, without in guard.without.items():
        monkeypatch.setattr(target, without)
    fallen = next((broken for broken in map(broken_by, range(SEEDS)) if broken is not None), None)
    assert fallen is not None, f"{SEEDS} histories without the guard `{guard.name}` broke nothing"
    assert fallen.invariant in guard.falls, fallen


def broken_by(seed):
    """What a history breaks."""
    try:
        play(seed)
    except Broken as broken:
        return broken
    return None
