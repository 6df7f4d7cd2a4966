"""An API process as far as streams go: the product's `api.following` and `api.reading`.

Its store is in memory, answers late, and pushes through a connection that may break.

Rules of the connection, as of `api.redis_live` and the server behind it:

1. Commands go one way and pushes the other, each in order, each with a delay.
2. A reply is pushed from the moment at which the server takes the subscription; then the confirmation is pushed.
3. When the connection breaks, nothing of it arrives any more, no subscription is confirmed, and tails are forgotten.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from api.accounts import Caller
from api.following import Streams
from api.metrics import Metrics
from api.problems import Problem
from api.reading import Patience, Reader
from api.sse import OpenStreams
from api.stores import HotConversation, Page, PageLimit, StoreDown, Subscription
from api.tails import END_MARK, Tail
from projections.redis.client import StoreUnavailable
from schemas.events import Event, ReplyStored
from schemas.ids import Identities
from tests.simulation.store import MemoryStore

PATIENCE = Patience(
    heartbeat_s=15.0, send_timeout_s=30.0, outage_s=120.0, idle_s=900.0, page=PageLimit(frames=7, bytes=400)
)
TAIL_BYTES_MAX = 600
"""Less than a long reply, so that readers fall behind it."""
METRICS = Metrics()


class Delays(msgspec.Struct, frozen=True):
    """How long a message between the API and Redis is under way, one way; drawn anew for each."""

    draw: Callable[[], int]
    lost: Callable[[], bool]
    """Whether a push does not arrive."""


class VirtualLoop:
    """As much of an event loop as a reader asks for, in virtual time. Coroutines are driven by `Task`."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._timers: list[tuple[int, int, Callable[[], object]]] = []
        self._count = 0

    def time(self) -> float:
        return self._now_ms() / 1000

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._timers, (self._now_ms() + round(delay_s * 1000), self._count, callback))

    def run_due(self) -> None:
        """Call what is due."""
        while self._timers and self._timers[0][0] <= self._now_ms():
            heapq.heappop(self._timers)[2]()

    async def after(self, delay_ms: int) -> None:
        """Wait."""
        if delay_ms:
            waiting = self.create_future()
            self.call_later(delay_ms / 1000, lambda: waiting.done() or waiting.set_result(None))
            await waiting


class Task:
    """A coroutine that goes on when it is stepped and what it waits for has come."""

    def __init__(self, loop: VirtualLoop, begin: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._loop = loop
        self._begin = begin
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._waiting: asyncio.Future[Any] | None = None
        self.done = False
        self.result: Any = None

    def step(self) -> bool:
        """Whether it has come to its end. What the coroutine raises is raised."""
        if self.done or (self._waiting is not None and not self._waiting.done()):
            return self.done
        if self._coroutine is None:
            self._coroutine = self._begin()
        asyncio._set_running_loop(self._loop)  # type: ignore[arg-type]
        try:
            self._waiting = self._coroutine.send(None)
        except StopIteration as ended:
            self.done, self.result = True, ended.value
        finally:
            asyncio._set_running_loop(None)
        return self.done

    def close(self) -> None:
        """The client has left."""
        if self._coroutine is not None:
            self._coroutine.close()


class _Followed:
    """A reply with readers."""

    def __init__(self) -> None:
        self.tail = Tail(TAIL_BYTES_MAX)
        self.confirmed = False
        self.readers: dict[_Place, None] = {}


class _Place:
    """See `api.stores.Subscription`."""

    def __init__(
        self,
        live: "Connection",
        reply_id: str,
        followed: _Followed,
        wake: Callable[[], None],
        again: Callable[[], None],
    ) -> None:
        self._live = live
        self._reply_id = reply_id
        self._followed = followed
        self.wake = wake
        self.again = again

    @property
    def tail(self) -> Tail:
        return self._followed.tail

    @property
    def confirmed(self) -> bool:
        return self._followed.confirmed

    def close(self) -> None:
        self._live.leave(self._reply_id, self._followed, self)


class Connection:
    """`LiveFrames` on one connection to the store; see the rules of this module."""

    def __init__(self, store: MemoryStore, now_ms: Callable[[], int], delays: Delays) -> None:
        self._store = store
        self._now_ms = now_ms
        self._delays = delays
        self._followed: dict[str, _Followed] = {}
        self._commands: deque[tuple[int, bool, str]] = deque()
        self._pushed: deque[tuple[int, str, int, tuple[bytes, ...]]] = deque()
        self._connect_ms: int | None = 0
        self.lost_ms = -(10**9)
        """When a push was last lost, or the connection."""

    @property
    def connected(self) -> bool:
        return self._connect_ms is None

    def follow(self, reply_id: str, wake: Callable[[], None], again: Callable[[], None]) -> Subscription:
        followed = self._followed.get(reply_id)
        if followed is None:
            followed = self._followed[reply_id] = _Followed()
            self._send(True, reply_id)
        place = _Place(self, reply_id, followed, wake, again)
        followed.readers[place] = None
        return place

    def leave(self, reply_id: str, followed: _Followed, place: _Place) -> None:
        """A reader leaves; the last one unsubscribes."""
        followed.readers.pop(place, None)
        if not followed.readers and self._followed.get(reply_id) is followed:
            del self._followed[reply_id]
            self._send(False, reply_id)

    def published(self, reply_id: str, first: int, frames: Sequence[bytes]) -> None:
        """Of the store: a push begins its way."""
        if self._delays.lost():
            self.lost_ms = self._now_ms()
        else:
            self._push(reply_id, first, tuple(frames))

    def cut(self) -> None:
        """The connection breaks."""
        if self in self._store.connections:
            self._store.connections.remove(self)
        for subscribers in self._store.subscribers.values():
            if self in subscribers:
                subscribers.remove(self)
        self._commands.clear()
        self._pushed.clear()
        self._connect_ms = self._now_ms() + 50 + self._delays.draw()
        self.lost_ms = self._now_ms()
        for followed in self._followed.values():
            followed.confirmed = False
            followed.tail.clear()

    def gone(self) -> None:
        """The process has ended."""
        self.cut()
        self._followed.clear()

    def turn(self) -> None:
        """Let happen what is due."""
        now_ms = self._now_ms()
        if self._connect_ms is not None:
            self._connect(now_ms)
        while self._commands and self._commands[0][0] <= now_ms:
            _, begins, reply_id = self._commands.popleft()
            subscribers = self._store.subscribers.setdefault(reply_id, [])
            if begins:
                if self not in subscribers:
                    subscribers.append(self)
                self._push(reply_id, 0, ())
            elif self in subscribers:
                subscribers.remove(self)
        while self._pushed and self._pushed[0][0] <= now_ms:
            self._arrived(*self._pushed.popleft()[1:])

    def _arrived(self, reply_id: str, first: int, frames: Sequence[bytes]) -> None:
        followed = self._followed.get(reply_id)
        if followed is None:
            return
        if first == 0:
            followed.confirmed = True
            for reader in followed.readers:
                reader.again()
        else:
            followed.tail.add(first, first + len(frames) - 1, b"".join(frames))
            for reader in followed.readers:
                reader.wake()

    def _connect(self, now_ms: int) -> None:
        if self._store.down or now_ms < (self._connect_ms or 0):
            return
        self._connect_ms = None
        self._store.connections.append(self)
        for reply_id in self._followed:
            self._send(True, reply_id)

    def _send(self, begins: bool, reply_id: str) -> None:
        if self._connect_ms is None:
            due_ms = self._now_ms() + self._delays.draw()
            self._commands.append((max(due_ms, self._commands[-1][0] if self._commands else 0), begins, reply_id))

    def _push(self, reply_id: str, first: int, frames: tuple[bytes, ...]) -> None:
        due_ms = self._now_ms() + self._delays.draw()
        self._pushed.append((max(due_ms, self._pushed[-1][0] if self._pushed else 0), reply_id, first, frames))


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
        caller = Caller(account_id=account_id, key_id="key", tier="free", requests_per_minute=None)
        try:
            begun = await self._streams.begin(caller, parsed, cursor)
        except Problem as problem:
            return problem.status
        return 204 if begun is None else Opened(begun.reader, b"".join(begun.frames))
