"""An API process as far as streams go: the product's `api.following` and `api.reading`.

Its store is in memory, answers late, and pushes through a connection that may break.
"""

from collections.abc import Callable

import msgspec

from api.accounts import Caller
from api.following import Streams
from api.metrics import Metrics
from api.problems import Problem
from api.reading import Patience, Reader
from api.sse import OpenStreams
from api.stores import HotConversation, Page, PageLimit, StoreDown
from api.tails import END_MARK
from projections.redis.client import StoreUnavailable
from schemas.codec import decode
from schemas.events import ConversationDeleted, Event, ReplyStored
from schemas.ids import Identities
from schemas.tiers import DEFAULT_TIERS
from streams.log.steps import Record
from tests.simulation.connection import Connection, Delays
from tests.simulation.store import MemoryStore
from tests.simulation.virtual import Task, VirtualLoop

PATIENCE = Patience(
    heartbeat_s=15.0, send_timeout_s=30.0, outage_s=120.0, idle_s=900.0, page=PageLimit(frames=7, bytes=400)
)
METRICS = Metrics()


class Hot:
    """What a reader asks of `HotStore`, each answer with its way there and back."""

    def __init__(self, store: MemoryStore, loop: VirtualLoop, delays: Delays) -> None:
        self._store = store
        self._loop = loop
        self._delays = delays

    async def page(self, reply_id: str, conversation_id: str, after: int, limit: PageLimit) -> Page:
        await self._loop.after(self._delays.draw())
        self._answers()
        held = self._store.frames(reply_id)
        found: list[bytes] = []
        for data in held[after : after + limit.frames]:
            if sum(map(len, found)) >= limit.bytes:
                break
            found.append(data)
        page = Page(
            frames=tuple(found),
            newest=len(held),
            ended=bool(held) and END_MARK in held[-1],
            cut=False,
            deleted=conversation_id in self._store.deleted,
            opened=reply_id in self._store.buffers,
        )
        await self._loop.after(self._delays.draw())
        self._answers()
        return page

    async def recent(self, conversation_id: str) -> HotConversation:
        self._answers()
        events = tuple(enumerate(self._store.recent.get(conversation_id, ())))
        return HotConversation(deleted=conversation_id in self._store.deleted, events=events)

    def _answers(self) -> None:
        try:
            self._store.reachable()
        except StoreUnavailable as failure:
            raise StoreDown("redis", str(failure)) from failure


class Views:
    """What a reader asks of `api.stores.Views`; a moment behind the log."""

    def __init__(self) -> None:
        self.stored: dict[str, ReplyStored] = {}
        self.events: dict[str, list[tuple[int, Event]]] = {}

    def take(self, record: Record) -> None:
        """A record of `messages`."""
        event = decode(record.value, record.headers).event
        if isinstance(event, ReplyStored):
            self.stored[event.reply_id] = event
        elif isinstance(event, ConversationDeleted):
            self.events.setdefault(event.conversation_id, []).append((record.offset, event))

    async def stored_reply(self, account_id: str, conversation_id: str, reply_id: str) -> ReplyStored | None:
        return self.stored.get(reply_id)

    async def conversation_events(self, account_id: str, conversation_id: str) -> tuple[tuple[int, Event], ...]:
        return tuple(self.events.get(conversation_id, ()))


class Opened(msgspec.Struct):
    """A stream that begins with these bytes and goes on from this reader."""

    reader: Reader
    first: bytes


class Front:
    """One API process."""

    def __init__(
        self, store: MemoryStore, views: Views, loop: VirtualLoop, now_ms: Callable[[], int], delays: Delays
    ) -> None:
        self.connection = Connection(store, now_ms, delays)
        self.views = views
        self.loop = loop
        self.alive = True
        self._streams = Streams(
            hot=Hot(store, loop, delays),  # type: ignore[arg-type]
            live=self.connection,
            views=views,  # type: ignore[arg-type]
            open_streams=OpenStreams(PATIENCE, METRICS, 10**6),
            patience=PATIENCE,
            now_s=lambda: now_ms() / 1000,
            now_ms=now_ms,
        )

    def turn(self, now_ms: int) -> None:
        """Let happen what is due; its readers are stepped by the audience."""
        self.connection.turn()

    def killed(self) -> None:
        """The process is gone."""
        self.alive = False
        self.connection.gone()

    def stop(self, now_ms: int) -> None:
        """SIGTERM: its clients resume elsewhere."""
        self.killed()

    def close(self) -> None:
        """Nothing is held."""

    def open(self, identities: Identities, account_id: str, reply_id: str, cursor: int) -> Task:
        """A request for a stream. Its result is `Opened`, or the status of what was answered instead."""
        return Task(self.loop, lambda: self._answer(identities, account_id, reply_id, cursor))

    async def _answer(self, identities: Identities, account_id: str, reply_id: str, cursor: int) -> Opened | int:
        parsed = identities.parse(account_id, reply_id)
        if parsed is None:
            return 404
        caller = Caller(account_id=account_id, key_id="key", tier="free", rules=DEFAULT_TIERS["free"])
        try:
            begun = await self._streams.begin(caller, parsed, cursor)
        except Problem as problem:
            return problem.status
        return 204 if begun is None else Opened(begun.reader, b"".join(begun.frames))
