"""What one round writes: to streams, to workers, and of its state.

- `before`: opens streams, so that nobody starts a reply that no fold knows;
- `outputs`: what workers get, in one transaction with the records;
- `states`: the records; None is a tombstone;
- `after`: resets and ends in `tokens`. The records say that they may be missing until they are confirmed by their mark;
- `reports`: measurements, of which any may be lost.
"""

from collections.abc import Iterable

from schemas.codec import Envelope
from schemas.events import (
    Event,
    GenerationEnded,
    GenerationQueued,
    GenerationRequested,
    GenerationRevoked,
    NoticeGiven,
)
from schemas.topics import PARKED, inference
from schemas.values import Notice
from streams.dispatch import events
from streams.dispatch.pool import Request
from streams.log.steps import Output

Mark = tuple[str, str, int]
"""Pool, reply id, and the attempt of a reset (0: the end) that was given to the plain writer."""


class Outbox:
    """Of one pool."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self.before: list[Output] = []
        self.outputs: list[Output] = []
        self.states: dict[str, bytes | None] = {}
        self.after: list[Output] = []
        self.reports: list[Output] = []
        self.marks: list[Mark] = []

    def open_stream(self, queued: GenerationQueued, notices: Iterable[Notice], cause: Envelope[Event]) -> None:
        """The reply exists for its readers from here on."""
        self.before.append(Output(event=queued, cause=cause))
        for notice in notices:
            given = NoticeGiven(reply_id=queued.reply_id, conversation_id=queued.conversation_id, notice=notice)
            self.before.append(Output(event=given, cause=cause))

    def end(self, ended: GenerationEnded, cause: Envelope[Event] | None) -> None:
        """The reply ends for its readers."""
        self.after.append(Output(event=ended, cause=cause))
        self.marks.append((self._pool, ended.reply_id, 0))

    def reset(self, request: Request, at_ms: int) -> None:
        """The request's present attempt begins for its readers."""
        reset = events.reset(request, at_ms)
        self.after.append(Output(event=reset, cause=events.cause_of(request)))
        self.marks.append((self._pool, reset.reply_id, reset.attempt))

    def to_inbox(self, request: Request, event: GenerationRequested | GenerationRevoked) -> None:
        """The worker that has the request gets this."""
        topic = inference(self._pool, request.admitted.priority).name
        inbox = request.progress.inbox
        self.outputs.append(Output(event=event, topic=topic, partition=inbox, cause=events.cause_of(request)))

    def park(self, request: Request, at_ms: int) -> None:
        """The request is kept for a person to look at."""
        event = events.parked(request, at_ms)
        self.outputs.append(Output(event=event, topic=PARKED.name, partition=0, cause=events.cause_of(request)))
