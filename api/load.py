"""How full the pools are, as every API process knows it from the topic `load`, and who is turned away at the door.

Rules:

1. Of each pool and model the newest measurement counts, while it is younger than `YOUNG_MS`. Without one a send is
   accepted: dispatch decides then, as it does in any case.
2. A send is turned away where dispatch would refuse it: at the stage `refuse` of its model for the account's tier,
   unless the model's smaller one runs and does not refuse, so that dispatch may give it to that one.
3. What is in the log already is never turned away (`api.sending`).
"""

from collections.abc import Mapping

from schemas.events import Event, LoadMeasured
from schemas.models import Model
from schemas.values import Failure, Stage, Tier

YOUNG_MS = 5_000

Place = tuple[str, str]
"""A pool and a model."""


class Load:
    """The newest measurements. One thread applies, any thread asks."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._measured: dict[Place, LoadMeasured] = {}

    def apply(self, key: str, event: Event | None) -> None:
        """A record of the topic: its key and its event, None for a tombstone."""
        if isinstance(event, LoadMeasured):
            place = (event.pool, event.model)
            self._places[key] = place
            self._measured[place] = event
        elif event is None and key in self._places:
            self._measured.pop(self._places.pop(key), None)

    def refusal(self, model: Model, tier: Tier, now_ms: int) -> Failure | None:
        """Why a new message for the model is turned away now; None: it is let in."""
        return refusal(model, tier, self._measured, now_ms)


def refusal(model: Model, tier: Tier, measured: Mapping[Place, LoadMeasured], now_ms: int) -> Failure | None:
    """See the rules of this module."""
    load = _young(measured.get((model.pool, model.name)), now_ms)
    if load is None or _stage(load, tier) != "refuse":
        return None
    smaller = _young(measured.get((model.pool, model.smaller)), now_ms) if model.smaller else None
    if smaller is not None and smaller.slots and _stage(smaller, tier) != "refuse":
        return None
    after_s = max(load.retry_after_s, 1)
    if load.workers == 0:
        detail = "No worker of this model runs now. Try again in a while."
        return Failure(code="no_worker", detail=detail, retry_after_s=after_s)
    detail = f"Demand is higher than what can be served. Try again in {after_s} s."
    return Failure(code="high_demand", detail=detail, retry_after_s=after_s)


def _young(load: LoadMeasured | None, now_ms: int) -> LoadMeasured | None:
    return load if load is not None and now_ms - load.measured_at_ms < YOUNG_MS else None


def _stage(load: LoadMeasured, tier: Tier) -> Stage:
    return load.stage_paid if tier == "paid" else load.stage_free
