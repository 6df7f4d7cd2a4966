"""What each event, and time, do to a pool. Each rule makes moves on a `Round`.

1. An admission opens the stream and waits, with the service that the load leaves (`streams.dispatch.service`); one
   that is known, or has ended, is ignored; above the bounds of the queue it is refused (`queue_full`).
2. A decline ends the stream: of one never admitted it opens it first.
3. A cancellation ends what waits and marks what runs: its worker stops it, and it is never given again.
4. A registration takes the inbox from an older one. A worker dies when its lease expires or is superseded, or when it
   says that its engine is dead: what it had is given again as the next attempt, ends as cancelled if that was asked
   for, or as failed (`worker_lost`) after `attempts_max`, where rule 5 does not say more. A release gives it away at
   once.
5. A request whose worker died, and not for the first time, did it if it was alone there: it fails as `poison` and is
   parked. So does one whose last attempt was alone among its like (`placement`, rule 2). A death beside others says too
   little: those that were with it are as likely.
6. What a worker hands back is given again at once, but not to that worker before it has renewed; what is handed back
   again and again for want of room waits longer each time, and fails as `not_served` after `returns_max`. What is
   handed back because its engine fell silent fails after `stalls_max`.
7. Past its deadline a request ends as failed (`deadline_exceeded`), waiting or running.
8. What waits is given to workers by `streams.dispatch.giving`.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from schemas.codec import Envelope
from schemas.events import (
    Event,
    GenerationAdmitted,
    GenerationCancelled,
    GenerationDeclined,
    GenerationFinished,
    WorkerLeased,
    WorkerRegistered,
    WorkerReleased,
)
from schemas.models import Model
from schemas.prefix import unpacked
from schemas.values import DETAIL_CHARS_MAX, EndStatus, Failure
from streams.dispatch.events import queued
from streams.dispatch.limits import Limits
from streams.dispatch.pool import Pool, Progress, Request, Worker
from streams.dispatch.records import made
from streams.dispatch.round import Round
from streams.dispatch.service import serve

ANY_ATTEMPT = 2**31 - 1
"""Attempt of an end that counts whatever the attempt is: for replies that we know no more."""

DEADLINE = Failure(code="deadline_exceeded", detail="The reply did not end within its time.")
WORKER_LOST = Failure(code="worker_lost", detail="The workers that generated this reply were lost, again and again.")
ENGINE_STALLED = Failure(code="engine_stalled", detail="The engine gave no token for too long, again and again.")
POISON = Failure(code="poison", detail="Workers died while they generated this reply. It is not tried again.")
POOL_UNKNOWN = Failure(code="pool_unknown", detail="No pool of this name is served any more.")

NEVER_MS = 2**62

DEATHS = frozenset({"engine_dead", "engine_stuck"})
"""Reasons for a hand-back that say that the worker is going to be replaced."""
STALLED = "engine_stalled"
NO_ROOM = frozenset({"engine_overloaded", "interrupted"})
"""Reasons for a hand-back after which the same, elsewhere, may be no better: from the second one on it waits longer and
longer, so that an outage of what all workers stand on is outlived."""
BACKOFF_MS, BACKOFF_MS_MAX = 500, 15_000
TOLD = {"handed_back": "handed_over", "": "handed_over"}
"""What readers are told where it is not the reason itself."""


def backoff_ms(returned: int) -> int:
    """How long a request waits that was handed back so often before, at least once."""
    return min(BACKOFF_MS_MAX, BACKOFF_MS << min(returned - 1, 16))


def not_served(reason: str, detail: str = "") -> Failure:
    """It was handed back too often. `detail`: what was said the last time."""
    why = f"{reason} ({detail})" if detail else reason
    return Failure(
        code="not_served",
        detail=f"Workers handed this reply back again and again, the last time because of {why}. Try again later.",
        retry_after_s=60,
    )


def late(progress: Progress) -> Failure:
    """Its time is over. Where it was handed back before, with a cause, that is why it took so long."""
    if not progress.reset_detail:
        return DEADLINE
    return replace(DEADLINE, detail=f"{DEADLINE.detail} Before, it was handed back: {progress.reset_detail}")


def take(round_: Round, envelope: Envelope[Event], offset: int, models: Mapping[str, Model]) -> None:
    """One record of the pool; other events than those of requests and workers change nothing."""
    match envelope.event:
        case GenerationAdmitted() as event:
            _admitted(round_, event, offset, envelope, models)
        case GenerationDeclined() as event:
            _declined(round_, event, envelope)
        case GenerationCancelled() as event:
            _cancelled(round_, event, envelope)
        case GenerationFinished() as event:
            _finished(round_, event)
        case WorkerRegistered() as event:
            _registered(round_, event, offset)
        case WorkerLeased() as event:
            _leased(round_, event)
        case WorkerReleased() as event:
            _released(round_, event)
        case _:
            pass


def refuse(round_: Round, event: GenerationAdmitted, error: Failure, cause: Envelope[Event]) -> None:
    """A request that is not taken ends at once, with its reason."""
    round_.open_stream(queued(event), (), cause)
    round_.end_stream(event.reply_id, event.conversation_id, 1, "refused", error, cause)


def _admitted(
    round_: Round, event: GenerationAdmitted, offset: int, cause: Envelope[Event], models: Mapping[str, Model]
) -> None:
    if round_.requests.get(event.reply_id) or round_.endings.get(event.reply_id) or round_.recent.get(event.reply_id):
        return
    match serve(round_, event, models):
        case Failure() as error:
            refuse(round_, event, error, cause)
        case served:
            round_.open_stream(queued(served.admitted), served.notices, cause)
            round_.enqueue(made(served.admitted, offset, cause.traceparent))


def _declined(round_: Round, event: GenerationDeclined, cause: Envelope[Event]) -> None:
    request = round_.requests.get(event.reply_id)
    if request is not None:
        _stop(round_, request, event.status, event.error, cause)
        return
    if round_.endings.get(event.reply_id):
        return
    if not event.admitted:
        if round_.recent.get(event.reply_id):
            return
        round_.open_stream(queued(event), (), cause)
    attempt = ANY_ATTEMPT if event.admitted else 1
    round_.end_stream(event.reply_id, event.conversation_id, attempt, event.status, event.error, cause)


def _cancelled(round_: Round, event: GenerationCancelled, cause: Envelope[Event]) -> None:
    request = round_.requests.get(event.reply_id)
    if request is None or request.progress.cancelled:
        return
    if request.progress.phase == "queued":
        round_.end(request, "cancelled", None, cause)
    else:
        round_.cancel(request)


def _finished(round_: Round, event: GenerationFinished) -> None:
    request = round_.requests.get(event.reply_id)
    if request is None or request.progress.phase != "given" or request.generation_id != event.generation_id:
        return
    if request.progress.epoch != event.epoch:
        return
    if not event.returned:
        used = event.usage
        round_.forget(request, None if used is None else used.input_tokens + used.output_tokens)
        return
    worker = round_.workers.get(event.inbox)
    if worker is None or worker.epoch != event.epoch:
        return
    if event.reason in DEATHS:
        _died(round_, worker, event.reason)
        round_.keep(replace(round_.workers[event.inbox], alive=False, released=True))
        return
    _again(
        round_,
        request,
        TOLD.get(event.reason, event.reason),
        returned=event.reason != STALLED,
        stalled=event.reason == STALLED,
        detail=event.detail[:DETAIL_CHARS_MAX],
    )
    round_.put(replace(round_.workers[event.inbox], closed=True))


def _registered(round_: Round, event: WorkerRegistered, epoch: int) -> None:
    older = round_.workers.get(event.inbox)
    limits = round_.limits
    possible = 1 <= event.slots <= limits.slots_max and 0 <= event.kv_tokens <= limits.kv_tokens_max
    if not 0 <= event.inbox < limits.inboxes or not possible:
        return
    if older is not None:
        if older.epoch >= epoch:
            return
        _died(round_, older, "worker_replaced")
    round_.register(event, epoch)


def _died(round_: Round, worker: Worker, reason: str) -> None:
    """Rules 4 and 5."""
    held = round_.held_by(worker)
    instance = worker.registered.instance
    for request in held:
        round_.revoke(request)
        if request.progress.cancelled:
            round_.end(request, "cancelled", None)
        elif round_.limits.is_suspect(request.progress.lost) or (request.progress.lost and len(held) == 1):
            round_.park(request, instance, POISON)
        else:
            _again(round_, request, reason, killed=instance)


def _leased(round_: Round, event: WorkerLeased) -> None:
    worker = round_.workers.get(event.inbox)
    if worker is None or worker.epoch != event.epoch or worker.released:
        return
    prefixes, names = _prefixes(worker, event)
    renewed = replace(
        worker,
        alive=True,
        draining=event.draining,
        closed=False,
        renewed_flow_ms=round_.flow_ms,
        free_slots=event.free_slots,
        free_tokens=event.free_kv_tokens,
        prefixes=prefixes,
        fresh=frozenset(),
    )
    if worker.alive:
        round_.put(renewed, names)
    else:
        round_.keep(renewed)


def _prefixes(worker: Worker, event: WorkerLeased) -> tuple[frozenset[int], frozenset[int] | None]:
    """What it has cached, and which blocks may have come or gone (None: any)."""
    if event.whole:
        return frozenset(unpacked(event.prefixes)).difference(unpacked(event.dropped)), None
    if not (event.prefixes or event.dropped):
        return worker.prefixes, worker.fresh
    added, dropped = unpacked(event.prefixes), unpacked(event.dropped)
    return worker.prefixes.union(added).difference(dropped), worker.fresh.union(added, dropped)


def _released(round_: Round, event: WorkerReleased) -> None:
    worker = round_.workers.get(event.inbox)
    if worker is None or worker.epoch != event.epoch:
        return
    round_.count("left", event.reason or "drained")
    if worker.released:
        return
    for request in round_.held_by(worker):
        _again(round_, request, "handed_over", returned=True)
    round_.keep(replace(round_.workers[event.inbox], alive=False, released=True))


def _again(
    round_: Round,
    request: Request,
    reason: str,
    *,
    killed: str | None = None,
    returned: bool = False,
    stalled: bool = False,
    detail: str = "",
) -> None:
    """The next attempt, or the end where there have been enough."""
    progress, limits = request.progress, round_.limits
    lost, handed_back = progress.lost + (killed is not None), progress.returned + returned
    if progress.cancelled:
        round_.end(request, "cancelled", None)
    elif progress.stalled + stalled >= limits.stalls_max:
        round_.end(request, "failed", ENGINE_STALLED)
    elif lost >= limits.attempts_max:
        round_.end(request, "failed", WORKER_LOST)
    elif handed_back >= limits.returns_max:
        round_.end(request, "failed", not_served(reason, detail))
    else:
        later = reason in NO_ROOM and progress.returned > 0
        not_before_ms = round_.now_ms + backoff_ms(progress.returned) if later else 0
        round_.again(
            request,
            reason,
            killed=killed,
            returned=int(returned),
            stalled=int(stalled),
            not_before_ms=not_before_ms,
            detail=detail,
        )


def _stop(
    round_: Round,
    request: Request,
    status: EndStatus,
    error: Failure | None,
    cause: Envelope[Event] | None = None,
) -> None:
    if request.progress.phase == "given":
        round_.revoke(request)
    round_.end(request, status, error, cause)


def expire_leases(round_: Round) -> None:
    """The workers that have not renewed are dead."""
    for worker in list(round_.workers.values()):
        if not expired(worker, round_.limits.lease_ms, round_.flow_ms):
            continue
        _died(round_, worker, "worker_lost")
        round_.keep(replace(round_.workers[worker.registered.inbox], alive=False))


def expired(worker: Worker, lease_ms: int, flow_ms: int) -> bool:
    """Whether the worker's lease has run out."""
    return worker.alive and flow_ms - worker.renewed_flow_ms >= lease_ms


def expire_requests(round_: Round) -> None:
    """The requests whose time is over end."""
    if round_.now_ms < round_.next_deadline_ms:
        return
    for request in list(round_.requests.values()):
        if request.admitted.deadline_at_ms <= round_.now_ms:
            progress = request.progress
            _stop(round_, request, *(("cancelled", None) if progress.cancelled else ("failed", late(progress))))
    deadlines = (request.admitted.deadline_at_ms for request in round_.requests.values())
    round_.next_deadline_ms = min(deadlines, default=NEVER_MS)


def quiet(pool: Pool, limits: Limits, now_ms: int, flow_ms: int) -> bool:
    """Whether time alone changes nothing in the pool now."""
    if pool.requests and now_ms >= pool.next_deadline_ms:
        return False
    if flow_ms - pool.reported_flow_ms >= limits.report_ms:
        return False
    return not any(expired(worker, limits.lease_ms, flow_ms) for worker in pool.workers.values())
