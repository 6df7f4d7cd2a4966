"""The stream buffer's store in memory: the functions of `projections/redis/buffer.lua`, without expiry.

Takes the same packed commands, so that the projection's own step runs on it unchanged. `lose()` is a flush.
"""

from collections.abc import Sequence
from typing import Any

from projections.redis import functions
from projections.redis.client import Command

GAP, CLOSED = functions.GAP, functions.CLOSED


class Buffer:
    """One reply's keys."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.closed = False


class MemoryStore:
    """See `projections.redis.client.Store`."""

    clustered = False

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self._markers: dict[bytes, tuple[bytes, int]] = {}

    def call(self, commands: Sequence[Command]) -> list[Any]:
        """The answers, in order."""
        return [self._answer(words_of(command.packed)) for command in commands]

    def load_library(self, source: str) -> bool:
        """It is there."""
        return False

    def lose(self) -> None:
        """Everything is gone."""
        self.buffers.clear()
        self._markers.clear()

    def frames(self, reply_id: str) -> list[bytes]:
        """What a reader of the reply finds."""
        found = self.buffers.get(reply_id)
        return found.frames if found else []

    def _answer(self, words: list[bytes]) -> Any:
        name, count = words[1], int(words[2])
        keys, args = words[3 : 3 + count], words[3 + count :]
        if name == functions.OPEN:
            return self._open(keys)
        if name == functions.APPEND:
            return self._append(keys, args)
        return self._mark(keys[0], args)

    def _open(self, keys: Sequence[bytes]) -> int:
        buffer = self.buffers.setdefault(reply_of(keys[0]), Buffer())
        return CLOSED if buffer.closed else len(buffer.frames)

    def _append(self, keys: Sequence[bytes], args: Sequence[bytes]) -> list[int]:
        answers = []
        at = 1
        for key in keys[::2]:
            first, ends, words, frames = int(args[at + 1]), args[at + 2], int(args[at + 3]), int(args[at + 4])
            begin = at + 5 + words
            new = list(args[begin : begin + frames])
            answers.append(self._append_one(self.buffers.get(reply_of(key)), first, new, ends=ends != b"0"))
            at = begin + frames
        return answers

    @staticmethod
    def _append_one(buffer: Buffer | None, first: int, new: list[bytes], *, ends: bool) -> int:
        if buffer is None or len(buffer.frames) < first - 1:
            return GAP
        new = new[len(buffer.frames) - first + 1 :]
        if buffer.closed:
            return CLOSED if new else len(buffer.frames)
        buffer.frames += new
        buffer.closed = buffer.closed or ends
        return len(buffer.frames)

    def _mark(self, key: bytes, args: Sequence[bytes]) -> bytes:
        fresh, wanted, least, position = args[0], args[1], int(args[2]), int(args[3])
        name, there = self._markers.get(key, (b"", 0))
        if wanted and (name != wanted or there < least):
            return b""
        self._markers[key] = (name or fresh, max(there, position))
        return name or fresh


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
