"""One reader of one reply's stream: replay, then live, each frame once and in order.

Rules:

1. Subscribe first, then read the stored list from the cursor, then go on with the live tail, by offset. Whatever may
   have been missed (a gap, a reconnect, a silent heartbeat) is answered by reading the list again.
2. The end is the frame `ended` in list or tail, never a notification. Without it the reader ends only when it is
   stopped (shutdown), when the store stays away for `outage_s`, or after `idle_s` without a frame; the client resumes.
3. Frames are passed on as they stand. A heartbeat comes only between frames, from the same writer.
4. The reader holds nothing but its cursor: how far a slow client is behind costs no memory here.
5. A reply that the buffer does not know (any more) is looked up in the stored replies, and served from there where
   that is exact. Of all readers of a process one looks up at a time, and not often: thousands may wait.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from api.replay import Unserved, stored_frames
from api.stores import HotStore, LiveFrames, PageLimit, StoreDown, Subscription
from api.tails import END_MARK
from schemas.events import ReplyStored

HEARTBEAT = b": hb\n"
"""One comment line without a blank line after it, which openai-python needs."""
RETRY_S = 0.5
"""Between two tries of reading a list that cannot be read."""
LOOKUP_PAUSE_S = 0.02
"""Between two looks at the stored replies, of all readers."""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long a reader waits for what."""

    heartbeat_s: float
    send_timeout_s: float
    """A client that takes nothing for so long is cut off."""
    outage_s: float
    idle_s: float
    page: PageLimit
    """What is read from the list at once: so much may wait for a client that takes nothing."""


FindStored = Callable[[], Awaitable[ReplyStored | None]]


class Lookups:
    """Whose turn it is to look up a stored reply."""

    def __init__(self) -> None:
        self._free = True

    async def find(self, find_stored: FindStored) -> ReplyStored | None:
        """The stored reply; None also when it is not this one's turn. Raises `StoreDown`."""
        if not self._free:
            return None
        self._free = False
        try:
            return await find_stored()
        finally:
            asyncio.get_running_loop().call_later(LOOKUP_PAUSE_S, self._next)

    def _next(self) -> None:
        self._free = True


class Reader:
    """See the rules of this module. Used by one task; `wake`, `stop` and `tick` may come from others of the loop."""

    __slots__ = (
        "_again",
        "_beat_due",
        "_conversation_id",
        "_find_stored",
        "_finished",
        "_hot",
        "_last_data_s",
        "_live",
        "_lookups",
        "_lost_since_s",
        "_now_s",
        "_patience",
        "_reply_id",
        "_stopped",
        "_subscription",
        "_waiter",
        "_woken",
        "cursor",
    )

    def __init__(
        self,
        reply_id: str,
        conversation_id: str,
        cursor: int,
        *,
        hot: HotStore,
        live: LiveFrames,
        find_stored: FindStored,
        patience: Patience,
        now_s: Callable[[], float],
        lookups: Lookups | None = None,
    ) -> None:
        self.cursor = cursor
        self._lookups = lookups or Lookups()
        self._reply_id = reply_id
        self._conversation_id = conversation_id
        self._hot = hot
        self._live = live
        self._find_stored = find_stored
        self._patience = patience
        self._now_s = now_s
        self._subscription: Subscription | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._woken = False
        self._again = False
        self._beat_due = False
        self._stopped = False
        self._finished = False
        self._last_data_s = now_s()
        self._lost_since_s: float | None = None

    def follow(self) -> None:
        """Begin to subscribe; returns at once. `next` does it otherwise."""
        if self._subscription is None:
            self._subscription = self._live.follow(self._reply_id, self.wake, self._look_again)
            self._again = self._subscription.confirmed

    def wake(self) -> None:
        """There is something to look at."""
        self._woken = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def stop(self) -> None:
        """End at the next boundary of frames."""
        self._stopped = True
        self.wake()

    def beat(self) -> None:
        """Nothing was sent for a while: a heartbeat is due, and the list is read again."""
        self._beat_due = True
        if self._subscription is not None:
            self._subscription.tail.forget()
        self._look_again()

    def close(self) -> None:
        """Leave the subscription."""
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    def given(self, frames: bytes, cursor: int) -> None:
        """Frames up to `cursor` were read elsewhere and are on their way to the client."""
        self.cursor = cursor
        self._last_data_s = self._now_s()
        self._finished = END_MARK in frames

    @property
    def finished(self) -> bool:
        """The client has, or is just being given, the last frame."""
        return self._finished

    async def next(self) -> bytes | None:
        """The next bytes for the client: whole frames, or a heartbeat. None: the stream is over."""
        if not self._finished:
            self.follow()
        while not (self._finished or self._stopped):
            self._woken = False
            frames = await self._available()
            if frames:
                return frames
            if self._finished or self._stopped:
                break
            if self._beat_due:
                self._beat_due = False
                if self._out_of_patience():
                    break
                return HEARTBEAT
            await self._wait()
        return None

    async def _available(self) -> bytes:
        subscription = self._subscription
        if subscription is None or not subscription.confirmed:
            return b""
        behind = subscription.tail.after(self.cursor)
        if behind is not None and behind[1]:
            self.given(behind[1], behind[0])
            return behind[1]
        if behind is None or self._again:
            return await self._from_list()
        return b""

    async def _from_list(self) -> bytes:
        self._again = False
        try:
            page = await self._hot.page(self._reply_id, self._conversation_id, self.cursor, self._patience.page)
        except StoreDown:
            self._lost_since_s = self._lost_since_s or self._now_s()
            self._again = True
            asyncio.get_running_loop().call_later(RETRY_S, self.wake)
            return b""
        self._lost_since_s = None
        if page.frames:
            frames = b"".join(page.frames)
            self.given(frames, self.cursor + len(page.frames))
            self._again = self.cursor < page.newest
            return frames
        if page.cut or page.ended:
            self._finished = True  # the client's next request is told so (410, or 204 where it has everything)
        elif page.newest == 0 and not page.opened and self._beat_due:
            return await self._from_stored()
        return b""

    async def _from_stored(self) -> bytes:
        try:
            stored = await self._lookups.find(self._find_stored)
        except StoreDown:
            return b""
        if stored is None:
            return b""
        served = stored_frames(stored, self.cursor)
        if isinstance(served, Unserved):
            # The client's next request is told so (410); nothing inexact goes out here.
            self._finished = True
            return b""
        frames = b"".join(served)
        self.given(frames, stored.final_offset)
        self._finished = True
        return frames

    async def _wait(self) -> None:
        if self._woken:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _look_again(self) -> None:
        self._again = True
        self.wake()

    def _out_of_patience(self) -> bool:
        silent_s = self._now_s() - self._last_data_s
        followed = self._subscription is not None and self._subscription.confirmed
        lost_s = self._now_s() - self._lost_since_s if self._lost_since_s is not None else 0.0
        if not followed:
            lost_s = max(lost_s, silent_s)
        return lost_s > self._patience.outage_s or silent_s > self._patience.idle_s
