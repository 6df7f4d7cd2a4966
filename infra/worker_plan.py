"""Which workers the local stack has: a number of them, or numbers by model, `small=1,large=2`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.models import Model
from schemas.topics import INBOXES


@dataclass(frozen=True)
class PlannedWorker:
    """A worker to start. ``pool`` and ``model`` None: as the environment says."""

    name: str
    ordinal: int
    """In its pool, where no other one has it."""
    pool: str | None = None
    model: str | None = None

    def env(self) -> dict[str, str]:
        """The variables that make it what it is."""
        own = {"TURNLOG_POOL": self.pool, "TURNLOG_MODEL": self.model}
        return {"TURNLOG_REPLICA": str(self.ordinal), **{name: value for name, value in own.items() if value}}


def planned_workers(text: str, models: Sequence[Model]) -> tuple[PlannedWorker, ...]:
    """The workers that a text asks for, in its order.

    Raises:
        ValueError: it is neither a number nor numbers by model, or asks for what cannot run; says what can.
    """
    if text.strip().isdecimal():
        count = int(text)
        if count > INBOXES:
            raise ValueError(f"a pool has at most {INBOXES} workers")
        return tuple(PlannedWorker(f"worker-{number}", number) for number in range(count))
    known = {model.name: model for model in models}
    ordinals: Counter[str] = Counter()
    found: list[PlannedWorker] = []
    for name, count in _counts(text).items():
        if name not in known:
            raise ValueError(f"TURNLOG_MODELS has no model {name!r}; it has {', '.join(sorted(known))}")
        pool = known[name].pool
        for _ in range(count):
            found.append(PlannedWorker(f"worker-{len(found)}", ordinals[pool], pool, name))
            ordinals[pool] += 1
    for pool, count in ordinals.items():
        if count > INBOXES:
            raise ValueError(f"a pool has at most {INBOXES} workers, and {pool!r} would have {count}")
    return tuple(found)


def _counts(text: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for part in text.split(","):
        name, equals, count = (piece.strip() for piece in part.rpartition("="))
        if not (equals and name and count.isdecimal()):
            raise ValueError("give a number, as 2, or numbers by model, as small=1,large=2")
        if name in counts:
            raise ValueError(f"{name} stands there twice")
        counts[name] = int(count)
    return counts
