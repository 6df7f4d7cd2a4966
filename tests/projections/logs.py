"""A log of events as the projections' steps get it, and what a reader finds in Redis."""

import uuid
from collections.abc import Iterator, Sequence

from redis import Redis

from projections.buffer import keys
from projections.buffer.commands import Lifetimes
from projections.buffer.replies import Limits
from projections.buffer.step import BufferStep
from projections.redis.client import Store
from schemas.codec import Envelope
from schemas.events import Event
from schemas.reply import Reply, apply
from schemas.stream import frame
from streams.log.steps import Arrived, Partition, Record, Rewind

TOKENS = Partition("tokens", 0)
AT_MS = 1_764_434_400_123


def arrived(events: Sequence[Event], partition: Partition = TOKENS, first: int = 0) -> list[Arrived]:
    """The events as records from this offset on."""
    return [
        Arrived(
            Record(partition.topic, partition.number, offset, event.key(), b"{}", [], AT_MS),
            Envelope(event=event, source="test"),
        )
        for offset, event in enumerate(events, first)
    ]


def buffer_step(url: str, namespace: str, limits: Limits | None = None) -> BufferStep:
    """A buffer projection's step, as a process would make it."""
    return BufferStep(Store(url), namespace, Lifetimes(open_ms=600_000, retention_ms=600_000), limits or Limits())


class Run:
    """A process that reads a partition: feeds a step in turns, and goes back when it says so."""

    def __init__(self, step: BufferStep, log: Sequence[Event], start: int = 0) -> None:
        self.step = step
        self.log = log
        self.at = start
        self.now_ms = AT_MS
        self.rewinds = 0
        step.assigned({TOKENS: start})

    def turn(self, count: int) -> None:
        """Take so many records, and write."""
        batch = arrived(self.log[self.at : self.at + count], first=self.at)
        self.now_ms += 300
        self.at += len(batch)
        try:
            self.step.submit(batch, self.now_ms)
            self.step.poll(self.now_ms)
        except Rewind as rewind:
            self.rewinds += 1
            self.at = rewind.offsets[TOKENS]

    def finish(self, *, turns: int = 200) -> None:
        """Read to the end, until all is written and one more look finds nothing lost."""
        for _ in range(turns):
            rewinds = self.rewinds
            self.now_ms += 3_000
            self.turn(7)
            if self.at == len(self.log) and rewinds == self.rewinds and not self.step.trouble:
                return
        raise AssertionError("never done")


def expected(log: Sequence[Event]) -> dict[str, list[bytes]]:
    """The frames of each reply, by the one fold."""
    replies: dict[str, Reply | None] = {}
    frames: dict[str, list[bytes]] = {}
    for event in log:
        reply_id = getattr(event, "reply_id", "")
        replies[reply_id], seen = apply(replies.get(reply_id), event)
        if replies[reply_id] is not None:
            found = frames.setdefault(reply_id, [])
            found += [frame(number, one) for number, one in enumerate(seen, len(found) + 1)]
    return frames


def buffered(redis: Redis, namespace: str, reply_ids: Iterator[str] | Sequence[str]) -> dict[str, list[bytes]]:
    """The frames of each reply, in Redis."""
    return {reply_id: list(redis.lrange(keys.frames(namespace, reply_id).decode(), 0, -1)) for reply_id in reply_ids}


def fresh_namespace() -> str:
    """A namespace that nobody else has."""
    return f"test-{uuid.uuid4().hex[:12]}"
