"""Demand of a fleet in one window of time: of a model, in a pool. Values in, values out.

A window exists when anything was heard of the fleet in it, a worker's lease at least. So no traffic is a window with
zeros, and no news is no window: nothing is said of such a time.
"""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from schemas.events import Event, GenerationAdmitted, GenerationFinished, WorkerLeased, WorkerRegistered
from schemas.values import PRIORITIES, Tier, Usage

TIERS: tuple[Tier, ...] = PRIORITIES
"""Tiers are told apart by their priority, which says how long they wait."""
WORKERS_MAX = 1_000
"""Instances of a fleet that are counted in one window."""


class Demand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one tier asked for and got."""

    arrivals: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    started: int = 0
    """Finished generations whose queue time is in `queue_ms`."""
    queue_ms: int = 0
    ran: int = 0
    """Those of them whose time in a slot is known, and in `ran_ms`."""
    ran_ms: int = 0

    @property
    def service_ms_mean(self) -> float:
        """Mean time in a slot; 0 when nothing finished."""
        return self.ran_ms / self.ran if self.ran else 0.0

    @property
    def queue_ms_mean(self) -> float:
        """Mean time in the queue; 0 when nothing finished."""
        return self.queue_ms / self.started if self.started else 0.0


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet's window."""

    tiers: Mapping[Tier, Demand] = {}
    workers: Mapping[str, int] = {}
    """Instances that registered or renewed their lease, and the most slots that each has shown; 0: none."""

    def demand(self, tier: Tier) -> Demand:
        """Of one tier; zero when it asked for nothing."""
        return self.tiers.get(tier, Demand())


def after(window: Window | None, event: Event, tier: Tier | None, *, moved: bool = False) -> Window:
    """The window with one more record of its fleet.

    Args:
        window: None: nothing was heard so far.
        event: any event of `requests` or `workers`.
        tier: of the reply that a `GenerationFinished` is about; None: not known, then it is not counted.
        moved: that reply was admitted for another model, and arrived here by dispatch's word. It is an arrival of
            both: the other fleet lacks the workers for it, and this one needs them until then.
    """
    window = window or Window()
    match event:
        case GenerationAdmitted():
            before = window.demand(event.priority)
            counted = replace(
                before,
                arrivals=before.arrivals + 1,
                input_tokens=before.input_tokens + event.prompt_tokens_estimate,
            )
            return replace(window, tiers={**window.tiers, event.priority: counted})
        case GenerationFinished(returned=False) if tier is not None:
            before, usage = window.demand(tier), event.usage or Usage(input_tokens=0, output_tokens=0)
            counted = replace(
                before,
                arrivals=before.arrivals + moved,
                input_tokens=before.input_tokens + (usage.input_tokens if moved else 0),
                output_tokens=before.output_tokens + usage.output_tokens,
                started=before.started + 1,
                queue_ms=before.queue_ms + event.queued_ms,
                ran=before.ran + (event.ran_ms > 0),
                ran_ms=before.ran_ms + event.ran_ms,
            )
            return replace(window, tiers={**window.tiers, tier: counted})
        case WorkerRegistered():
            return _shown(window, event.instance, event.slots)
        case WorkerLeased():
            return _shown(window, event.instance, _slots(event))
        case _:
            return window


def _slots(lease: WorkerLeased) -> int:
    """Slots that a worker has for sure: a full one, or one that is not well, shows those taken only."""
    if lease.draining:
        return 0
    return lease.running + (lease.free_slots + lease.waiting if lease.free_slots else 0)


def _shown(window: Window, instance: str, slots: int) -> Window:
    known = window.workers.get(instance)
    if known is None and len(window.workers) >= WORKERS_MAX:
        return window
    if known is not None and known >= slots:
        return window
    return replace(window, workers={**window.workers, instance: slots})


def last_closed(now_ms: int, window_ms: int, grace_ms: int) -> int:
    """Start of the newest window that is over, `grace_ms` ago at least."""
    return ((now_ms - grace_ms) // window_ms - 1) * window_ms
