"""What service a new request gets under the load of its pool, and what is told of the load.

In stages (`streams.dispatch.load`): full; `shorten`, its longest output is bounded; `smaller_model`, it goes to the
model that its own names as the smaller one, if it fits there and that one does not refuse too; `refuse`, it ends as
refused with `high_demand` and a time to try again. Whoever is to wait for long is told so. What waits already is
never degraded.
"""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from schemas.events import GenerationAdmitted, LoadMeasured
from schemas.models import Model
from schemas.values import PRIORITIES, STAGES, Failure, Notice, Priority, Stage
from streams.dispatch.load import (
    Capacity,
    Level,
    ahead_of,
    least,
    next_level,
    not_above,
    reserve,
    retry_after_s,
    wait_ms,
)
from streams.dispatch.records import chars_of
from streams.dispatch.round import Round
from streams.log.steps import Output

NO_WORKER = Failure(
    code="no_worker", detail="No worker of this model runs now. Try again in a while.", retry_after_s=30
)
QUEUE_FULL = Failure(
    code="queue_full", detail="Too many requests are waiting. Try again in a moment.", retry_after_s=10
)

MINUTES_FROM_S = 120
"""A time as long as this is told in minutes."""

ACCOUNT_QUEUE_FULL = Failure(
    code="queue_full",
    detail="Too many requests of this account are waiting. Try again when some have ended.",
    retry_after_s=10,
)


class Served(msgspec.Struct, frozen=True):
    """It is taken, perhaps changed, and its reader is told something."""

    admitted: GenerationAdmitted
    notices: tuple[Notice, ...]


def serve(round_: Round, event: GenerationAdmitted, models: Mapping[str, Model]) -> Served | Failure:
    """What becomes of a new request, before anything of it is written."""
    limits, priority = round_.limits, event.priority
    notices = event.notices
    round_.bounds.asks(event.model, event.account_id)
    stage = _stage(round_, event.model, priority)
    if STAGES.index(stage) >= STAGES.index("smaller_model"):
        smaller = _smaller(round_, event, models)
        if smaller is not None:
            notices = (*notices, Notice(code="smaller_model", detail=f"High demand: {smaller} answers this one."))
            event = replace(event, model=smaller)
            round_.bounds.asks(smaller, event.account_id)
            stage = _stage(round_, smaller, priority)
    if STAGES.index(stage) >= STAGES.index("shorten"):
        most = limits.thresholds.shortened_tokens
        if event.sampling.max_output_tokens > most:
            notices = (*notices, Notice(code="shortened", detail=f"High demand: at most {most} tokens of reply."))
            event = replace(event, sampling=replace(event.sampling, max_output_tokens=most))
    wait = _wait_ms(round_, event.model, priority)
    if stage == "refuse":
        return _high_demand(round_, wait, priority)
    if wait is None and _is_without_workers(round_, event.model):
        if limits.no_worker == "refuse":
            return NO_WORKER
        notices = (*notices, _waits_for_worker(round_, event))
    elif wait is not None and wait >= limits.thresholds.notice_ms:
        notices = (*notices, Notice(code="high_demand", detail=f"High demand: about {round(wait / 1000)} s to wait."))
    return _bounded(round_, event) or Served(event, notices)


def _waits_for_worker(round_: Round, event: GenerationAdmitted) -> Notice:
    """What is known of the wait where no worker runs: no forecast, but since when, and the place in line."""
    since_s = (round_.flow_ms - round_.empty_since_ms[event.model]) // 1000
    since = f"{since_s} s" if since_s < MINUTES_FROM_S else f"{since_s // 60} min"
    ahead = ahead_of(event.priority, round_.queue.waiting_of(event.model))
    line = f"The reply waits for one, with at most {ahead} before it" if ahead else "The reply is the next to get one"
    return Notice(
        code="no_worker", detail=f"No worker of this model has run for at least {since}. {line}; when is not known."
    )


def _bounded(round_: Round, event: GenerationAdmitted) -> Failure | None:
    """The refusal of a request for which the queue has no place."""
    limits, queue = round_.limits, round_.queue
    if queue.waiting >= limits.queue_max or queue.waiting_chars + chars_of(event) > limits.queue_chars_max:
        return QUEUE_FULL
    return ACCOUNT_QUEUE_FULL if queue.waiting_of_account(event.account_id) >= limits.account_waiting_max else None


def _high_demand(round_: Round, wait: int | None, priority: Priority) -> Failure:
    after_s = retry_after_s(wait, priority, round_.limits.thresholds)
    return Failure(
        code="high_demand",
        detail=f"Demand is higher than what can be served. Try again in {after_s} s.",
        retry_after_s=after_s,
    )


def _smaller(round_: Round, event: GenerationAdmitted, models: Mapping[str, Model]) -> str | None:
    """The model that takes over, if it can: it runs, the prompt fits with its output, and it does not refuse."""
    model = models.get(event.model)
    smaller = models.get(model.smaller or "") if model else None
    if smaller is None or not capacity(round_, smaller.name).slots:
        return None
    fits = event.prompt_tokens_estimate + event.sampling.max_output_tokens <= smaller.context_tokens
    within = event.sampling.max_output_tokens <= smaller.output_tokens_max
    free = _stage(round_, smaller.name, event.priority) != "refuse"
    return smaller.name if fits and within and free else None


def observe(round_: Round, models: Mapping[str, Model]) -> None:
    """After everything else of a round: the stages follow the load, and the load is told, also of idle models."""
    changed = False
    served = sorted(round_.models() | {model.name for model in models.values() if model.pool == round_.name})
    for model in served:
        before = [_level(round_, model, priority) for priority in PRIORITIES]
        _measure(round_, model)
        changed = changed or before != [_level(round_, model, priority) for priority in PRIORITIES]
        if capacity(round_, model).works:
            round_.empty_since_ms.pop(model, None)
        else:
            round_.empty_since_ms.setdefault(model, round_.flow_ms)
    if changed or round_.flow_ms - round_.reported_flow_ms >= round_.limits.report_ms:
        round_.reported_flow_ms = round_.flow_ms
        round_.outbox.reports.extend(Output(event=measured(round_, model)) for model in served)


def measured(round_: Round, model: str) -> LoadMeasured:
    """The load as others are told it."""
    has, waiting = capacity(round_, model), round_.queue.waiting_of(model)
    waits: dict[Priority, int | None] = {priority: _wait_ms(round_, model, priority) for priority in PRIORITIES}
    stages = {priority: _shown(round_, model, priority) for priority in PRIORITIES}
    refusing: list[Priority] = [priority for priority in PRIORITIES if stages[priority] == "refuse"]
    return LoadMeasured(
        pool=round_.name,
        model=model,
        measured_at_ms=round_.now_ms,
        workers=has.workers,
        slots=has.slots,
        free_slots=has.free_slots,
        kv_tokens=has.kv_tokens,
        kv_tokens_held=has.kv_tokens_held,
        running=has.running,
        waiting_paid=waiting["paid"],
        waiting_free=waiting["free"],
        wait_paid_ms=waits["paid"],
        wait_free_ms=waits["free"],
        stage_paid=stages["paid"],
        stage_free=stages["free"],
        retry_after_s=max(
            (retry_after_s(waits[priority], priority, round_.limits.thresholds) for priority in refusing), default=0
        ),
    )


def capacity(round_: Round, model: str) -> Capacity:
    """What the workers of the model have, and what of it is kept for paid traffic."""
    has = round_.capacities.of(model)
    return replace(has, reserved=reserve(_paid_per_s(round_, model), has.slots, round_.hold_ms.get(model)))


def _paid_per_s(round_: Round, model: str) -> float:
    rate = round_.paid_rates.get(model)
    return rate.now(round_.flow_ms) if rate else 0.0


def _wait_ms(round_: Round, model: str, priority: Priority) -> int | None:
    ahead = ahead_of(priority, round_.queue.eligible_of(model))
    return wait_ms(capacity(round_, model), ahead, round_.hold_ms.get(model), priority)


def _stage(round_: Round, model: str, priority: Priority) -> Stage:
    """The stage by now."""
    _measure(round_, model)
    return _at(round_, model, priority)


def _measure(round_: Round, model: str) -> None:
    """The levels by now, kept; none where nobody has worked for long: that has an answer of its own."""
    if _is_without_workers(round_, model):
        round_.levels.update({(model, one): Level() for one in PRIORITIES})
        return
    thresholds = round_.limits.thresholds
    has, waiting = capacity(round_, model), round_.queue.eligible_of(model)
    for one in reversed(PRIORITIES):  # free first: that of paid traffic depends on it
        free = _level(round_, model, "free").stage
        round_.levels[model, one] = next_level(
            _level(round_, model, one),
            _wait_ms(round_, model, one),
            least=least(one, has, ahead_of(one, waiting), free, thresholds),
            priority=one,
            thresholds=thresholds,
            flow_ms=round_.flow_ms,
        )


def _at(round_: Round, model: str, priority: Priority) -> Stage:
    """The stage; of paid traffic never above that of free traffic."""
    free = _level(round_, model, "free").stage
    return free if priority == "free" else not_above(_level(round_, model, "paid").stage, free)


def _shown(round_: Round, model: str, priority: Priority) -> Stage:
    refusing = round_.limits.no_worker == "refuse" and _is_without_workers(round_, model)
    return "refuse" if refusing else _at(round_, model, priority)


def _level(round_: Round, model: str, priority: Priority) -> Level:
    return round_.levels.get((model, priority), Level())


def _is_without_workers(round_: Round, model: str) -> bool:
    """Nobody has run the model for so long that it is no restart."""
    since_ms = round_.empty_since_ms.get(model)
    return since_ms is not None and round_.flow_ms - since_ms >= round_.limits.no_worker_ms
