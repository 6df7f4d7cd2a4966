"""How many workers a pool should have. Values in, values out.

1. Generations at a time are arrivals per second times the time that each has its slot (Little's law, L = lambda * W;
   Little, A proof for the queuing formula L = lambda W, 1961). Headroom is in the arrivals that are forecast.
2. What waits for a slot is work too: it shall be done within `backlog_s`, beside what arrives.
3. Slots are used to `target_utilisation`; a worker has `slots_per_worker`. Where anything is asked for, one worker is
   wanted at least, also when nobody knows how long it will take.
4. More workers are desired at once; fewer only after `scale_down_windows` windows in a row that wished for fewer, and
   then as many as the highest wish of those. A window that was not heard wishes for nothing.
"""

from collections.abc import Iterable
from math import ceil

import msgspec
from msgspec.structs import replace


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and pace."""

    replicas_min: int = 1
    replicas_max: int = 16
    target_utilisation: float = 0.8
    scale_down_windows: int = 30
    backlog_s: float = 60.0


class Replicas(msgspec.Struct, frozen=True):
    """What was desired last, and the windows in a row that wished for fewer."""

    desired: int
    lower: int = 0
    highest: int = 0
    """Wish among those."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a tier asks for."""

    arrivals_per_s: float
    service_ms: float
    """0: not known."""


def slots_needed(asked: Iterable[Asked], waiting: int, service_ms: float, scaling: Scaling) -> float:
    """Generations at a time.

    Args:
        asked: per tier.
        waiting: generations without a slot.
        service_ms: their mean time; 0: not known.
        scaling: the backlog's time.
    """
    running = sum(one.arrivals_per_s * one.service_ms / 1000 for one in asked)
    return running + waiting * service_ms / 1000 / scaling.backlog_s


def wish(slots: float, slots_per_worker: float, scaling: Scaling, *, something: bool) -> int:
    """Workers for so many generations at a time, within the bounds.

    Args:
        slots: generations at a time.
        slots_per_worker: 0: not known, no worker was ever heard.
        scaling: bounds and utilisation.
        something: whether anything arrives or waits.
    """
    # What floating point adds to a whole number is no reason for one more.
    workers = ceil(slots / slots_per_worker / scaling.target_utilisation - 1e-9) if slots_per_worker else 0
    return min(max(workers, int(something), scaling.replicas_min), scaling.replicas_max)


def decide(before: Replicas | None, wished: int, scaling: Scaling) -> Replicas:
    """After one more window's wish."""
    if before is None or wished >= min(before.desired, scaling.replicas_max):
        return Replicas(wished)
    lower, highest = before.lower + 1, max(before.highest, wished)
    if lower >= scaling.scale_down_windows:
        return Replicas(highest)
    return replace(before, lower=lower, highest=highest)
