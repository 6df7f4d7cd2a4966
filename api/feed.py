"""The feed of a conversation: what happens to it, exact and resumable, for other tabs and devices.

Rules:

1. The views tell how far they are (`Views.progress`): below that every row is there. Only what is below it is shown,
   so nothing can turn up behind a reader's back, and the order is that of the log.
2. One follower per process asks for the progress while feeds are open, and where it has advanced, for the new events
   of the conversations that are followed. It hands them to their feeds.
3. A feed is known to the follower first and loads its conversation then, so the two overlap. It shows what has an id
   above its cursor, and no message or end that it knows already; so neither overlap nor duplicates are seen.
4. A feed keeps a bounded number of events for a slow client. One more, and it forgets them and loads again from its
   cursor when the client goes on.
5. While ClickHouse is away an open feed waits, and goes on where it was.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

import structlog

from api.feed_events import FeedEvent, feed_event
from api.sharing import Shared
from api.stores import OwnConversation, Placed, StoreDown, Views

log = structlog.get_logger()

LIVE_MAX = 256
"""Events that a feed keeps for a client that is slow."""
CONVERSATIONS_MAX = 200
"""Of one question."""
LOADS_AT_ONCE = 4
"""Conversations loaded at a time; feeds of one that load at once share it."""
RETRY_S = 1.0
"""Between two tries to load a conversation."""


class Feed:
    """One reader's feed; a `Source`. See the rules of this module."""

    def __init__(self, feeds: "Feeds", conversation: OwnConversation, cursor: int) -> None:
        self.conversation = conversation
        self.cursor = cursor
        self._feeds = feeds
        self._known: set[str] = set()
        self._loaded_to = 0
        self._loaded: deque[FeedEvent] = deque()
        self._live: deque[FeedEvent] = deque()
        self._again = True
        self._over = False
        self._woken = asyncio.Event()

    def add(self, event: FeedEvent) -> None:
        """The follower has one more."""
        if self._again:
            return
        self._live.append(event)
        if len(self._live) > LIVE_MAX:
            self.look_again()
        self._woken.set()

    def look_again(self) -> None:
        """Something may have been missed: load from the cursor."""
        self._live.clear()
        self._again = True
        self._woken.set()

    def beat(self) -> None:
        """Heartbeats are the response's own."""

    def stop(self) -> None:
        """End at the next boundary."""
        self._over = True
        self._woken.set()

    def close(self) -> None:
        """Leave the follower."""
        self._feeds.leave(self)

    async def load(self) -> None:
        """Read what there is. Raises `StoreDown`; then it is tried again by `next`."""
        self._again = False  # from here on the follower's events are kept
        try:
            placed = await self._feeds.load(self.conversation, self._loaded_to)
        except StoreDown:
            self.look_again()
            raise
        self._loaded.extend(made for one in placed if (made := feed_event(one.offset, one.event)) is not None)

    def ready(self) -> tuple[bytes, ...]:
        """The events that need not be waited for."""
        frames: list[bytes] = []
        while not self._over and (frame := self._next_ready()) is not None:
            frames.append(frame)
        return tuple(frames)

    async def next(self) -> bytes | None:
        """The next event. None: the feed is over."""
        while not self._over:
            self._woken.clear()
            frame = self._next_ready()
            if frame is not None:
                return frame
            if self._again:
                await self._load_or_wait()
            else:
                await self._woken.wait()
        return None

    def _next_ready(self) -> bytes | None:
        while self._loaded or self._live:
            event = (self._loaded or self._live).popleft()
            if self._is_new(event):
                self.cursor = event.id
                self._over = event.last
                return event.frame
        return None

    def _is_new(self, event: FeedEvent) -> bool:
        # Also what is below the cursor is noted: it may come again above it.
        again = event.identity in self._known
        if event.identity:
            self._known.add(event.identity)
        self._loaded_to = max(self._loaded_to, event.id)
        return event.id > self.cursor and not again

    async def _load_or_wait(self) -> None:
        try:
            await self.load()
        except StoreDown:
            self._woken.clear()
            try:
                async with asyncio.timeout(RETRY_S):
                    await self._woken.wait()
            except TimeoutError:
                return


class Feeds:
    """The follower of a process, and its feeds."""

    def __init__(self, views: Views, every_s: float = 0.3) -> None:
        self._views = views
        self._every_s = every_s
        self._feeds: dict[OwnConversation, set[Feed]] = {}
        self._reached: dict[int, int] = {}
        self._following: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()
        self._loads: Shared[tuple[Placed, ...]] = Shared(LOADS_AT_ONCE)

    async def open(self, conversation: OwnConversation, cursor: int) -> Feed:
        """A feed after a cursor, with what there is. Raises `StoreDown`."""
        feed = Feed(self, conversation, cursor)
        self._feeds.setdefault(conversation, set()).add(feed)
        try:
            async with self._beginning:
                if self._following is None:
                    self._reached = dict(await self._views.progress())
                    self._following = asyncio.create_task(self._follow())
                    self._following.add_done_callback(self._ended)
            await feed.load()
        except BaseException:
            feed.close()
            raise
        return feed

    async def load(self, conversation: OwnConversation, first: int) -> tuple[Placed, ...]:
        """The conversation's events from an offset on, as far as the views are. Raises `StoreDown`."""
        return await self._loads.ask((conversation, first), lambda: self._load(conversation, first))

    async def _load(self, conversation: OwnConversation, first: int) -> tuple[Placed, ...]:
        progress = await self._views.progress()
        ranges = {number: (first, reached) for number, reached in progress.items()}
        return await self._views.events_between([conversation], ranges)

    def leave(self, feed: Feed) -> None:
        """A feed is over; after the last one nobody asks any more."""
        feeds = self._feeds.get(feed.conversation, set())
        feeds.discard(feed)
        if not feeds:
            self._feeds.pop(feed.conversation, None)
        if not self._feeds and self._following is not None:
            self._following.cancel()
            self._following = None

    @property
    def following(self) -> bool:
        """Whether the follower runs."""
        return self._following is not None

    async def _follow(self) -> None:
        away = False
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._look()
            except StoreDown as down:
                if not away:
                    log.warning("feeds wait for the views", reason=down.reason)
                away = True
            else:
                away = False

    async def _look(self) -> None:
        progress = await self._views.progress()
        new = progress.keys() - self._reached.keys()
        ranges = {
            number: (self._reached[number], reached)
            for number, reached in progress.items()
            if number not in new and reached > self._reached[number]
        }
        if ranges:
            # Feeds that come from here on load at least as far as this progress.
            for some in _portions(list(self._feeds), CONVERSATIONS_MAX):
                self._hand_out(await self._views.events_between(some, ranges))
        self._reached |= progress
        if new:
            for feed in self._all():
                feed.look_again()

    def _hand_out(self, placed: Sequence[Placed]) -> None:
        for one in placed:
            event = feed_event(one.offset, one.event)
            if event is not None:
                for feed in self._feeds.get(one.conversation, ()):
                    feed.add(event)

    def _all(self) -> list[Feed]:
        return [feed for feeds in self._feeds.values() for feed in feeds]

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug: the feeds end, their clients resume, and the next one starts a new follower.
            log.error("feeds are not followed any more", exc_info=error)
            self._following = None
            for feed in self._all():
                feed.stop()


def _portions(items: Sequence[OwnConversation], most: int) -> Iterator[Sequence[OwnConversation]]:
    for first in range(0, len(items), most):
        yield items[first : first + most]
