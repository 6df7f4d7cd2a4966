"""The fold of a reply: which events of its partition count, and what readers see of them.

One pure function decides for the stream buffer, the settlement and every rebuild. Rules, applied to the events of
one reply in the order of their partition:

1. A reply is opened by its `GenerationQueued`. Events of a reply that is not open (not yet, or closed and forgotten)
   are dropped; so a reader that starts at a checkpoint cannot resurrect what ended before it.
2. The first `GenerationStarted` of an attempt owns the attempt with its `generation_id`; one without an id is nobody's
   and is dropped.
3. `GenerationReset` raises the attempt; so does a `GenerationStarted` of a higher attempt that comes first. Either
   way readers see exactly one `reset`, before any token of the new attempt.
4. Events of another generation or of a lower attempt are dropped (a zombie's, a double dispatch's).
5. Pieces are numbered from 1 without gaps: an equal or lower number is a duplicate and dropped; a gap ends the reply
   as `failed` with code `stream_gap`, the same for every reader, because text is missing from the log.
6. The first accepted end is final. A worker's end must be its owner's and follow its last piece. An end with an empty
   `generation_id` is dispatch's: accepted at or above the current attempt; its usage is estimated from the pieces.
7. Each accepted event gives one stream event (two when a start implies a reset), at the next offset, from 1.

8. Dispatch may write a `GenerationQueued` again. A reader that begins between the two would take the second one for a
   beginning, and resurrect a reply that has ended: so nobody begins there (`Openings`).

`GenerationQueued` gives no stream event: the stream exists and is empty.
"""

from typing import Literal

import msgspec

from schemas.events import (
    Event,
    GenerationEnded,
    GenerationQueued,
    GenerationReset,
    GenerationStarted,
    NoticeGiven,
    TokensGenerated,
)
from schemas.stream import AnyStreamEvent, Delta, Ended, Notified, Reset, Started
from schemas.values import EndStatus, Failure, Timings, Usage, VoidAttempt

Phase = Literal["queued", "running", "ended"]

PIECES_MAX = 64
"""So many pieces are joined into one, so that a long reply costs no more per piece than a short one."""


class VoidUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt that came to nothing had used: a worker had begun it."""

    attempt: int
    model: str
    started_at_ms: int
    given_up_at_ms: int | None
    """When it became void; None: not known."""
    output_tokens: int
    """Of the pieces that reached the log before its reset."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one open or ended reply."""

    queued: GenerationQueued
    phase: Phase = "queued"
    attempt: int = 1
    generation_id: str = ""
    """Owner of the attempt; empty while nobody is."""
    worker: str = ""
    """The instance that began the attempt."""
    void_attempts: tuple[VoidAttempt, ...] = ()
    """The attempts before this one."""
    void_usage: tuple[VoidUsage, ...] = ()
    """Of those of them that a worker had begun."""
    started_at_ms: int = 0
    """When the worker began the attempt."""
    model: str = ""
    next_seq: int = 1
    pieces: tuple[str, ...] = ()
    """Texts of this attempt, in order, the older ones joined (`PIECES_MAX`); see `text`."""
    tokens: int = 0
    """Output tokens of this attempt that reached the log."""
    notices: frozenset[str] = frozenset()
    offset: int = 0
    """Offset of the newest stream event, 0 before the first."""
    end: Ended | None = None
    ended_at_ms: int = 0

    @property
    def text(self) -> str:
        """The text of the current attempt: what readers see."""
        return "".join(self.pieces)


class Openings:
    """From where a partition may be read again, as far as replies that have ended are concerned. See rule 8."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def ended(self, first: int, last: int) -> None:
        """A reply has ended, whose `GenerationQueued` stand at these offsets, the first and the last of them."""
        if last > first:
            self._spans.append((first, last))

    def checkpoint(self, position: int) -> int:
        """Where to begin, when everything that is open begins at `position` or later. It never falls by itself."""
        if not self._spans:
            return position
        while moved := [first for first, last in self._spans if first < position <= last]:
            position = min(moved)
        self._spans = [(first, last) for first, last in self._spans if last >= position]
        return position


def open_reply(event: GenerationQueued) -> Reply:
    """A reply at its beginning."""
    return Reply(queued=event, model=event.model)


def apply(  # noqa: PLR0911 - one return a rule
    reply: Reply | None, event: Event
) -> tuple[Reply | None, tuple[AnyStreamEvent, ...]]:
    """The reply after the event, and the stream events that readers get for it (none when it does not count).

    Args:
        reply: the state so far, None where the reply is not open.
        event: the next event of this reply in its partition; other events than those of `tokens` are dropped.
    """
    if reply is None:
        return (open_reply(event), ()) if isinstance(event, GenerationQueued) else (None, ())
    if reply.phase == "ended":
        return reply, ()
    match event:
        case TokensGenerated():
            return _tokens(reply, event)
        case GenerationStarted():
            return _started(reply, event)
        case GenerationReset():
            return _reset(reply, event.attempt, event.reason, event.detail, event.reset_at_ms)
        case NoticeGiven():
            return _noticed(reply, event)
        case GenerationEnded():
            return _ended(reply, event)
        case _:
            return reply, ()


Step = tuple[Reply, tuple[AnyStreamEvent, ...]]


def _tokens(reply: Reply, event: TokensGenerated) -> Step:
    if not _owns(reply, event.generation_id, event.attempt) or event.seq < reply.next_seq:
        return reply, ()
    if event.seq > reply.next_seq:
        return _gap(reply, event.seq)
    after = msgspec.structs.replace(
        reply,
        next_seq=event.seq + 1,
        pieces=(*_few(reply.pieces), event.text),
        tokens=reply.tokens + event.tokens,
        offset=reply.offset + 1,
    )
    return after, (Delta(text=event.text),)


def _few(pieces: tuple[str, ...]) -> tuple[str, ...]:
    return pieces if len(pieces) < PIECES_MAX else ("".join(pieces),)


def _started(reply: Reply, event: GenerationStarted) -> Step:
    if not event.generation_id:
        return reply, ()
    seen: tuple[AnyStreamEvent, ...] = ()
    if event.attempt > reply.attempt:
        reply, seen = _reset(reply, event.attempt, "restarted", "", event.started_at_ms)
    if event.attempt < reply.attempt or reply.generation_id:
        return reply, seen
    started = Started(
        message_id=event.reply_id,
        conversation_id=reply.queued.conversation_id,
        model=event.model,
        attempt=event.attempt,
    )
    after = msgspec.structs.replace(
        reply,
        phase="running",
        generation_id=event.generation_id,
        worker=event.worker,
        started_at_ms=event.started_at_ms,
        model=event.model,
        offset=reply.offset + 1,
    )
    return after, (*seen, started)


def _reset(reply: Reply, attempt: int, reason: str, detail: str, at_ms: int | None) -> Step:
    if attempt <= reply.attempt:
        return reply, ()
    void = VoidAttempt(attempt=reply.attempt, reason=reason, worker=reply.worker, detail=detail)
    after = msgspec.structs.replace(
        reply,
        phase="queued",
        attempt=attempt,
        generation_id="",
        worker="",
        void_attempts=(*reply.void_attempts, void),
        void_usage=(*reply.void_usage, *_void_usage(reply, at_ms)),
        next_seq=1,
        pieces=(),
        tokens=0,
        offset=reply.offset + 1,
    )
    return after, (Reset(attempt=attempt, reason=reason, detail=detail),)


def _void_usage(reply: Reply, at_ms: int | None) -> tuple[VoidUsage, ...]:
    if not reply.generation_id:
        return ()
    void = VoidUsage(
        attempt=reply.attempt,
        model=reply.model,
        started_at_ms=reply.started_at_ms,
        given_up_at_ms=at_ms,
        output_tokens=reply.tokens,
    )
    return (void,)


def _noticed(reply: Reply, event: NoticeGiven) -> Step:
    code = event.notice.code
    if code in reply.notices:
        return reply, ()
    after = msgspec.structs.replace(reply, notices=reply.notices | {code}, offset=reply.offset + 1)
    return after, (Notified(code=code, detail=event.notice.detail),)


def _ended(reply: Reply, event: GenerationEnded) -> Step:
    if event.generation_id:
        if not _owns(reply, event.generation_id, event.attempt):
            return reply, ()
        if event.seq != reply.next_seq:
            return _gap(reply, event.seq) if event.seq > reply.next_seq else (reply, ())
    elif event.attempt < reply.attempt:
        return reply, ()
    return _close(reply, event.status, event.ended_at_ms, event.usage, event.timings, event.error)


def _gap(reply: Reply, seq: int) -> Step:
    detail = f"piece {reply.next_seq} is missing from the log (piece {seq} came)"
    error = Failure(code="stream_gap", detail=detail)
    return _close(reply, "failed", reply.queued.submitted_at_ms, None, None, error)


def _close(
    reply: Reply,
    status: EndStatus,
    ended_at_ms: int,
    usage: Usage | None,
    timings: Timings | None,
    error: Failure | None,
) -> Step:
    counted = usage or Usage(input_tokens=0, output_tokens=reply.tokens, counted=False)
    end = Ended(status=status, usage=counted, timings=timings, error=error)
    after = msgspec.structs.replace(reply, phase="ended", offset=reply.offset + 1, end=end, ended_at_ms=ended_at_ms)
    return after, (end,)


def _owns(reply: Reply, generation_id: str, attempt: int) -> bool:
    return generation_id != "" and attempt == reply.attempt and generation_id == reply.generation_id
