"""Turns pending frames into function calls, packed once, without detours: this is the hot path of every token. Pure.

The arguments of the functions are described in `projections/redis/buffer.lua`.
"""

from collections.abc import Sequence

import msgspec

from projections.buffer import keys
from projections.buffer.replies import Held
from projections.redis import functions
from projections.redis.client import Command, bulks, pack

REPLIES_PER_CALL = 32
"""So many replies share a call on a single server; Redis serves nobody else while it runs (about 0.5 ms)."""
FRAMES_PER_CALL = 1_000
"""Lua's stack bounds what one call can take."""
HEAD_MS = 1_000
"""The head's `offset` and `text_bytes` are at most so old; the list's length is always exact."""

PLAIN = b"%b$%d\r\n%b\r\n$1\r\n0\r\n$1\r\n0\r\n$1\r\n1\r\n$%d\r\n%b\r\n"
"""One frame and nothing else: channel, its offset, no end, no head words, one frame."""


class Lifetimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long a reply's keys live: while it is open, and after its end."""

    open_ms: int
    retention_ms: int
    least_ms: int = 60_000
    """At least so long after the end was written, also in a replay."""


def opening(namespace: str, held: Held, now_ms: int, lifetimes: Lifetimes) -> Command:
    """The call that makes a reply's buffer exist, before its first frame."""
    queued = held.reply.queued
    frames_key, head_key = keys.frames(namespace, queued.reply_id), keys.head(namespace, queued.reply_id)
    fields = {
        "status": "queued",
        "attempt": "1",
        "model": queued.model,
        "offset": "0",
        "text_bytes": "0",
        "conversation_id": queued.conversation_id,
        "account_id": queued.account_id,
        "message_id": queued.message_id,
        "submitted_ms": str(queued.submitted_at_ms),
        "updated_ms": str(now_ms),
    }
    words = [b"FCALL", functions.OPEN, b"2", frames_key, head_key, b"%d" % lifetimes.open_ms]
    words += [word.encode() for field in fields.items() for word in field]
    return Command(frames_key, pack(words))


class Appends:
    """Calls that append, with several replies in one where the store allows it."""

    def __init__(self, namespace: str, now_ms: int, lifetimes: Lifetimes, *, replies_per_call: int) -> None:
        self.calls: list[Command] = []
        self._namespace = namespace
        self._now_ms = now_ms
        self._lifetimes = lifetimes
        self._replies_per_call = replies_per_call
        self._first = b""
        self._keys: list[bytes] = []
        self._parts: list[bytes] = []
        self._words = 0

    def add(self, held: Held) -> int:
        """Append what is pending of a reply; how many answers are about it."""
        frames, now_ms = held.frames, self._now_ms
        ends = held.closing
        if len(frames) == 1 and not ends and not held.changed and now_ms - held.head_ms < HEAD_MS:
            data = frames[0]
            number = b"%d" % held.base
            self._put(held, PLAIN % (held.channel, len(number), number, len(data), data), 6)
            return 1
        words: tuple[bytes, ...] = ()
        if held.changed or ends or now_ms - held.head_ms >= HEAD_MS:
            held.head_ms = now_ms
            words = _head_words(held, now_ms)
        first, answers = held.base, 1
        while len(frames) > FRAMES_PER_CALL:
            self._put(held, _part(held, first, 0, (), frames[:FRAMES_PER_CALL]), 5 + FRAMES_PER_CALL)
            first, frames = first + FRAMES_PER_CALL, frames[FRAMES_PER_CALL:]
            answers += 1
        after_end = _after_end(held, now_ms, self._lifetimes) if ends else 0
        self._put(held, _part(held, first, after_end, words, frames), 5 + len(words) + len(frames))
        return answers

    def finish(self) -> list[Command]:
        """All calls."""
        self._flush()
        return self.calls

    def _put(self, held: Held, part: bytes, words: int) -> None:
        if len(self._keys) >= self._replies_per_call or self._words + words > FRAMES_PER_CALL:
            self._flush()
        if not self._keys:
            self._first = keys.frames(self._namespace, held.reply.queued.reply_id)
        self._keys.append(held.keys)
        self._parts.append(part)
        self._words += words

    def _flush(self) -> None:
        if not self._keys:
            return
        count = 2 * len(self._keys)
        head = b"*%d\r\n%b" % (4 + count + self._words, bulks((b"FCALL", functions.APPEND, b"%d" % count)))
        lifetime = bulks((b"%d" % self._lifetimes.open_ms,))
        self.calls.append(Command(self._first, b"".join((head, *self._keys, lifetime, *self._parts))))
        self._keys, self._parts, self._words = [], [], 0


def mark(namespace: str, partition: int, *, name: str, expected: str, least: int, position: int) -> Command:
    """The call that asks whether the store is still the one we know, and notes how far it has come."""
    key = keys.marker(namespace, partition)
    words = (b"FCALL", functions.MARK, b"1", key, name.encode(), expected.encode(), b"%d" % least, b"%d" % position)
    return Command(key, pack(words))


def unmark(namespace: str, partition: int) -> Command:
    """The call that takes a marker away which says more than is there; the next one begins anew."""
    key = keys.marker(namespace, partition)
    return Command(key, pack((b"DEL", key)))


def _after_end(held: Held, now_ms: int, lifetimes: Lifetimes) -> int:
    """Milliseconds that the buffer lives on from now: the retention counts from the end, also in a replay."""
    ended_ms = held.ended_ms if held.ended_ms is not None else now_ms
    return max(lifetimes.least_ms, lifetimes.retention_ms - max(0, now_ms - ended_ms))


def _part(held: Held, first: int, ends: int, words: Sequence[bytes], frames: Sequence[bytes]) -> bytes:
    numbers = (b"%d" % first, b"%d" % ends, b"%d" % len(words), b"%d" % len(frames))
    return b"".join((held.channel, bulks(numbers), bulks(words), bulks(frames)))


def _head_words(held: Held, now_ms: int) -> tuple[bytes, ...]:
    return (
        b"status",
        held.status.encode(),
        b"attempt",
        b"%d" % held.attempt,
        b"model",
        held.reply.model.encode(),
        b"offset",
        b"%d" % (held.base + len(held.frames) - 1),
        b"text_bytes",
        b"%d" % held.text_bytes,
        b"updated_ms",
        b"%d" % now_ms,
    )
