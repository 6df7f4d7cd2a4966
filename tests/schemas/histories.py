"""Hypothesis strategies for the log of replies: what honest, dying and undead writers may put into a partition.

Each writer keeps its own order; writers interleave in any way; any stretch that was written may be written again.
"""

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from schemas.events import (
    Event,
    GenerationEnded,
    GenerationQueued,
    GenerationReset,
    GenerationStarted,
    NoticeGiven,
    TokensGenerated,
)
from schemas.reply import Reply, apply
from schemas.stream import AnyStreamEvent
from schemas.values import Notice, Usage
from tests.schemas.strategies import TEXT

STATUSES = st.sampled_from(("completed", "length", "cancelled", "failed"))
ATTEMPTS = st.integers(1, 4)


def queued(reply_id: str = "r") -> GenerationQueued:
    """The opening of a reply."""
    return GenerationQueued(
        reply_id=reply_id,
        message_id=f"m-{reply_id}",
        conversation_id="c",
        account_id="a",
        tier="paid",
        pool="p",
        model="auto",
        submitted_at_ms=1_000,
    )


def started(generation_id: str, attempt: int, reply_id: str = "r") -> GenerationStarted:
    """A worker begins an attempt."""
    return GenerationStarted(
        reply_id=reply_id,
        conversation_id="c",
        generation_id=generation_id,
        attempt=attempt,
        model=f"model of {generation_id}",
        worker="w",
        started_at_ms=2_000,
    )


def piece(generation_id: str, attempt: int, seq: int, text: str, reply_id: str = "r") -> TokensGenerated:
    """A piece of text."""
    return TokensGenerated(
        reply_id=reply_id,
        conversation_id="c",
        generation_id=generation_id,
        attempt=attempt,
        seq=seq,
        text=text,
        tokens=1,
    )


def ended(
    generation_id: str, attempt: int, seq: int, status: str = "completed", reply_id: str = "r"
) -> GenerationEnded:
    """An end; dispatch's where `generation_id` is empty."""
    return GenerationEnded(
        reply_id=reply_id,
        conversation_id="c",
        generation_id=generation_id,
        attempt=attempt,
        seq=seq,
        status=status,  # type: ignore[arg-type]
        ended_at_ms=3_000,
        usage=Usage(input_tokens=5, output_tokens=seq - 1) if generation_id else None,
    )


def reset(attempt: int, reply_id: str = "r") -> GenerationReset:
    """Dispatch voids what came before this attempt."""
    reason, detail = ("worker_lost", "") if attempt % 2 else ("interrupted", "north: HTTP 502")
    return GenerationReset(reply_id=reply_id, conversation_id="c", attempt=attempt, reason=reason, detail=detail)


@st.composite
def generations(draw: st.DrawFn, number: int, reply_id: str) -> list[Event]:
    """What one worker writes about a reply, cut off anywhere (it died), or whole."""
    generation_id = f"{reply_id}-g{number}"
    attempt = draw(ATTEMPTS)
    texts = draw(st.lists(TEXT, max_size=5))
    events: list[Event] = [started(generation_id, attempt, reply_id)]
    events += [piece(generation_id, attempt, seq, text, reply_id) for seq, text in enumerate(texts, start=1)]
    events.append(ended(generation_id, attempt, len(texts) + 1, draw(STATUSES), reply_id))
    return events[: draw(st.integers(1, len(events)))]


@st.composite
def dispatches(draw: st.DrawFn, reply_id: str) -> list[Event]:
    """What dispatch writes: resets of rising attempts, notices, perhaps an end."""
    events: list[Event] = [reset(attempt, reply_id) for attempt in sorted(draw(st.sets(st.integers(2, 4))))]
    for code in draw(st.lists(st.sampled_from(("shortened", "high_demand")), max_size=2)):
        notice = Notice(code=code, detail="d")
        at = draw(st.integers(0, len(events)))
        events.insert(at, NoticeGiven(reply_id=reply_id, conversation_id="c", notice=notice))
    if draw(st.booleans()):
        events.append(ended("", draw(ATTEMPTS), 0, draw(STATUSES), reply_id))
    return events


@st.composite
def interleaved(draw: st.DrawFn, writers: Sequence[Sequence[Event]]) -> list[Event]:
    """One order of all events in which each writer's own order holds."""
    left = [list(writer) for writer in writers if writer]
    merged: list[Event] = []
    while left:
        writer = draw(st.sampled_from(left)) if len(left) > 1 else left[0]
        merged.append(writer.pop(0))
        left = [other for other in left if other]
    return merged


@st.composite
def histories(draw: st.DrawFn, reply_id: str = "r") -> list[Event]:
    """A reply's events: the opening, then any writers' in any order, without repetitions."""
    writers: list[list[Event]] = [draw(generations(number, reply_id)) for number in range(draw(st.integers(0, 4)))]
    writers.append(draw(dispatches(reply_id)))
    return [queued(reply_id), *draw(interleaved(writers))]


@st.composite
def repeated(draw: st.DrawFn, history: Sequence[Event]) -> list[Event]:
    """The history with stretches of what was already written put in again, anywhere later."""
    log = list(history)
    for _ in range(draw(st.integers(1, 3))):
        first = draw(st.integers(0, len(log) - 1))
        after = draw(st.integers(first + 1, len(log)))
        at = draw(st.integers(after, len(log)))
        log[at:at] = log[first:after]
    return log


class Seen(msgspec.Struct, frozen=True):
    """The outcome of a fold: the reply, and what its readers got, with offsets."""

    reply: Reply | None
    stream: tuple[tuple[int, AnyStreamEvent], ...]


def seen(events: Sequence[Event], reply: Reply | None = None) -> Seen:
    """Fold the events of one reply."""
    stream: list[tuple[int, AnyStreamEvent]] = []
    for event in events:
        reply, given = apply(reply, event)
        first = 1 if reply is None else reply.offset - len(given) + 1
        stream += list(enumerate(given, start=first))
    return Seen(reply, tuple(stream))
