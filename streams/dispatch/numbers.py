"""The numbers of dispatch, for Prometheus: what the pools hold, what was told of their load last, what was counted."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from schemas.events import LoadMeasured
from schemas.values import STAGES, Stage
from streams.dispatch.placement import slots_left
from streams.dispatch.pool import Pool

_TIER = ("pool", "model", "tier")
_MODEL = ("pool", "model")

NUMBERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "turnlog_dispatch_waiting": ("Requests that wait for a worker", _TIER),
    "turnlog_dispatch_given": ("Requests that a worker has", _TIER),
    "turnlog_dispatch_workers": ("Workers alive", _MODEL),
    "turnlog_dispatch_slots_left": ("Generations that they could take now", _MODEL),
    "turnlog_dispatch_kv_held_share": ("Part of their KV tokens that is spoken for", _MODEL),
    "turnlog_dispatch_service_seconds": ("How long a generation has its slot, a moving mean", _MODEL),
    "turnlog_dispatch_wait_seconds": ("Forecast wait of a request that comes now; absent without workers", _TIER),
    "turnlog_dispatch_stage": ("Service of new requests: 0 full, 1 shorten, 2 smaller_model, 3 refuse", _TIER),
    "turnlog_dispatch_attempts_lost_total": ("Attempts that came to nothing, by reason", ("pool", "reason")),
    "turnlog_dispatch_ends_total": ("Replies that ended by dispatch's word, by code", ("pool", "code")),
    "turnlog_dispatch_notices_total": ("Notices given to readers, by code", ("pool", "code")),
    "turnlog_dispatch_workers_left_total": ("Workers that stopped of themselves, by reason", ("pool", "reason")),
}
"""Names, help, labels. Totals count from the beginning of the process."""

_COUNTED = {
    "attempt": "attempts_lost_total",
    "end": "ends_total",
    "notice": "notices_total",
    "left": "workers_left_total",
}
"""What a pool's tally counts -> name."""
ENGINES_LEFT = ("engine_dead", "engine_hung", "engine_stuck")
"""Reasons of workers that have to be seen the first time too: counted from 0 on."""

Values = dict[tuple[str, ...], float]
Say = Callable[[str, tuple[str, ...], float | None], None]


def numbers(pools: Iterable[Pool], loads: Iterable[LoadMeasured]) -> Mapping[str, Values]:
    """By name, then by the values of its labels; what is not known is not there."""
    found: dict[str, Values] = {name: {} for name in NUMBERS}

    def say(name: str, labels: tuple[str, ...], value: float | None) -> None:
        if value is not None:
            found[f"turnlog_dispatch_{name}"][labels] = value

    for load in loads:
        _load(load, say)
    for pool in pools:
        _pool(pool, say)
    return found


def _pool(pool: Pool, say: Say) -> None:
    for (model, priority), line in pool.lines.items():
        say("waiting", (pool.name, model, priority), line.waiting)
        say("given", (pool.name, model, priority), 0)
    given = Counter(
        (pool.name, request.admitted.model, request.admitted.priority)
        for request in pool.requests.values()
        if request.progress.phase == "given"
    )
    for labels, count in given.items():
        say("given", labels, count)
    for model in {worker.registered.model for worker in pool.workers.values()}:
        alive = [worker for worker in pool.workers.values() if worker.alive and worker.registered.model == model]
        say("workers", (pool.name, model), len(alive))
        say("slots_left", (pool.name, model), sum(map(slots_left, alive)))
    for model, hold_ms in pool.hold_ms.items():
        say("service_seconds", (pool.name, model), hold_ms / 1000)
    for reason in ENGINES_LEFT:
        say("workers_left_total", (pool.name, reason), 0)
    for (what, why), times in pool.tally.items():
        say(_COUNTED[what], (pool.name, why), times)


def _load(load: LoadMeasured, say: Say) -> None:
    if load.kv_tokens:
        say("kv_held_share", (load.pool, load.model), load.kv_tokens_held / load.kv_tokens)
    for tier, wait_ms, stage in (
        ("paid", load.wait_paid_ms, load.stage_paid),
        ("free", load.wait_free_ms, load.stage_free),
    ):
        say("wait_seconds", (load.pool, load.model, tier), None if wait_ms is None else wait_ms / 1000)
        say("stage", (load.pool, load.model, tier), _number(stage))


def _number(stage: Stage) -> int:
    return STAGES.index(stage)
