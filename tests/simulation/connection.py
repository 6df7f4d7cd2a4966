"""The connection of an API process to the store, over which frames are pushed.

Rules, as of `api.redis_live` and the server behind it:

1. Commands go one way and pushes the other, each in order, each with a delay.
2. A reply is pushed from the moment at which the server takes the subscription; then the confirmation is pushed.
3. When the connection breaks, nothing of it arrives any more, no subscription is confirmed, and tails are forgotten.
"""

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from api.stores import Subscription
from api.tails import Tail
from tests.simulation.store import MemoryStore

TAIL_BYTES_MAX = 600
"""Less than a long reply, so that readers fall behind it."""


class Delays(msgspec.Struct, frozen=True):
    """How long a message between the API and Redis is under way, one way; drawn anew for each."""

    draw: Callable[[], int]
    lost: Callable[[], bool]
    """Whether a push does not arrive."""


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
