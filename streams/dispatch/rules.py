"""What each event, and time, do to a pool. Each rule makes moves on a `Round`.

1. An admission opens the stream and waits; one that is known, or has ended, is ignored; above the bounds of the queue
   it is refused (`queue_full`).
2. A decline ends the stream: of one never admitted it opens it first.
3. A cancellation ends what waits and marks what runs: its worker stops it, and it is never given again.
4. A registration takes the inbox from an older one. A lease that expires, is superseded or released loses what the
   worker had: each is given again as the next attempt, ends as cancelled if that was asked for, or as failed
   (`worker_lost`) after `attempts_max`.
5. What a worker hands back is given again at once, but not to that worker before it has renewed.
6. Past its deadline a request ends as failed (`deadline_exceeded`), waiting or running.
"""

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
from schemas.values import PRIORITIES, EndStatus, Failure
from streams.dispatch.events import queued
from streams.dispatch.placement import choose, next_of, slots_left
from streams.dispatch.pool import Pool, Request, Worker
from streams.dispatch.round import Round

ANY_ATTEMPT = 2**31 - 1
"""Attempt of an end that counts whatever the attempt is: for replies that we know no more."""

QUEUE_FULL = Failure(code="queue_full", detail="Too many requests are waiting. Try again in a moment.")
DEADLINE = Failure(code="deadline_exceeded", detail="The reply did not end within its time.")
WORKER_LOST = Failure(code="worker_lost", detail="The workers that generated this reply were lost, again and again.")
POOL_UNKNOWN = Failure(code="pool_unknown", detail="No pool of this name is served any more.")


def take(round_: Round, envelope: Envelope[Event], offset: int) -> None:
    """One record of the pool; other events than those of requests and workers change nothing."""
    match envelope.event:
        case GenerationAdmitted() as event:
            _admitted(round_, event, offset, envelope)
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


def _admitted(round_: Round, event: GenerationAdmitted, offset: int, cause: Envelope[Event]) -> None:
    if event.reply_id in round_.requests or event.reply_id in round_.endings or event.reply_id in round_.recent:
        return
    request = Request(admitted=event, order=offset, traceparent=cause.traceparent)
    limits = round_.limits
    if round_.waiting >= limits.queue_max or round_.waiting_chars + request.chars > limits.queue_chars_max:
        refuse(round_, event, QUEUE_FULL, cause)
        return
    round_.open_stream(queued(event), event.notices, cause)
    round_.enqueue(request)


def _declined(round_: Round, event: GenerationDeclined, cause: Envelope[Event]) -> None:
    request = round_.requests.get(event.reply_id)
    if request is not None:
        _stop(round_, request, event.status, event.error, cause)
        return
    if event.reply_id in round_.endings:
        return
    if not event.admitted:
        if event.reply_id in round_.recent:
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
        round_.forget(request)
        return
    _lost(round_, request, "handed_over", returned=1)
    worker = round_.workers.get(event.inbox)
    if worker is not None and worker.epoch == event.epoch:
        round_.workers[event.inbox] = replace(worker, free_slots=0)


def _registered(round_: Round, event: WorkerRegistered, epoch: int) -> None:
    older = round_.workers.get(event.inbox)
    if not 0 <= event.inbox < round_.limits.inboxes or event.slots < 1:
        return
    if older is not None:
        if older.epoch >= epoch:
            return
        for request in round_.held_by(older):
            round_.revoke(request)
            _lost(round_, request, "worker_replaced", lost=1)
    round_.register(event, epoch)


def _leased(round_: Round, event: WorkerLeased) -> None:
    worker = round_.workers.get(event.inbox)
    if worker is None or worker.epoch != event.epoch or worker.released:
        return
    renewed = replace(
        worker,
        alive=True,
        draining=event.draining,
        renewed_flow_ms=round_.flow_ms,
        free_slots=event.free_slots,
        free_tokens=event.free_kv_tokens,
    )
    if worker.alive:
        round_.workers[event.inbox] = renewed
    else:
        round_.keep(renewed)


def _released(round_: Round, event: WorkerReleased) -> None:
    worker = round_.workers.get(event.inbox)
    if worker is None or worker.epoch != event.epoch or worker.released:
        return
    for request in round_.held_by(worker):
        _lost(round_, request, "handed_over", returned=1)
    round_.keep(replace(round_.workers[event.inbox], alive=False, released=True))


def _lost(round_: Round, request: Request, reason: str, *, lost: int = 0, returned: int = 0) -> None:
    progress, limits = request.progress, round_.limits
    if progress.cancelled:
        round_.end(request, "cancelled", None)
    elif progress.lost + lost >= limits.attempts_max or progress.returned + returned >= limits.returns_max:
        round_.end(request, "failed", WORKER_LOST)
    else:
        round_.again(request, reason, lost=lost, returned=returned)


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
        for request in round_.held_by(worker):
            round_.revoke(request)
            _lost(round_, request, "worker_lost", lost=1)
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
            cancelled = request.progress.cancelled
            _stop(round_, request, "cancelled" if cancelled else "failed", None if cancelled else DEADLINE)
    deadlines = (request.admitted.deadline_at_ms for request in round_.requests.values())
    round_.next_deadline_ms = min(deadlines, default=NEVER_MS)


NEVER_MS = 2**62


def place(round_: Round) -> None:
    """Give requests to workers until nothing that waits fits."""
    open_models = {worker.registered.model for worker in round_.workers.values() if slots_left(worker) > 0}
    for model in sorted(open_models):
        while (request := _next(round_, model)) is not None:
            had_it = round_.affinity.get(request.admitted.conversation_id)
            worker = choose(round_.workers.values(), request, had_it)
            if worker is None:
                break
            _count(round_, request, model)
            round_.give(request, worker)


def _next(round_: Round, model: str) -> Request | None:
    paid, free = (round_.first(model, priority) for priority in PRIORITIES)
    return next_of(paid, free, paid_in_row=round_.paid_in_row, limits=round_.limits, now_ms=round_.now_ms)


def _count(round_: Round, request: Request, model: str) -> None:
    if request.admitted.priority == PRIORITIES[0]:
        round_.paid_in_row += 1
    elif round_.first(model, PRIORITIES[0]) is not None:
        round_.paid_in_row = 0


def quiet(pool: Pool, lease_ms: int, now_ms: int, flow_ms: int) -> bool:
    """Whether time alone changes nothing in the pool now."""
    if pool.requests and now_ms >= pool.next_deadline_ms:
        return False
    return not any(expired(worker, lease_ms, flow_ms) for worker in pool.workers.values())
