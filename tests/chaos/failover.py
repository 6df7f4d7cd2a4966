"""How long readers wait when a worker is struck: to the `reset`, and to the first word after it."""

from collections.abc import Iterator, Sequence

import msgspec

from schemas.stream import Delta, Reset, Started
from tests.chaos.attempts import DEATHS, SILENCES
from tests.chaos.evidence import Life, Logged, Row
from tests.chaos.ledger import Reading
from tests.chaos.wreck import How, Strike
from tests.simulation.frames import parsed

REASONS: dict[How, frozenset[str]] = {
    "killed": DEATHS,
    "stopped": DEATHS,
    "drained": frozenset({"handed_over"}) | DEATHS,
    "silenced": SILENCES | DEATHS,
}


class Wait(msgspec.Struct, frozen=True):
    """Of a reader that had something of an attempt when its worker was struck; seconds since then."""

    how: How
    reply_id: str
    reset_s: float
    word_s: float | None
    room: bool = False
    """Whether workers had slots for it, and it had nothing else to wait for: paid traffic, for which slots are kept, at
    its second attempt. Later ones have to run alone among their like."""


def waits(readings: Sequence[Reading], views: dict[str, Row], log: Logged, strikes: Sequence[Strike]) -> list[Wait]:
    """All of a run."""
    found: list[Wait] = []
    for reading in readings:
        row = views.get(reading.read.reply_id)
        if row is not None and row.numbers:
            found.extend(_of(reading, row, log, strikes))
    return found


def _of(reading: Reading, row: Row, log: Logged, strikes: Sequence[Strike]) -> Iterator[Wait]:
    workers, reasons = (
        dict(zip(row.numbers, row.workers, strict=True)),
        dict(zip(row.numbers, row.reasons, strict=True)),
    )
    attempt, seen_s = 1, float("inf")
    events = [(parsed(data)[1], at_s) for data, at_s in zip(reading.read.frames, reading.arrived_s, strict=True)]
    for number, (event, at_s) in enumerate(events):
        if isinstance(event, Started | Delta):
            seen_s = min(seen_s, at_s)
        elif isinstance(event, Reset):
            strike = _strike(log.lives.get(workers.get(attempt, "")), strikes, at_s)
            if strike and seen_s < strike.at_s and reasons.get(attempt) in REASONS.get(strike.how, ()):
                word_s = _first_word(events[number + 1 :])
                since_s = None if word_s is None else word_s - strike.at_s
                room = row.tier == "paid" and event.attempt == 2 and log.had_room(row.reply_id, event.attempt)
                yield Wait(strike.how, row.reply_id, at_s - strike.at_s, since_s, room)
            attempt, seen_s = event.attempt, float("inf")


def _strike(life: Life | None, strikes: Sequence[Strike], before_s: float) -> Strike | None:
    """The last one that hit this worker."""
    if life is None:
        return None
    hits = [
        strike
        for strike in strikes
        if strike.name == life.name and life.began_ms <= strike.at_ms and strike.at_s < before_s
    ]
    return hits[-1] if hits else None


def _first_word(events: Sequence[tuple[object, float]]) -> float | None:
    """When it came; None where the attempt was void before."""
    for event, at_s in events:
        if isinstance(event, Delta):
            return at_s
        if isinstance(event, Reset):
            return None
    return None


def told(found: Sequence[Wait]) -> list[str]:
    """A line for each way to strike."""
    lines = []
    for how in REASONS:
        of = [wait for wait in found if wait.how == how]
        words = [(wait.word_s, wait.room) for wait in of if wait.word_s is not None]
        resets, all_ = _shares([wait.reset_s for wait in of]), _shares([word_s for word_s, _ in words])
        with_room = _shares([word_s for word_s, room in words if room])
        lines.append(f"{how}: reset {resets}; first word {all_}; where workers had room {with_room}")
    return lines


def _shares(values: Sequence[float]) -> str:
    if not values:
        return "none"
    ordered = sorted(values)
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99))
    return f"p50 {p50:.1f}, p99 {p99:.1f}, max {ordered[-1]:.1f} s ({len(ordered)} readers)"
