"""Are bills and messages what the log says? The tables of the views = the log; what messages say they used = what is
billed = what the buckets of limits were settled with.

1. The log's rows are loaded into tables of their own (`beside`), and ClickHouse compares them (`tables`): digests by
   day first, then the rows of days that differ, in parts. So memory does not grow with the number of records, nor of
   differences. First topic `usage`, then topic `messages` with the roll-up that hangs on it (`heads`).
2. A row that came after the log was read, or that the projection has not come to, is not a difference (`places`). Nor
   is one of a conversation that is deleted meanwhile, which no repair brings back (`tail`).
3. A repair writes what the log says. Then all is compared again, so what a repair could not mend is told.
4. Then messages are compared with bills (`replies`). Both are the log by then, so what differs the log itself says
   twice and differently: no repair mends that.
5. Then the marks of settled replies in Redis are (`buckets`), where a store is given that is whole.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from projections.archive.lineage import refuse_other
from projections.clickhouse.client import Database
from projections.clickhouse.compare import Pair, shape_of
from projections.reconcile.beside import Beside, Connect, Span, beside, drop_stale
from projections.reconcile.buckets import Buckets, Remade, Unsettled
from projections.reconcile.findings import Finding, Outcome, Tell
from projections.reconcile.heads import FEEDERS, ROLL_UP, VIEW, compare_heads
from projections.reconcile.replies import disagreements
from projections.reconcile.tables import GROUPS, MESSAGE_GROUPS, USAGE_GROUPS, Comparing
from projections.reconcile.tail import Tail
from projections.redis.client import StoreError
from projections.views.loading import erase
from schemas.topics import MESSAGES, USAGE
from streams.log.log import Log


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to go about it."""

    archive: Path | None = None
    repair: bool = False
    days: int = 0
    """Only records of so many days, today included; 0: all that can be read."""
    replies: bool = True
    """Also compare messages, with the log and with bills."""
    made_anew: bool = False
    """The log is right although the views were made from another one."""
    wait_s: float = 30.0
    """For the projection to come to where the log ends."""


def reconcile(
    log: Log,
    connect: Connect,
    options: Options,
    tell: Tell,
    today: datetime | None = None,
    buckets: Buckets | None = None,
) -> Outcome:
    """Compare, tell each difference, and repair where that is asked for.

    Raises:
        OtherLog: the views were made from another log; nothing was changed.
        Missing, ArchiveBroken: what the log has lost is in no archive.
        LogError, ClickHouseError: not now.
    """
    database = connect()
    outcome = Outcome()
    span = Span(archive=options.archive, day=_first_day(options.days, today or datetime.now(UTC)))
    try:
        if not options.made_anew:
            refuse_other(log, database, (USAGE.name, MESSAGES.name) if options.replies else (USAGE.name,))
        drop_stale(database)
        _usage(log, connect, database, span, options, outcome, tell)
        if options.replies and not outcome.behind:
            _messages(log, connect, database, span, options, outcome, tell)
        if buckets is not None:
            _buckets(buckets, options, outcome, tell)
        return outcome
    finally:
        database.close()


def _first_day(days: int, now: datetime) -> str:
    return (now - timedelta(days=days - 1)).strftime("%Y-%m-%d") if days else ""


def _usage(
    log: Log, connect: Connect, database: Database, span: Span, options: Options, outcome: Outcome, tell: Tell
) -> None:
    names = [name for name in USAGE_GROUPS if not span.day or name == "usage_records"]
    with beside(log, database, USAGE.name, names) as right:
        _load(right, connect, span, options, outcome)
        comparing = Comparing(database, right, outcome, tell, repair=options.repair, day=span.day)
        for name in names:
            comparing.table(name)


def _messages(
    log: Log, connect: Connect, database: Database, span: Span, options: Options, outcome: Outcome, tell: Tell
) -> None:
    # A roll-up of all that was ever said cannot be computed from some days.
    rolled = () if span.day else (ROLL_UP, *FEEDERS, VIEW)
    with beside(log, database, MESSAGES.name, [*MESSAGE_GROUPS, *rolled]) as right:
        _load(right, connect, span, options, outcome)
        if outcome.behind:
            return
        _erase_deleted(database, right, rolled)
        tail = Tail(log, right.ends, database)
        try:
            comparing = Comparing(database, right, outcome, tell, repair=options.repair, day=span.day)
            for name in MESSAGE_GROUPS:
                if name == "generation_rows":  # without content, so deletion leaves it alone
                    comparing.table(name)
                else:
                    comparing.table(name, spared=_deleted(tail, right, name), repaired=tail.erase_deleted)
            if rolled:
                compare_heads(database, right.names[VIEW], tail.active, outcome, tell, repair=options.repair)
        finally:
            tail.close()
    outcome.replies_compared = True
    for one in disagreements(database, span.day):
        tell(one)
        outcome.found += 1
        outcome.left += 1


def _load(right: Beside, connect: Connect, span: Span, options: Options, outcome: Outcome) -> None:
    right.load(connect, span)
    outcome.records += right.loaded.records
    outcome.unreadable += right.loaded.unreadable
    outcome.behind += right.wait(options.wait_s)


def _erase_deleted(database: Database, right: Beside, rolled: Sequence[str]) -> None:
    """What deleted conversations said is not in the live tables; some days may not have the deletion itself."""
    deleted = "(account_id, conversation_id) IN (SELECT account_id, conversation_id FROM conversation_rows "
    for name, condition in (("message_rows", "1"), ("reply_rows", "1"), ("conversation_rows", "kind != 'deleted'")):
        database.erase(right.names[name], f"{condition} AND {deleted} WHERE kind = 'deleted')")
    erase(database, right.names, [right.names[ROLL_UP]] if rolled else [])


def _deleted(tail: Tail, right: Beside, name: str) -> Callable[[Sequence[Pair]], Sequence[bool]]:
    key = shape_of(right.live[name], GROUPS[name]).key
    return lambda found: tail.deleted(found, key)


def _buckets(buckets: Buckets, options: Options, outcome: Outcome, tell: Tell) -> None:
    """What was found stands even where Redis does not answer: the bills do not hang on it."""
    now_ms = time.time_ns() // 1_000_000
    try:
        reached = buckets.reached()
        found = list(buckets.wrong(reached, now_ms))
        outcome.settled, outcome.buckets_compared = buckets.looked_at, True
        for one in found:
            tell(_unsettled(one))
        outcome.found += len(found)
        if found and options.repair:
            buckets.repair(reached, found, now_ms)
            found = list(buckets.wrong(reached, now_ms))
        outcome.left += len(found)
    except Remade:
        outcome.buckets_trouble = "they are being made again from the log"
    except StoreError as failure:
        outcome.buckets_trouble = str(failure)


def _unsettled(one: Unsettled) -> Finding:
    key = (one.event.account_id, one.event.reply_id)
    return Finding(table="buckets", kind=one.kind, key=key, changes=one.changes)
