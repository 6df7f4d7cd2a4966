"""The stream buffer's store in memory: the functions of `projections/redis/buffer.lua`, without expiry.

Takes the same packed commands, so that the projection's own step runs on it unchanged, and tells its subscribers what
is appended. In the hands of a test: `lose` (a flush, or a new empty server), `down`, `fail_over` (the newest commands
were not on the replica that took over), `fate` (an answer that is lost).
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from projections.redis import functions
from projections.redis.client import Command, FunctionMissing, StoreUnavailable
from schemas.events import Event
from schemas.stream import parse_frame

GAP, CLOSED = functions.GAP, functions.CLOSED


class Subscriber(Protocol):
    """A connection that follows replies."""

    def published(self, reply_id: str, first: int, frames: Sequence[bytes]) -> None:
        """These frames were appended."""

    def cut(self) -> None:
        """The server is gone."""


class Buffer:
    """One reply's keys."""

    __slots__ = ("closed", "frames")

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.closed = False


def _once() -> int | None:
    return None


class MemoryStore:
    """See `projections.redis.client.Store`."""

    clustered = False

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.recent: dict[str, list[Event]] = {}
        self.deleted: set[str] = set()
        self.subscribers: dict[str, list[Subscriber]] = {}
        self.connections: list[Subscriber] = []
        self.down = False
        self.losses = 0
        """How often something was lost."""
        self.fate: Callable[[], int | None] = _once
        """After how many commands of a call the connection breaks; None: it does not."""
        self.wrong: list[str] = []
        """Frames that do not belong where somebody wanted to write them."""
        self._ever: dict[str, list[bytes]] = {}
        self._markers: dict[bytes, tuple[bytes, int]] = {}
        self._loaded = True
        self._undo: list[Callable[[], object]] = []

    def call(self, commands: Sequence[Command]) -> list[Any]:
        """The answers, in order."""
        self.reachable()
        if not self._loaded:
            raise FunctionMissing("ERR Function not found")
        breaks = self.fate()
        answers = [self._answer(words_of(command.packed)) for command in commands[:breaks]]
        if breaks is not None:
            raise StoreUnavailable("the connection was lost")
        return answers

    def reachable(self) -> None:
        """Raises `StoreUnavailable` while it is down."""
        if self.down:
            raise StoreUnavailable("it is down")

    def load_library(self, source: str) -> bool:
        """Load the functions."""
        self.reachable()
        self._loaded = True
        return True

    # --- faults -------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """The server is gone, with its connections."""
        self.down = True
        for connection in list(self.connections):
            connection.cut()

    def lose(self, *, functions_too: bool = False) -> None:
        """Everything is gone."""
        self.losses += 1
        for held in (self.buffers, self.recent, self._markers, self._undo):
            held.clear()
        self.deleted.clear()
        self._loaded = not functions_too

    def fail_over(self, commands: int) -> None:
        """A replica takes over that has not seen the last so many commands."""
        self.losses += 1
        for _ in range(min(commands, len(self._undo))):
            self._undo.pop()()

    # --- readers ------------------------------------------------------------------------------------------------

    def frames(self, reply_id: str) -> list[bytes]:
        """What a reader of the reply finds."""
        found = self.buffers.get(reply_id)
        return found.frames if found else []

    # --- functions ----------------------------------------------------------------------------------------------

    def _answer(self, words: list[bytes]) -> Any:
        if words[0] == b"DEL":
            return self._unmark(words[1])
        name, count = words[1], int(words[2])
        keys, args = words[3 : 3 + count], words[3 + count :]
        if name == functions.OPEN:
            return self._open(keys)
        if name == functions.APPEND:
            return self._append(keys, args)
        return self._mark(keys[0], args)

    def _open(self, keys: Sequence[bytes]) -> int:
        reply_id = reply_of(keys[0])
        if reply_id not in self.buffers:
            self.buffers[reply_id] = Buffer()
            self._undo.append(lambda: self.buffers.pop(reply_id, None))
        buffer = self.buffers[reply_id]
        return CLOSED if buffer.closed else len(buffer.frames)

    def _append(self, keys: Sequence[bytes], args: Sequence[bytes]) -> list[int]:
        answers = []
        at = 1
        for key in keys[::2]:
            first, ends, words, frames = int(args[at + 1]), args[at + 2], int(args[at + 3]), int(args[at + 4])
            begin = at + 5 + words
            new = list(args[begin : begin + frames])
            answers.append(self._append_one(reply_of(key), first, new, ends=ends != b"0"))
            at = begin + frames
        return answers

    def _append_one(self, reply_id: str, first: int, new: list[bytes], *, ends: bool) -> int:
        self._compare(reply_id, first, new)
        buffer = self.buffers.get(reply_id)
        if buffer is None or len(buffer.frames) < first - 1:
            return GAP
        new = new[len(buffer.frames) - first + 1 :]
        if buffer.closed:
            return CLOSED if new else len(buffer.frames)
        return self.put(reply_id, buffer, new, ends=ends)

    def put(self, reply_id: str, buffer: Buffer, new: list[bytes], *, ends: bool) -> int:
        """Append to the list, tell the subscribers; the newest offset."""
        there, closed = len(buffer.frames), buffer.closed

        def undo() -> None:
            del buffer.frames[there:]
            buffer.closed = closed

        self._undo.append(undo)
        buffer.frames += new
        buffer.closed = closed or ends
        if new:
            for subscriber in self.subscribers.get(reply_id, ()):
                subscriber.published(reply_id, there + 1, new)
        return len(buffer.frames)

    def _compare(self, reply_id: str, first: int, new: Sequence[bytes]) -> None:
        ever = self._ever.setdefault(reply_id, [])
        for offset, data in enumerate(new, first):
            if offset == len(ever) + 1:
                ever.append(data)
                if parse_frame(data)[0] != offset:
                    self.wrong.append(f"{data!r} of {reply_id} at {offset}")
            elif offset > len(ever) or ever[offset - 1] != data:
                self.wrong.append(f"{data!r} of {reply_id} at {offset}, where {ever[offset - 1 : offset]} was")

    def _mark(self, key: bytes, args: Sequence[bytes]) -> bytes:
        fresh, wanted, least, position = args[0], args[1], int(args[2]), int(args[3])
        before = self._markers.get(key)
        name, there = before or (b"", 0)
        if wanted and (name != wanted or there < least):
            return b""
        after = self._markers[key] = (name or fresh, max(there, position))
        if after != before:
            self._undo.append(lambda: self._marked_again(key, before))
        return name or fresh

    def _unmark(self, key: bytes) -> int:
        before = self._markers.pop(key, None)
        if before is not None:
            self._undo.append(lambda: self._marked_again(key, before))
        return int(before is not None)

    def _marked_again(self, key: bytes, before: tuple[bytes, int] | None) -> None:
        self._markers.pop(key, None)
        if before is not None:
            self._markers[key] = before


def words_of(packed: bytes) -> list[bytes]:
    """The words of a packed command (the Redis protocol's array of bulk strings)."""
    line_end = packed.index(b"\r\n")
    count, at = int(packed[1:line_end]), line_end + 2
    words = []
    for _ in range(count):
        line_end = packed.index(b"\r\n", at)
        size = int(packed[at + 1 : line_end])
        words.append(packed[line_end + 2 : line_end + 2 + size])
        at = line_end + 2 + size + 2
    if at != len(packed):
        raise ValueError(f"{len(packed) - at} bytes after {count} words")
    return words


def reply_of(key: bytes) -> str:
    """The reply that a key belongs to: its hash tag."""
    return key[key.index(b"{") + 1 : key.index(b"}")].decode()
