"""How full the pools are, as every API process knows it from the topic `load`, and who is turned away at the door.

Rules:

1. Of each pool and model the newest measurement counts, while it is younger than `YOUNG_MS` by two clocks: by its time
   stamp and this machine's time, and by when this process read it and its monotonic clock. So neither dispatch's clock
   nor a step of this machine's lets one count for longer. Without one a send is accepted: dispatch decides then, as it
   does in any case, and so too where the machines' clocks are further apart than that.
2. A send is turned away where dispatch would refuse it: at the stage `refuse` of its model for the account's priority,
   unless the model's smaller one runs and does not refuse, so that dispatch may give it to that one.
3. What is in the log already is never turned away (`api.sending`).
4. A record that says nothing, or nothing of its own key, changes nothing.
"""

import time
from collections.abc import Callable, Mapping

import msgspec

from schemas.events import Event, LoadMeasured
from schemas.models import Model
from schemas.values import Failure, Priority, Stage

YOUNG_MS = 5_000
AHEAD_MS = 5_000
"""So far dispatch's clock may be ahead of this machine's."""
RETRY_S_MAX = 60

Place = tuple[str, str]
"""A pool and a model."""


class Told(msgspec.Struct, frozen=True):
    """A measurement, and when this process read it, by its monotonic clock."""

    load: LoadMeasured
    read_ms: int


class Now(msgspec.Struct, frozen=True):
    """The time by both clocks."""

    wall_ms: int
    monotonic_ms: int


class Load:
    """The newest measurements. One thread applies, any thread asks.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._places: dict[str, Place] = {}
        self._told: dict[Place, Told] = {}

    def apply(self, key: str, event: Event | None) -> None:
        """A record of the topic: its key and its event, None for a tombstone."""
        if isinstance(event, LoadMeasured) and event.key() == key:
            place = (event.pool, event.model)
            self._places[key] = place
            self._told[place] = Told(event, self._monotonic_ms())
        elif event is None and key in self._places:
            self._told.pop(self._places.pop(key), None)

    def refusal(self, model: Model, priority: Priority, now_ms: int) -> Failure | None:
        """Why a new message for the model is turned away now; None: it is let in."""
        return refusal(model, priority, self._told, Now(now_ms, self._monotonic_ms()))

    def _monotonic_ms(self) -> int:
        return int(self._now_s() * 1000)


def refusal(model: Model, priority: Priority, told: Mapping[Place, Told], now: Now) -> Failure | None:
    """See the rules of this module."""
    load = _young(told.get((model.pool, model.name)), now)
    if load is None or _stage(load, priority) != "refuse":
        return None
    smaller = _young(told.get((model.pool, model.smaller)), now) if model.smaller else None
    if smaller is not None and smaller.slots and _stage(smaller, priority) != "refuse":
        return None
    after_s = min(max(load.retry_after_s, 1), RETRY_S_MAX)
    if load.workers == 0:
        detail = "No worker of this model runs now. Try again in a while."
        return Failure(code="no_worker", detail=detail, retry_after_s=after_s)
    detail = f"Demand is higher than what can be served. Try again in {after_s} s."
    return Failure(code="high_demand", detail=detail, retry_after_s=after_s)


def _young(told: Told | None, now: Now) -> LoadMeasured | None:
    if told is None or now.monotonic_ms - told.read_ms >= YOUNG_MS:
        return None
    return told.load if -AHEAD_MS <= now.wall_ms - told.load.measured_at_ms < YOUNG_MS else None


def _stage(load: LoadMeasured, priority: Priority) -> Stage:
    return load.stage_paid if priority == "paid" else load.stage_free
