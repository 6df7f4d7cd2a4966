"""What the workers of each model have together: counted once a round, and kept as they change."""

from collections.abc import Iterable, Mapping

from streams.dispatch.limits import Limits
from streams.dispatch.load import Capacity
from streams.dispatch.placement import is_fresh
from streams.dispatch.pool import Worker


class Capacities:
    """Of one round. `workers`, by inbox, is the round's: it may change, and each change is said here."""

    __slots__ = ("_flow_ms", "_known", "_limits", "_workers")

    def __init__(self, workers: Mapping[int, Worker], flow_ms: int, limits: Limits) -> None:
        self._workers = workers
        self._flow_ms = flow_ms
        self._limits = limits
        self._known: dict[str, Capacity] = {}
        """By model, once it was asked for."""

    def of(self, model: str) -> Capacity:
        """What the workers of the model have; nothing is reserved of it."""
        known = self._known.get(model)
        if known is None:
            alike = (worker for worker in self._workers.values() if worker.registered.model == model)
            known = self._known[model] = _together(alike, self._flow_ms, self._limits)
        return known

    def changed(self, before: Worker | None, after: Worker) -> None:
        """The worker of an inbox is another one now, or has other room."""
        if before is not None:
            self._count(before, -1)
        self._count(after, 1)

    def _count(self, worker: Worker, times: int) -> None:
        model = worker.registered.model
        known = self._known.get(model)
        if known is not None:
            self._known[model] = known.plus(_together((worker,), self._flow_ms, self._limits), times)


def _together(workers: Iterable[Worker], flow_ms: int, limits: Limits) -> Capacity:
    """What these workers, all of one model, have together."""
    alive = stale = slots_alive = slots = free_slots = kv_tokens = kv_tokens_held = running = 0
    for worker in workers:
        if not worker.alive:
            continue
        alive += 1
        slots_alive += worker.registered.slots
        if worker.draining:
            continue
        if not is_fresh(worker, flow_ms, limits):
            stale += 1
            continue
        slots += worker.registered.slots
        if not worker.closed:
            free_slots += max(0, min(worker.registered.slots - worker.held, worker.free_slots))
        kv_tokens += worker.registered.kv_tokens
        kv_tokens_held += worker.held_tokens
        running += worker.held
    return Capacity(
        workers=alive,
        stale=stale,
        slots_alive=slots_alive,
        slots=slots,
        free_slots=free_slots,
        kv_tokens=kv_tokens,
        kv_tokens_held=kv_tokens_held,
        running=running,
    )
