"""Is the bill what the log says? Fold of `usage` = `usage_records` and `invoice_rows` = what messages say they used =
what the buckets of limits were settled with.

1. The log's rows are loaded into tables of their own, by the code that the projection has, and ClickHouse compares
   them: digests by day first, then the rows of days that differ. So memory does not grow with the number of records.
2. A row that came after the log was read, or that the projection has not come to, is not a difference.
3. A repair writes what the log says: a wrong row is erased (that very row, by its hash), then the right one is inserted
   if it is not there. Then all is compared again, so what a repair could not mend is told.
4. Then messages are compared with bills (`replies`). Bills are right by then; a repair gives `reply_rows` what topic
   `messages` says. What still differs, the log itself says twice and differently: kind `log_disagrees`.
5. Then the marks of settled replies in Redis are (`buckets`), where a store is given that is whole.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from projections.archive.history import History
from projections.archive.lineage import refuse_other
from projections.clickhouse.beside import Table, catalogue, copy_statement, listed
from projections.clickhouse.client import Database
from projections.clickhouse.compare import Change, Pair, Shape, differing, digests, pairs, row_hash, shape_of
from projections.reconcile.buckets import Buckets, Remade, Unsettled
from projections.reconcile.places import Read, verdict
from projections.reconcile.replies import Disagreement, disagreements, erase_replies
from projections.redis.client import StoreError
from projections.views.columns import Unstorable
from projections.views.loading import Loading
from projections.views.rows import rows
from projections.views.tables import TABLES, TOPIC_OF, ReplyRow, Row, UsageRow
from schemas.codec import Undecodable
from schemas.topics import MESSAGES, USAGE
from streams.log.encoding import decoded
from streams.log.log import Log, since
from streams.log.steps import Partition

GROUPS: Mapping[str, str] = {"usage_records": "usage_day", "invoice_rows": "period"}
BESIDE = "__log_"
STALE = "1 DAY"
AT_ONCE = 500
"""Rows of one statement of a repair."""
ROUNDS = 3
MARGIN_MS = 3_600_000
"""So much earlier than its day a record may have been written, by another machine's clock."""
POLL_S = 0.2


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to go about it."""

    archive: Path | None = None
    repair: bool = False
    days: int = 0
    """Only records of so many days, today included; 0: all that can be read."""
    replies: bool = True
    """Also compare messages with bills."""
    made_anew: bool = False
    """The log is right although the views were made from another one."""
    wait_s: float = 30.0
    """For the projection to come to where the log ends."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A difference. In `changes`, `live` is what the table has, `right` what the log says.

    `kind`: of `usage_records` and `invoice_rows` missing, extra or changed; of `reply_rows` no_bill, no_reply, differs
    or log_disagrees; of `buckets`, which is in Redis, not_settled or differs.
    """

    table: str
    kind: str
    key: tuple[str, ...]
    changes: tuple[Change, ...] = ()


class Outcome(msgspec.Struct, kw_only=True):
    """What was found."""

    records: int = 0
    """Read from the log."""
    rows: int = 0
    """Looked at in the tables."""
    found: int = 0
    left: int = 0
    """Differences that are still there."""
    unreadable: int = 0
    behind: int = 0
    """Records that the projection had not come to: not judged."""
    replies_compared: bool = False
    settled: int = 0
    """Replies of which was looked at whether buckets are settled with them."""
    buckets_compared: bool = False
    buckets_trouble: str = ""
    """Why they could not be compared."""


Tell = Callable[[Finding], None]


def reconcile(
    log: Log,
    connect: Callable[[], Database],
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
    day = _first_day(options.days, today or datetime.now(UTC))
    run = uuid.uuid4().hex[:8]
    beside = {name: f"{name}{BESIDE}{run}" for name in GROUPS if not day or name == "usage_records"}
    try:
        if not options.made_anew:
            refuse_other(log, database, (USAGE.name, MESSAGES.name) if options.replies else (USAGE.name,))
        _drop_stale(database)
        found = catalogue(database)
        for name in beside:
            database.command(copy_statement(found[name], beside))
        topic = _Topic(log, database, USAGE.name)
        try:
            ends = _load(log, connect, beside, day, options, outcome, topic)
            told = _wait(database, ends, options.wait_s)
            outcome.behind = _behind(told, ends)
            _tables(database, found, beside, topic, told, day, options, outcome, tell)
        finally:
            topic.close()
        if options.replies and not outcome.behind:
            _replies(log, database, day, options, outcome, tell)
        if buckets is not None:
            _buckets(buckets, options, outcome, tell)
        return outcome
    finally:
        for name in beside.values():
            database.command(f"DROP TABLE IF EXISTS {name} SYNC")
        database.close()


class _Topic:
    """Where a topic's partitions begin and end."""

    def __init__(self, log: Log, database: Database, topic: str) -> None:
        self.partitions = [Partition(topic, number) for number in range(log.partitions(topic))]
        self._history = History(log, self.partitions, None, database)
        self.begins: dict[Partition, int] = dict(self._history.begins)
        self.ends: dict[Partition, int] = {}

    def now(self) -> dict[int, int]:
        """The ends, asked now."""
        return {partition.number: end for partition, end in self._history.ends().items()}

    def close(self) -> None:
        self._history.close()


def _first_day(days: int, now: datetime) -> str:
    return (now - timedelta(days=days - 1)).strftime("%Y-%m-%d") if days else ""


def _load(
    log: Log,
    connect: Callable[[], Database],
    beside: Mapping[str, str],
    day: str,
    options: Options,
    outcome: Outcome,
    topic: _Topic,
) -> dict[Partition, int]:
    """The log's rows into their tables; how far the projection must be to have them too.

    Behind the last record of a partition that can be read it says nothing: dead letters never reach it.
    """
    writing, converting = connect(), connect()
    history = History(log, topic.partitions, options.archive, converting)
    loading = Loading(writing, beside, lambda _: None, wanted=_wanted(day))
    try:
        if day:
            positions = _since(log, topic.partitions, day)
        else:
            positions = {partition: history.first(partition) for partition in topic.partitions}
        topic.begins, topic.ends = dict(positions), history.ends()
        for records, reached in history.read(positions, topic.ends):
            loading.take(records, reached)
        loading.flush()
        outcome.records, outcome.unreadable = loading.counts.records, loading.counts.unreadable
        return {**positions, **loading.read}
    finally:
        loading.close()
        history.close()
        writing.close()
        converting.close()


def _wanted(day: str) -> Callable[[Row], bool] | None:
    return (lambda row: isinstance(row, UsageRow) and row.usage_day >= day) if day else None


def _since(log: Log, partitions: Sequence[Partition], day: str) -> dict[Partition, int]:
    began_ms = int(datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() * 1000) - MARGIN_MS
    reader = log.reader(partitions, since(began_ms))
    try:
        return reader.positions()
    finally:
        reader.close()


def _wait(database: Database, ends: Mapping[Partition, int], wait_s: float) -> dict[Partition, int]:
    """Wait until the projection has come to these ends, but not for ever; how far it is."""
    until = time.monotonic() + wait_s
    while True:
        told = _told(database)
        if not _behind(told, ends) or time.monotonic() > until:
            return told
        time.sleep(POLL_S)


def _told(database: Database) -> dict[Partition, int]:
    found = database.query("SELECT topic, log_partition, toInt64(max(next_offset)) FROM progress GROUP BY ALL")
    return {Partition(topic, number): offset for topic, number, offset in found}


def _behind(told: Mapping[Partition, int], ends: Mapping[Partition, int]) -> int:
    return sum(max(end - told.get(partition, 0), 0) for partition, end in ends.items())


def _tables(
    database: Database,
    found: Mapping[str, Table],
    beside: Mapping[str, str],
    topic: _Topic,
    told: Mapping[Partition, int],
    day: str,
    options: Options,
    outcome: Outcome,
    tell: Tell,
) -> None:
    for name, right in beside.items():
        shape = shape_of(found[name], GROUPS[name])
        where = f"usage_day >= '{day}'" if day else "1"
        for tried in range(ROUNDS if options.repair else 1):
            left = 0
            live_digests = digests(database, name, shape, where)
            outcome.rows += 0 if tried else sum(digest.rows for digest in live_digests.values())
            for group in differing(live_digests, digests(database, right, shape, where)):
                wrong = list(_wrong(database, name, right, shape, group, topic, told))
                left += len(wrong)
                for kind, pair in wrong if not tried else ():
                    tell(Finding(table=name, kind=kind, key=pair.key, changes=pair.changes))
                if options.repair:
                    _repair(database, name, right, shape, group, [pair for _, pair in wrong])
            outcome.found += 0 if tried else left
            if not left:
                break
        outcome.left += left


def _wrong(
    database: Database,
    name: str,
    right: str,
    shape: Shape,
    group: str,
    topic: _Topic,
    told: Mapping[Partition, int],
) -> Iterator[tuple[str, Pair]]:
    found = pairs(database, name, right, shape, group)
    read = Read(
        begins=_numbers(topic.begins),
        ends=_numbers(topic.ends),
        told=_numbers({p: offset for p, offset in told.items() if p.topic == TOPIC_OF[name]}),
        now=topic.now(),
    )
    for pair in found:
        kind = verdict(pair, read)
        if kind is not None:
            yield kind, pair


def _numbers(offsets: Mapping[Partition, int]) -> dict[int, int]:
    return {partition.number: offset for partition, offset in offsets.items()}


def _repair(database: Database, name: str, right: str, shape: Shape, group: str, wrong: Sequence[Pair]) -> None:
    key = ", ".join(f"`{column}`" for column in shape.key)
    columns = listed(shape.columns)
    within = f"{shape.group} = %(group)s AND ({key}) IN %(keys)s"
    for first in range(0, len(wrong), AT_ONCE):
        part = wrong[first : first + AT_ONCE]
        hashes = [pair.live_hash for pair in part if pair.live_here]
        if hashes:
            parameters = {"group": group, "keys": [pair.key for pair in part], "hashes": hashes}
            database.erase(name, f"{within} AND {row_hash(shape.columns)} IN %(hashes)s", parameters)
        given = [pair.key for pair in part if pair.right_here]
        if given:
            database.command(
                f"INSERT INTO {name} ({columns}) SELECT {columns} FROM {right} FINAL WHERE {within}",  # noqa: S608
                {"group": group, "keys": given},
            )


def _replies(log: Log, database: Database, day: str, options: Options, outcome: Outcome, tell: Tell) -> None:
    partitions = [Partition(MESSAGES.name, number) for number in range(log.partitions(MESSAGES.name))]
    history = History(log, partitions, options.archive, database)
    try:
        ends = history.ends()
        if _behind(_wait(database, ends, options.wait_s), ends):
            return
        outcome.replies_compared = True
        found = disagreements(database, day)
        for one in found:
            tell(_finding(one))
        outcome.found += len(found)
        if found and options.repair:
            _repair_replies(database, history, ends, found)
            found = disagreements(database, day)
            for one in found:
                tell(msgspec.structs.replace(_finding(one), kind="log_disagrees"))
        outcome.left += len(found)
    finally:
        history.close()


def _finding(one: Disagreement) -> Finding:
    return Finding(table="reply_rows", kind=one.kind, key=(one.account_id, one.reply_id), changes=one.changes)


def _repair_replies(
    database: Database, history: History, ends: Mapping[Partition, int], wrong: Sequence[Disagreement]
) -> None:
    """Give these replies the rows that topic `messages` gives them."""
    wanted = {one.reply_id for one in wrong}
    positions = {partition: history.first(partition) for partition in ends}
    right: dict[str, Row] = {}
    for records, _ in history.read(positions, ends):
        for record in records:
            try:
                made = rows(decoded(record), record.partition, record.offset)
            except (Undecodable, Unstorable):
                continue
            for row in made:
                if isinstance(row, ReplyRow) and row.reply_id in wanted:
                    right.setdefault(row.reply_id, row)
    erase_replies(database, wrong)
    if right:
        database.insert(TABLES[ReplyRow], list(right.values()))


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


def _drop_stale(database: Database) -> None:
    """Tables of runs that were killed."""
    stale = database.query(
        f"SELECT name FROM system.tables WHERE database = currentDatabase() AND position(name, '{BESIDE}') > 0 "  # noqa: S608
        f"AND metadata_modification_time < now() - INTERVAL {STALE}"
    )
    for (name,) in stale:
        database.command(f"DROP TABLE IF EXISTS {name} SYNC")
