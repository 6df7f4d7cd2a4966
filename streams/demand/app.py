"""The Faust application: `requests` and `workers` into windowed tables, closed windows into `demand`.

What is waiting is read from `load`, where dispatch measures it. What is remembered of the fleets stands in a table of
its own, so that the days that were learnt outlive the process.

Faust carries this because all of it can be counted again and none of it is a command; see docs/decisions. Rules that
keep it harmless: raw values decoded with the codec, every exception caught in the agent (an exception there would
acknowledge its record), one stream per agent, sends awaited to their acknowledgement, no web server.
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from threading import Event as Flag
from typing import Any

import faust
import msgspec

from schemas.codec import Envelope, Undecodable, decode, encode
from schemas.events import Event, LoadMeasured
from schemas.topics import DEMAND, LOAD, REQUESTS, WORKERS
from streams.demand.changelog import ensure
from streams.demand.emitter import Emitter
from streams.demand.fleet import Fleet, Rules, Said
from streams.demand.heard import Heard
from streams.demand.kept import take_over
from streams.demand.windows import Window, last_closed
from streams.log.steps import LogError

SOURCE = "streams/demand"
GRACE_MS = 2_000
"""A window is said so long after its end, for records on their way."""
TABLE = "windows"
KEPT = "pools"
WINDOWS_KEPT = 10

log = logging.getLogger(__name__)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the application needs to know."""

    bootstrap: str
    namespace: str
    partitions: int
    """Of `requests` and `workers`; the tables' changelogs have as many."""
    replica: int = 0
    rules: Rules = Rules()
    fleets: tuple[Fleet, ...] = ()
    """All that the deployment has."""
    folder: Path | None = None

    @property
    def window_s(self) -> float:
        """Length of a window."""
        return self.rules.smoothing.window_ms / 1000


Hear = Callable[[Sequence[Said]], None]


def build(settings: Settings, said: Hear) -> faust.App:
    """The application, not started. `said` is called with what it says of each window."""
    name = f"{settings.namespace}.demand"
    folder = settings.folder or Path(tempfile.gettempdir()) / f"{name}-{settings.replica}"
    app = faust.App(
        name,
        broker=[f"kafka://{address}" for address in settings.bootstrap.split(",")],
        datadir=folder,
        store="memory://",
        autodiscover=False,
        web_enabled=False,
        topic_disable_leader=True,
        topic_partitions=settings.partitions,
        topic_replication_factor=1,
        key_serializer="json",
        value_serializer="raw",
        consumer_auto_offset_reset="latest",
        consumer_group_instance_id=f"{name}-{settings.replica}",
        broker_session_timeout=10.0,
        broker_heartbeat_interval=3.0,
        broker_commit_interval=5.0,
        stream_wait_empty=False,
        worker_redirect_stdouts=False,
        logging_config=None,
    )
    _Windows(app, settings, said)
    return app


class _Windows:
    """Agent, tables and timer of the application."""

    def __init__(self, app: faust.App, settings: Settings, said: Hear) -> None:
        self._namespace = settings.namespace
        self._window_ms = settings.rules.smoothing.window_ms
        self._said = said
        # Written by the timer, where no record says a partition: so by the key's.
        kept = app.Table(KEPT, partitions=settings.partitions, key_type=str, value_type=bytes, use_partitioner=True)
        self._kept, self._fleets = kept, settings.fleets
        self._emitter = Emitter(settings.rules, kept)
        self._heard = Heard(kept)
        self._table = app.Table(
            TABLE,
            partitions=settings.partitions,
            key_type=str,
            value_type=bytes,
        ).tumbling(settings.window_s, expires=settings.window_s * WINDOWS_KEPT)
        heard = self._names(REQUESTS.name, WORKERS.name, LOAD.name)
        sources = app.topic(*heard, key_serializer="raw", value_serializer="raw")
        self._demand = app.topic(*self._names(DEMAND.name), key_serializer="raw", value_serializer="raw")
        app.agent(sources, name="streams.demand", concurrency=1)(self._count)
        app.timer(min(1.0, settings.window_s / 4))(self._say)

    def _names(self, *topics: str) -> list[str]:
        return [f"{self._namespace}.{topic}" for topic in topics]

    async def _count(self, stream: Any) -> AsyncIterator[None]:
        async for event in stream.events():
            try:
                self._restored()
                self._take(event)
            except Exception:
                log.exception("demand: a record was not counted")
            yield

    def _restored(self) -> None:
        """Records come only once the tables are restored; the first one finds them as the last process left them."""
        take_over(self._kept, self._fleets)
        self._fleets = ()

    def _take(self, record: Any) -> None:
        message = record.message
        try:
            envelope = decode(
                message.value,
                list(message.headers),
                topic=message.topic,
                partition=message.partition,
                offset=message.offset,
            )
        except Undecodable as error:
            log.warning("demand: %s", error)
            return
        event = envelope.event
        if isinstance(event, LoadMeasured):
            self._emitter.measured(event)
            return
        fleet = self._heard.fleet(event, message.offset)
        if fleet is None:
            return
        start_ms = round(message.timestamp * 1000) // self._window_ms * self._window_ms
        before = self._read(fleet, start_ms)
        window = self._heard.counted(before, fleet, event)
        if window != before:
            self._table[fleet.key] = msgspec.json.encode(window)
        self._emitter.hear(fleet, start_ms)

    async def _say(self) -> None:
        try:
            until_ms = last_closed(time.time_ns() // 1_000_000, self._window_ms, GRACE_MS)
            told = self._emitter.say(until_ms, self._read)
            self._said(told)
            for event in told:
                await self._send(event)
        except Exception:
            log.exception("demand: a forecast was not written")

    def _read(self, fleet: Fleet, start_ms: int) -> Window | None:
        try:
            stored = self._table.relative_to(start_ms / 1000)[fleet.key].value()
        except KeyError:  # a table with a default would write it, also when it is only read
            return None
        return msgspec.json.decode(stored, type=Window)

    async def _send(self, event: Event) -> None:
        value, headers = encode(Envelope(event=event, source=SOURCE, time_ms=time.time_ns() // 1_000_000))
        await (await self._demand.send(key=event.key().encode(), value=value, headers=dict(headers)))


def run(settings: Settings, stop: Flag, *, said: Hear, on_turn: Callable[[], None]) -> None:
    """Runs the application until it shall stop.

    Args:
        settings: of the application.
        stop: ends it when set.
        said: called with what it says of each window.
        on_turn: called about twice a second while it is well.

    Raises:
        LogError: it ended by itself; the process must be started anew.
    """
    asyncio.run(_run(settings, stop, said, on_turn))


async def _run(settings: Settings, stop: Flag, said: Hear, on_turn: Callable[[], None]) -> None:
    like = f"{settings.namespace}.{REQUESTS.name}"
    for table, retention_s in ((TABLE, settings.window_s * WINDOWS_KEPT), (KEPT, None)):
        changelog = f"{settings.namespace}.demand-{table}-changelog"
        await ensure(settings.bootstrap, changelog, like, retention_s)
    app = build(settings, said)
    for chatty in ("faust", "mode", "aiokafka"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    app.finalize()
    await app.start()
    try:
        while not stop.is_set():
            if app.crashed or app.should_stop:
                raise LogError(f"the demand application ended: {app.crash_reason!r}")
            on_turn()
            await asyncio.sleep(0.5)
    finally:
        await app.stop()
