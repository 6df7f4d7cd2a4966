"""What is said about one window of a fleet, and what is remembered of it. Values in, values out.

A fleet is the workers of one model in one pool: alike, and scaled together. A pool may have several.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from schemas.events import DemandForecast, LoadMeasured, ReplicasDesired
from schemas.values import Tier
from streams.demand.forecast import Expected, Foreseen, Smoothing, forecast, observe
from streams.demand.scaling import Asked, Replicas, Scaling, decide, slots_needed, wish
from streams.demand.windows import TIERS, Demand, Window

SERVICE_KEPT = 0.95
"""Of the generations whose mean service time is taken, so much is kept from window to window."""
ARRIVALS, OUTPUT_TOKENS = "arrivals", "output_tokens"

Said = DemandForecast | ReplicasDesired


class Fleet(NamedTuple):
    """The workers of a model in a pool."""

    pool: str
    model: str

    @property
    def key(self) -> str:
        """In tables. Pools have no slash, so that no two fleets have one key."""
        return f"{self.pool}/{self.model}"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the forecasts and wishes depend on."""

    smoothing: Smoothing = Smoothing()
    scaling: Scaling = Scaling()
    lead_ms: int = 300_000
    """So long before a worker is needed it has to be desired."""


class Service(msgspec.Struct, frozen=True):
    """Time that generations had their slot, the recent ones counting most."""

    total_ms: float = 0.0
    ran: float = 0.0

    @property
    def mean_ms(self) -> float:
        """0: none has finished yet."""
        return self.total_ms / self.ran if self.ran else 0.0


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a fleet."""

    said_ms: int
    """Start of the newest window that has been said."""
    expected: Mapping[str, Expected] = {}
    """By `tier/quantity`."""
    service: Mapping[Tier, Service] = {}
    workers: Mapping[str, int] = {}
    """Instances of the last window, and the most slots that each has shown."""
    slots_per_worker: float = 0.0
    replicas: Replicas | None = None


def said(
    fleet: Fleet, before: Known, window: Window, start_ms: int, load: LoadMeasured | None, rules: Rules
) -> tuple[Known, Sequence[Said]]:
    """What is known after a window, and what is told of it: demand of each tier, then the workers desired.

    Args:
        fleet: that it is about.
        before: what was known before it.
        window: that is over.
        start_ms: its start, after `before.said_ms`.
        load: of its end, as dispatch measured it; None: it did not.
        rules: of the deployment.
    """
    smoothing = rules.smoothing
    expected = {
        f"{tier}/{what}": observe(before.expected.get(f"{tier}/{what}"), value, start_ms, smoothing)
        for tier in TIERS
        for what, value in _values(window.demand(tier)).items()
    }
    service = {tier: _served(before.service.get(tier, Service()), window.demand(tier)) for tier in TIERS}
    demands = [_demand(fleet, tier, window.demand(tier), start_ms, expected, smoothing) for tier in TIERS]
    workers = {instance: max(slots, before.workers.get(instance, 0)) for instance, slots in window.workers.items()}
    shown = [slots for slots in workers.values() if slots]
    per_worker = sum(shown) / len(shown) if shown else _slots_each(load) or before.slots_per_worker
    waiting = waiting_of(load)

    asked = _asked(expected, service, rules)
    slots = slots_needed(asked, waiting, _overall(service), rules.scaling)
    something = waiting > 0 or any(demand.arrivals for demand in window.tiers.values())
    wished = wish(slots, per_worker, rules.scaling, something=something)
    replicas = decide(before.replicas, wished, rules.scaling)
    desired = ReplicasDesired(
        pool=fleet.pool,
        model=fleet.model,
        window_start_ms=start_ms,
        window_ms=smoothing.window_ms,
        workers=max(len(workers), load.workers if load else 0),
        slots_needed=round(slots, 3),
        slots_per_worker=round(per_worker, 3),
        replicas=replicas.desired,
    )
    after = Known(
        said_ms=start_ms,
        expected=expected,
        service=service,
        workers=workers,
        slots_per_worker=per_worker,
        replicas=replicas,
    )
    return after, (*demands, desired)


def waiting_of(load: LoadMeasured | None) -> int:
    """Generations without a slot."""
    return load.waiting_paid + load.waiting_free if load else 0


def _slots_each(load: LoadMeasured | None) -> float:
    """Of workers that registered before demand has ever listened: dispatch knows them."""
    return load.slots / load.workers if load and load.workers else 0.0


def _values(demand: Demand) -> Mapping[str, float]:
    return {ARRIVALS: demand.arrivals, OUTPUT_TOKENS: demand.output_tokens}


def _served(before: Service, demand: Demand) -> Service:
    return Service(SERVICE_KEPT * before.total_ms + demand.ran_ms, SERVICE_KEPT * before.ran + demand.ran)


def _overall(service: Mapping[Tier, Service]) -> float:
    parts = service.values()
    return Service(sum(one.total_ms for one in parts), sum(one.ran for one in parts)).mean_ms


def _asked(expected: Mapping[str, Expected], service: Mapping[Tier, Service], rules: Rules) -> list[Asked]:
    """Of the next window or of the one after the lead, whichever is more. A tier without finishes takes as long as
    the others."""
    window_ms = rules.smoothing.window_ms
    overall = _overall(service)
    asked = []
    for tier in TIERS:
        series = expected[f"{tier}/{ARRIVALS}"]
        ahead = (window_ms, max(window_ms, rules.lead_ms))
        arrivals = max(forecast(series, ms, rules.smoothing).value for ms in ahead)
        asked.append(
            Asked(arrivals_per_s=arrivals * 1000 / window_ms, service_ms=service[tier].mean_ms or overall),
        )
    return asked


def _demand(
    fleet: Fleet, tier: Tier, demand: Demand, start_ms: int, expected: Mapping[str, Expected], smoothing: Smoothing
) -> DemandForecast:
    def following(what: str) -> Foreseen:
        return forecast(expected[f"{tier}/{what}"], smoothing.window_ms, smoothing)

    arrivals = following(ARRIVALS)
    return DemandForecast(
        pool=fleet.pool,
        model=fleet.model,
        tier=tier,
        window_start_ms=start_ms,
        window_ms=smoothing.window_ms,
        arrivals=demand.arrivals,
        input_tokens=demand.input_tokens,
        output_tokens=demand.output_tokens,
        queue_ms_mean=round(demand.queue_ms_mean, 3),
        forecast_arrivals=round(arrivals.value, 3),
        forecast_output_tokens=round(following(OUTPUT_TOKENS).value, 3),
        service_ms_mean=round(demand.service_ms_mean, 3),
        seasonal=arrivals.seasonal,
    )
