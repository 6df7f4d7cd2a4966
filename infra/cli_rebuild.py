"""`turnlog rebuild`, `reconcile`, `archive`: the views from the log again, compared with it, and the log on disk."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli_accounts import tiers
from infra.cli_options import DAYS_MAX, AsJson, Data
from infra.errors import StackError
from infra.known_accounts import read_accounts
from infra.money_servers import clickhouse_of, kafka_of, redis_of
from streams.log.process import database_of

if TYPE_CHECKING:
    from projections.clickhouse.client import Database
    from projections.reconcile.buckets import Buckets
    from streams.log.kafka import KafkaLog

CLIENT = "turnlog-infra"
TIMEOUT_S = 600.0
"""Of one statement: comparing a large table takes a while."""
_EVERY = re.compile(r"([1-9][0-9]{0,4})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

View = Annotated[str, typer.Argument(help="A view (billing, messages, conversations, …) or a table.")]
Topic = Annotated[str, typer.Argument(help="A topic, such as usage or messages.")]
To = Annotated[Path, typer.Option("--to", help="The archive's folder.")]
Archive = Annotated[
    Path | None, typer.Option(exists=True, file_okay=False, help="An archive's folder, for what the log has lost.")
]
Check = Annotated[bool, typer.Option("--check", help="Compare only; exchange nothing.")]
Abort = Annotated[bool, typer.Option("--abort", help="Remove what a rebuild that was stopped has left.")]
TakeOver = Annotated[bool, typer.Option("--take-over", help="Go on in the place of a process on another machine.")]
MadeAnew = Annotated[
    bool, typer.Option("--log-made-anew", help="The log is right although the views were made from another one.")
]
Repair = Annotated[bool, typer.Option("--repair", help="Write what the log says.")]
Every = Annotated[str | None, typer.Option(help="Again and again: 90s, 15m, 1h, 1d.")]
Days = Annotated[int, typer.Option(min=0, max=DAYS_MAX, help="Only records of so many days, today included; 0: all.")]
Replies = Annotated[bool, typer.Option("--replies/--no-replies", help="Also compare messages, with the log and bills.")]
Limits = Annotated[bool, typer.Option("--limits/--no-limits", help="Also compare what limits were settled with.")]
MetricsPort = Annotated[int, typer.Option(min=0, max=65535, help="With --every: serve Prometheus metrics there.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(rebuild)
    app.command()(reconcile)
    app.command()(archive)


def rebuild(
    view: View,
    archive: Archive = None,
    check: Check = False,
    abort: Abort = False,
    take_over: TakeOver = False,
    made_anew: MadeAnew = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Build what is behind a view anew from the log, beside the live tables, and exchange it.

    Run it again after it was stopped: it goes on where it was.
    """
    from projections.rebuild import rebuild as work

    say = _Say(as_json)
    with _servers(data) as (log, connect):
        if abort:
            gone = work.abort(connect(), view, take_over=take_over)
            say.result({"aborted": gone}, "Removed." if gone else "There was nothing to remove.")
            return
        options = work.Options(archive=archive, check_only=check, take_over=take_over, made_anew=made_anew)
        done = work.rebuild(log, connect, view, options, say.rebuilding)
    differences = sum(compared.differences for compared in done.compared)
    say.result(
        {"rebuilt": done},
        f"{'Exchanged' if done.exchanged else 'Compared'} {', '.join(done.tables)}: {done.loaded.records:,} records in "
        f"{done.load_s:.1f} s, {differences:,} rows differed"
        + (
            f", {done.loaded.unreadable:,} records cannot be read (see the dead letters)"
            if done.loaded.unreadable
            else ""
        )
        + ".",
    )
    if check and differences:
        raise typer.Exit(1)


def archive(topic: Topic, to: To, data: Data = None, as_json: AsJson = False) -> None:
    """Export what a topic has and the archive has not yet, as Parquet. Run it again: it goes on where it ended."""
    from projections.archive.export import export
    from schemas.topics import FIXED

    if topic not in {one.name for one in FIXED if one.cleanup == "delete"}:
        known = ", ".join(one.name for one in FIXED if one.cleanup == "delete")
        raise typer.BadParameter(f"{topic!r} is no topic that can be archived: {known}.")
    say = _Say(as_json)
    with _servers(data) as (log, connect):
        try:
            done = export(log, topic, to, connect(), say.archiving)
        except OSError as failure:
            raise StackError(f"{to} cannot be written: {failure.strerror or failure}.") from failure
    say.result({"archived": done}, f"Archived {done.records:,} records of {topic} in {done.files} files below {to}.")


def reconcile(
    repair: Repair = False,
    every: Every = None,
    days: Days = 0,
    archive: Archive = None,
    replies: Replies = True,
    limits: Limits = True,
    made_anew: MadeAnew = False,
    metrics_port: MetricsPort = 0,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Compare bills and messages with the log, with each other, and with what limits were settled with.

    Exit code 1 when there are differences left.
    """
    from projections.reconcile.metrics import ReconcileMetrics
    from projections.reconcile.reconcile import Options

    say = _Say(as_json)
    options = Options(archive=archive, repair=repair, days=days, replies=replies, made_anew=made_anew)
    if every is None:
        if _reconcile(data, options, say, limits=limits).left:
            raise typer.Exit(1)
        return
    pause_s = _seconds(every)
    metrics = ReconcileMetrics()
    if metrics_port:
        metrics.serve(metrics_port)
    _again_and_again(lambda: _reconcile(data, options, say, limits=limits), pause_s, metrics, say)


def _again_and_again(work: Callable[[], Any], pause_s: float, metrics: Any, say: _Say) -> None:
    """Until a signal. What fails is told, counted, and tried again at its next time."""
    from streams.log.process import stop_on_signals

    stop = stop_on_signals()
    while not stop.is_set():
        began = time.monotonic()
        try:
            metrics.done(work(), time.time())
        except StackError as failure:
            metrics.failed()
            say.note({"failed": str(failure)}, f"Error: {failure}")
        stop.wait(max(pause_s - (time.monotonic() - began), 1.0))


def _reconcile(data: Path | None, options: Any, say: _Say, *, limits: bool) -> Any:
    from projections.reconcile.reconcile import reconcile as work

    with _servers(data) as (log, connect), _buckets(data, log) if limits else nullcontext() as buckets:
        outcome = work(log, connect, options, say.finding, buckets=buckets)
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    behind = f"; the projection is {outcome.behind:,} records behind, these were not judged" if outcome.behind else ""
    unread = f"; {outcome.unreadable:,} records cannot be read (see the dead letters)" if outcome.unreadable else ""
    replies = "" if outcome.replies_compared or not options.replies else "; messages were not compared"
    trouble = f"; limits were not compared: {outcome.buckets_trouble}" if outcome.buckets_trouble else ""
    looked_at = f", {outcome.settled:,} of them still count for limits" if outcome.buckets_compared else ""
    say.result(
        {"reconciled": outcome, "at": now},
        f"{now} UTC: {_counted(outcome.records, 'record')}, {_counted(outcome.rows, 'row')}{looked_at}: "
        f"{_counted(outcome.found, 'difference')}, {outcome.left:,} left{behind}{unread}{replies}{trouble}."
        f"{_advice(outcome.left, repaired=options.repair)}",
    )
    return outcome


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _advice(left: int, *, repaired: bool) -> str:
    if not left:
        return ""
    if repaired:
        return " What is left the log itself disagrees about: look at these replies."
    return " `turnlog reconcile --repair` writes what the log says."


def _seconds(text: str) -> int:
    found = _EVERY.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"--every {text!r} is no time: a number and s, m, h or d, such as 1h.")
    return int(found[1]) * _UNITS[found[2]]


@contextmanager
def _buckets(data: Path | None, log: KafkaLog) -> Iterator[Buckets]:
    """The limits' store, with the accounts as they are now."""
    from projections.limits.commands import Owners
    from projections.reconcile.buckets import Buckets
    from projections.redis.client import Store

    store = Store(redis_of(data))
    bootstrap, namespace = kafka_of(data)
    try:
        yield Buckets(log, store, namespace, Owners(read_accounts(bootstrap, namespace), tiers()))
    finally:
        store.close()


@contextmanager
def _servers(data: Path | None) -> Iterator[tuple[KafkaLog, Callable[[], Database]]]:
    """The log, and what connects to the database; what goes wrong with them is one sentence."""
    from projections.archive.files import ArchiveBroken
    from projections.archive.history import Missing
    from projections.archive.lineage import OtherLog
    from projections.clickhouse.client import ClickHouseError, ClickHouseRefused, Database
    from projections.rebuild.plan import NoSuchView
    from projections.rebuild.rebuild import Changed
    from projections.rebuild.state import UnderWay
    from streams.log.kafka import KafkaLog
    from streams.log.steps import LogError

    bootstrap, namespace = kafka_of(data)
    url, _ = clickhouse_of(data)
    log = KafkaLog(bootstrap, namespace, CLIENT)
    try:
        yield log, lambda: Database(url, database_of(namespace), timeout_s=TIMEOUT_S)
    except (Missing, OtherLog, ArchiveBroken, NoSuchView, Changed, UnderWay) as failure:
        text = str(failure)
        raise StackError(f"{text[:1].upper()}{text[1:]}.") from failure
    except ClickHouseRefused as failure:
        raise StackError(
            f"ClickHouse refuses what it was told, which is a fault of this command: {failure}"
        ) from failure
    except ClickHouseError as failure:
        raise StackError(f"ClickHouse did not do it ({failure}); run the command again, it goes on.") from failure
    except LogError as failure:
        raise StackError(f"Kafka at {bootstrap} cannot be read ({failure}); run the command again.") from failure
    finally:
        log.close()


class _Say:
    """Says what happens: lines for people (progress on stderr), or one JSON object a line."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json

    def result(self, body: dict[str, Any], text: str) -> None:
        """What came of it."""
        typer.echo(self._line(body) if self._json else text)

    def note(self, body: dict[str, Any], text: str) -> None:
        """On the way there."""
        typer.echo(self._line(body) if self._json else text, err=not self._json)

    def rebuilding(self, told: Any) -> None:
        """What a rebuild tells."""
        from projections.rebuild.rebuild import Compared, Difference, Progress

        match told:
            case Progress():
                text = f"{told.read:,} of {told.of:,} offsets read, {told.per_s:,.0f}/s"
                self.note({"progress": told}, text)
            case Difference():
                self.difference({"difference": told}, told.table, told.kind, told.pair.key, told.pair.changes)
            case Compared():
                text = f"{told.table}: {told.rows:,} rows, {told.new_rows:,} new ones, {told.differences:,} differ"
                self.note({"compared": told}, text)

    def archiving(self, done: Any) -> None:
        """How far an export is."""
        self.note({"progress": done}, f"{done.records:,} records in {done.files} files")

    def finding(self, found: Any) -> None:
        """A difference that reconciliation found."""
        self.difference({"difference": found}, found.table, found.kind, found.key, found.changes)

    def difference(self, body: dict[str, Any], table: str, kind: str, key: tuple[str, ...], changes: Any) -> None:
        """One row that is not what it should be."""
        columns = "; ".join(f"{one.column} {one.live} -> {one.right}" for one in changes)
        self.result(body, f"{table} {kind} {' / '.join(key)}{': ' if columns else ''}{columns}")

    def _line(self, body: dict[str, Any]) -> str:
        import msgspec

        return json.dumps(msgspec.to_builtins(body))
