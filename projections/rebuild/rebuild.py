"""Rebuilding what is behind a view from the log, beside the live tables, while those are read and written on.

1. The new tables have the definitions that the live ones have now. The materialised views that fill roll-ups from the
   live tables are made for the new ones too.
2. First a mirror is made on each live table: what is inserted there is inserted in the new one too. Then the ends of
   the log are asked for, and the log is read up to them. What the projection wrote before the mirrors were there lies
   below those ends; what it writes afterwards comes through the mirrors. So the new tables have at each moment after
   loading all that the live ones have, and the exchange takes nothing away from a reader.
3. Where each partition stands is kept beside the new tables, written after their rows: killed at any moment, a rebuild
   is taken up again. Only one at a time owns it.
4. The tables are compared before they are exchanged: counts and digests first, then rows, by key.
5. Names are exchanged, table by table, each atomically. The mirrors stay until all are: they and the roll-ups' views go
   by names, so whatever is inserted between two exchanges still reaches both sides. Whether a table was exchanged is
   told by its UUID.
6. What deleted conversations said is erased before the exchange and again after it.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from projections.archive.history import History
from projections.archive.lineage import refuse_other
from projections.clickhouse.beside import Table, catalogue, copy_statement, listed, same_definition
from projections.clickhouse.client import Database
from projections.clickhouse.compare import Pair, Shape, digests, pairs, parts, shape_of
from projections.rebuild.plan import MIRROR, NEW, Plan, plan_of
from projections.rebuild.state import EXCHANGING, LOADING, State, begun, own
from projections.views.loading import BATCH_ROWS, Loaded, Loading, erase
from streams.log.log import Log
from streams.log.steps import Partition

TELL_S = 1.0
SHOWN_MAX = 100
"""Differences of a table that are shown one by one; all are counted."""
PLACE = ("log_partition", "log_offset", "version")
"""Where a row came from: of records that are in the log twice, either will do."""
GROUPS: Mapping[str, str] = {"usage_records": "usage_day", "invoice_rows": "period"}
"""What rows are grouped by for the comparison; others by a hash of the conversation."""
_HASHED = "modulo(cityHash64(conversation_id), 64)"


class Changed(Exception):
    """The rebuild that was begun does not fit any more; the message says what to do."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far loading is: offsets, since records are not counted beforehand."""

    read: int
    of: int
    per_s: float


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A row that the live table has otherwise than the log gives it. `kind`: missing, extra or changed."""

    table: str
    kind: str
    pair: Pair


class Compared(msgspec.Struct, kw_only=True):
    """A table and its new one."""

    table: str
    rows: int
    new_rows: int
    differences: int = 0


Told = Progress | Difference | Compared
Tell = Callable[[Told], None]


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    tables: tuple[str, ...]
    loaded: Loaded
    compared: tuple[Compared, ...]
    load_s: float
    exchanged: bool


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to go about it."""

    archive: Path | None = None
    check_only: bool = False
    """Compare, exchange nothing, and remove the new tables."""
    take_over: bool = False
    made_anew: bool = False
    """The log is right although the views were made from another one."""
    batch_rows: int = BATCH_ROWS


def rebuild(log: Log, connect: Callable[[], Database], view: str, options: Options, tell: Tell) -> Rebuilt:
    """Rebuild what is behind a view.

    Raises:
        NoSuchView, OtherLog, UnderWay, Missing, ArchiveBroken, Changed: nothing was exchanged; the message says what
            to do.
        LogError, ClickHouseError: not now; run it again, it goes on where it was.
    """
    database = connect()
    plan = plan_of(view, catalogue(database))
    if not options.made_anew:
        refuse_other(log, database, plan.topics)
    _refuse_overlap(database, plan)
    state = own(database, plan.state, take_over=options.take_over)
    loaded, compared, took = Loaded(), [], 0.0
    if state.get("step") != EXCHANGING:
        took = _load(log, connect, plan, state, options, tell, loaded)
        erase(database, plan.new_names, [f"{name}{NEW}" for name in plan.derived])
        compared = list(_compared(database, plan, tell))
        if options.check_only:
            remove(database, plan)
            return Rebuilt(
                tables=plan.all_tables, loaded=loaded, compared=tuple(compared), load_s=took, exchanged=False
            )
        _refuse_changed(database, plan)
        found = catalogue(database)
        state.put({"step": EXCHANGING} | {f"new {name}": found[f"{name}{NEW}"].uuid for name in plan.all_tables})
    _exchange(database, plan, state)
    erase(database, {name: name for name in plan.tables}, plan.derived)
    remove(database, plan)
    database.close()
    return Rebuilt(tables=plan.all_tables, loaded=loaded, compared=tuple(compared), load_s=took, exchanged=True)


def abort(database: Database, view: str, *, take_over: bool = False) -> bool:
    """Remove what a rebuild has left; whether there was any. Raises `NoSuchView`, `UnderWay`, `ClickHouseError`."""
    plan = plan_of(view, catalogue(database))
    if begun(database, plan.state) is None:
        return False
    own(database, plan.state, take_over=take_over)
    remove(database, plan)
    return True


def remove(database: Database, plan: Plan) -> None:
    """Take away all that is beside the live tables; the state last."""
    for table in plan.tables:
        database.command(f"DROP TABLE IF EXISTS {table}{MIRROR} SYNC")
    for name in (*plan.feeders, *plan.all_tables):
        database.command(f"DROP TABLE IF EXISTS {name}{NEW} SYNC")
    database.command(f"DROP TABLE IF EXISTS {plan.state} SYNC")


def _refuse_overlap(database: Database, plan: Plan) -> None:
    """Another view's rebuild may have some of these tables in hand."""
    if begun(database, plan.state) is not None:
        return
    found = catalogue(database)
    for name in plan.all_tables:
        if f"{name}{NEW}" in found:
            raise Changed(
                f"another rebuild that has {name} in it was begun: end it, or drop it with --abort and its view's name"
            )


def _load(
    log: Log,
    connect: Callable[[], Database],
    plan: Plan,
    state: State,
    options: Options,
    tell: Tell,
    loaded: Loaded,
) -> float:
    """Make the new tables and fill them; seconds."""
    partitions = [Partition(topic, number) for topic in plan.topics for number in range(log.partitions(topic))]
    database, archive_database = connect(), connect()
    history = History(log, partitions, options.archive, archive_database)
    began = time.monotonic()
    try:
        positions = dict.fromkeys(partitions, 0) | state.offsets("position")
        _make(database, plan)
        ends = state.offsets("end")
        if not ends:
            ends = history.ends()
            state.put({"step": LOADING})
            state.put_offsets("end", ends)
        loading = Loading(
            database,
            {name: f"{name}{NEW}" for name in plan.tables},
            lambda reached: state.put_offsets("position", reached),
            batch_rows=options.batch_rows,
        )
        try:
            telling = _Telling(positions, ends, tell)
            for records, reached in history.read(positions, ends):
                loading.take(records, reached)
                telling.reached(reached)
            loading.flush()
            telling.reached({}, now=True)
        finally:
            loading.close()
        loaded.records, loaded.rows, loaded.unreadable = (
            loading.counts.records,
            loading.counts.rows,
            loading.counts.unreadable,
        )
    finally:
        history.close()
        archive_database.close()
        database.close()
    return time.monotonic() - began


class _Telling:
    """Says about once a second how far loading is."""

    def __init__(self, positions: Mapping[Partition, int], ends: Mapping[Partition, int], tell: Tell) -> None:
        self._at = {partition: min(position, ends[partition]) for partition, position in positions.items()}
        self._began = sum(self._at.values())
        self._of = sum(ends.values())
        self._tell = tell
        self._began_s = self._told_s = time.monotonic()

    def reached(self, reached: Mapping[Partition, int], *, now: bool = False) -> None:
        self._at.update(reached)
        time_s = time.monotonic()
        if now or time_s - self._told_s >= TELL_S:
            self._told_s = time_s
            read = sum(self._at.values())
            per_s = (read - self._began) / max(time_s - self._began_s, 1e-9)
            self._tell(Progress(read=read, of=self._of, per_s=round(per_s)))


def _make(database: Database, plan: Plan) -> None:
    """New tables, what fills roll-ups from them, and the mirrors last: where it stood half-way, the rest."""
    found = catalogue(database)
    names = plan.new_names
    for name in (*plan.all_tables, *plan.feeders):
        database.command(copy_statement(found[name], names))
    _refuse_changed(database, plan)
    for name in plan.tables:
        columns = listed(found[name].columns)
        database.command(
            f"CREATE MATERIALIZED VIEW IF NOT EXISTS {name}{MIRROR} TO {name}{NEW} AS "  # noqa: S608 - names are ours
            f"SELECT {columns} FROM {name}"
        )


def _refuse_changed(database: Database, plan: Plan) -> None:
    """The live tables must be what they were when the new ones were made."""
    found = catalogue(database)
    for name in (*plan.all_tables, *plan.feeders):
        if not same_definition(found[name], found[f"{name}{NEW}"], plan.new_names):
            raise Changed(f"{name} was changed since the rebuild began: drop it with --abort and begin again")


def _compared(database: Database, plan: Plan, tell: Tell) -> Iterator[Compared]:
    found = catalogue(database)
    for name in plan.all_tables:
        shape = shape_of(found[name], GROUPS.get(name, _HASHED), PLACE)
        yield _compare(database, found[name], shape, tell)


def _compare(database: Database, table: Table, shape: Shape, tell: Tell) -> Compared:
    new = f"{table.name}{NEW}"
    live_digests, new_digests = digests(database, table.name, shape), digests(database, new, shape)
    compared = Compared(
        table=table.name,
        rows=sum(digest.rows for digest in live_digests.values()),
        new_rows=sum(digest.rows for digest in new_digests.values()),
    )
    for part in parts(live_digests, new_digests):
        for pair in pairs(database, table.name, new, shape, part):
            compared.differences += 1
            if compared.differences <= SHOWN_MAX:
                tell(Difference(table=table.name, kind=_kind(pair), pair=pair))
    tell(compared)
    return compared


def _kind(pair: Pair) -> str:
    if not pair.live_here:
        return "missing"
    return "changed" if pair.right_here else "extra"


def _exchange(database: Database, plan: Plan, state: State) -> None:
    """Rule 5; again after a kill, only what is left of it."""
    for name in plan.all_tables:
        found = catalogue(database)
        if found[name].uuid != state.get(f"new {name}"):
            database.command(f"EXCHANGE TABLES {name} AND {name}{NEW}")
