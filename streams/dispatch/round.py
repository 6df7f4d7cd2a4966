"""One decision about one pool: a working copy of its state, and the moves that rules make on it.

The pool that it was made from is not touched before `settle`, which makes it the one afterwards. Each move keeps the
state, its records and what is written (`streams.dispatch.outbox`) in step with each other.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from schemas.codec import Envelope, to_json
from schemas.events import Event, GenerationEnded, GenerationQueued, WorkerRegistered
from schemas.values import EndStatus, Failure, Notice
from streams.dispatch import events
from streams.dispatch.bounds import Bounds
from streams.dispatch.caches import Caches
from streams.dispatch.capacities import Capacities
from streams.dispatch.limits import Limits
from streams.dispatch.load import held_for, one_more
from streams.dispatch.outbox import Mark, Outbox
from streams.dispatch.overlays import Memory, Overlay
from streams.dispatch.placement import Room
from streams.dispatch.pool import Lease, Pool, Progress, Request, Worker
from streams.dispatch.queue import Queue
from streams.dispatch.records import end_key, progress_key, request_key, request_value, worker_key, worker_value


class Round:
    """A working copy of a pool for the length of one decision."""

    def __init__(self, pool: Pool, limits: Limits, now_ms: int, flow_ms: int) -> None:
        self.name = pool.name
        self.limits = limits
        self.now_ms = now_ms
        self.flow_ms = flow_ms
        self.requests: Overlay[str, Request] = Overlay(pool.requests)
        self.workers = dict(pool.workers)
        self.caches = Caches(pool.cached)
        self.capacities = Capacities(self.workers, flow_ms, limits)
        self.bounds = Bounds(pool.askers, self.capacities, flow_ms, limits)
        self.queue = Queue(pool, limits, self.bounds)
        self.endings: Overlay[str, GenerationEnded] = Overlay(pool.endings)
        self.recent: Memory[bool] = Memory(pool.recent, limits.recent_max)
        self.affinity: Memory[Lease] = Memory(pool.affinity, limits.affinity_max)
        self.next_deadline_ms = pool.next_deadline_ms
        self.unaged = dict(pool.unaged)
        self.last_inbox = pool.last_inbox
        self.hold_ms = dict(pool.hold_ms)
        self.paid_rates = dict(pool.paid_rates)
        self.levels = dict(pool.levels)
        self.empty_since_ms = dict(pool.empty_since_ms)
        self.reported_flow_ms = pool.reported_flow_ms
        self.tally = dict(pool.tally)
        self.outbox = Outbox(pool.name)

    def settle(self) -> Pool:
        """The pool after the moves. The one before is void."""
        return Pool(
            name=self.name,
            requests=self.requests.settle(),
            lines=self.queue.lines,
            waiting=self.queue.waiting,
            waiting_chars=self.queue.waiting_chars,
            running=self.queue.running.settle(),
            running_of=self.queue.running_of.settle(),
            held_back=frozenset(self.queue.held_back),
            askers=self.bounds.askers,
            workers=self.workers,
            cached=self.caches.settle(),
            endings=self.endings.settle(),
            next_deadline_ms=self.next_deadline_ms,
            recent=self.recent.settle(),
            affinity=self.affinity.settle(),
            unaged=self.unaged,
            last_inbox=self.last_inbox,
            hold_ms=self.hold_ms,
            paid_rates=self.paid_rates,
            levels=self.levels,
            empty_since_ms=self.empty_since_ms,
            reported_flow_ms=self.reported_flow_ms,
            tally=self.tally,
        )

    def count(self, what: str, why: str) -> None:
        """For metrics."""
        self.tally[what, why] = self.tally.get((what, why), 0) + 1

    # --- streams -----------------------------------------------------------------------------------------------

    def open_stream(self, queued: GenerationQueued, notices: Iterable[Notice], cause: Envelope[Event]) -> None:
        """The reply exists for its readers from here on."""
        given = tuple(notices)
        for notice in given:
            self.count("notice", notice.code)
        self.outbox.open_stream(queued, given, cause)

    def end_stream(
        self,
        reply_id: str,
        conversation_id: str,
        attempt: int,
        status: EndStatus,
        error: Failure | None,
        cause: Envelope[Event] | None = None,
    ) -> None:
        """The reply ends by our word; what is repeated of it is ignored from now on."""
        self.count("end", error.code if error else status)
        ended = events.ended(reply_id, conversation_id, attempt, status, error, self.now_ms)
        self.endings.put(reply_id, ended)
        self.outbox.states[end_key(self.name, reply_id)] = to_json(ended)
        self.outbox.end(ended, cause)
        self.recent.put(reply_id, True)

    def write_again(self) -> None:
        """After a restart: whatever may be missing in `tokens` is written once more."""
        for ended in self.endings.values():
            self.outbox.end(ended, None)
        for request in self.requests.values():
            if request.progress.unwritten:
                self.outbox.reset(request, self.now_ms)

    def confirm(self, mark: Mark) -> None:
        """What the mark stands for is in `tokens`: forget that it might not be."""
        _, reply_id, attempt = mark
        if attempt == 0 and self.endings.get(reply_id) is not None:
            self.endings.put(reply_id, None)
            self.outbox.states[end_key(self.name, reply_id)] = None
        request = self.requests.get(reply_id)
        if request is not None and request.progress.unwritten and request.progress.attempt == attempt:
            self._save(replace(request, progress=replace(request.progress, unwritten=False)))

    # --- requests ----------------------------------------------------------------------------------------------

    def enqueue(self, request: Request) -> None:
        """A new request waits."""
        admitted = request.admitted
        self.requests.put(admitted.reply_id, request)
        self.outbox.states[request_key(self.name, admitted.reply_id)] = request_value(request)
        self.next_deadline_ms = min(self.next_deadline_ms, admitted.deadline_at_ms)
        if admitted.priority == "paid" and self.queue.room(request) > 0:
            self.paid_rates[admitted.model] = one_more(self.paid_rates.get(admitted.model), self.flow_ms)
        self.queue.wait(request)

    def give(self, request: Request, room: Room) -> Worker:
        """The worker that has this room gets the request, which waits. The worker afterwards."""
        worker, tokens = room.worker, room.kv_tokens
        inbox = worker.registered.inbox
        progress = replace(request.progress, phase="given", inbox=inbox, epoch=worker.epoch, kv_tokens=tokens)
        request = replace(request, progress=progress, given_flow_ms=self.flow_ms)
        self._save(request)
        self.queue.given(request)
        after = replace(
            worker,
            held=worker.held + 1,
            held_tokens=worker.held_tokens + tokens,
            isolated=worker.isolated + self.limits.is_suspect(progress.lost),
            free_slots=worker.free_slots - 1,
            free_tokens=worker.free_tokens - tokens,
            fresh=worker.fresh.union(request.blocks),
        )
        self.put(after, request.blocks)
        self.last_inbox = inbox
        self.affinity.put(request.admitted.conversation_id, (inbox, worker.epoch))
        self.outbox.to_inbox(request, events.requested(request))
        return after

    def cancel(self, request: Request) -> None:
        """A request that runs: its worker stops it; it is never given again."""
        self._save(replace(request, progress=replace(request.progress, cancelled=True)))

    def end(
        self, request: Request, status: EndStatus, error: Failure | None, cause: Envelope[Event] | None = None
    ) -> None:
        """A request ends by our word, wherever it is."""
        admitted, attempt = request.admitted, request.progress.attempt
        self.forget(request)
        cause = cause or events.cause_of(request)
        self.end_stream(admitted.reply_id, admitted.conversation_id, attempt, status, error, cause)

    def park(self, request: Request, killed: str, error: Failure) -> None:
        """A request that killed this worker, as others before, fails, and is kept for a person to look at."""
        progress = replace(request.progress, killed=(*request.progress.killed, killed))
        self.outbox.park(replace(request, progress=progress), self.now_ms)
        self.end(request, "failed", error)

    def forget(self, request: Request, used_tokens: int | None = None) -> None:
        """The request is over (its end is in `tokens`, or will be). `used_tokens`: prompt and output, where known."""
        reply_id, model = request.admitted.reply_id, request.admitted.model
        if used_tokens is not None:
            self.queue.used(request, used_tokens)
            if request.given_flow_ms >= 0:
                self.hold_ms[model] = held_for(self.hold_ms.get(model), self.flow_ms - request.given_flow_ms)
        self._leave(request)
        self.requests.put(reply_id, None)
        self.outbox.states[request_key(self.name, reply_id)] = None
        self.outbox.states[progress_key(self.name, reply_id)] = None
        self.recent.put(reply_id, True)

    def revoke(self, request: Request) -> None:
        """Its worker, if it lives, shall stop this attempt."""
        self.outbox.to_inbox(request, events.revoked(request))

    def again(
        self,
        request: Request,
        reason: str,
        *,
        killed: str | None = None,
        returned: int = 0,
        stalled: int = 0,
        not_before_ms: int = 0,
        detail: str = "",
    ) -> None:
        """An attempt is void, and cost nothing: the request waits for its next one, at its old place."""
        self.count("attempt", reason)
        self.queue.used(request, 0)
        self._leave(request)
        before = request.progress
        progress = Progress(
            attempt=before.attempt + 1,
            killed=before.killed if killed is None else (*before.killed, killed),
            returned=before.returned + returned,
            stalled=before.stalled + stalled,
            not_before_ms=not_before_ms,
            reset_reason=reason,
            reset_detail=detail,
            unwritten=True,
        )
        request = replace(request, progress=progress, given_flow_ms=-1)
        self._save(request)
        self.queue.wait(request)
        self.outbox.reset(request, self.now_ms)

    def _save(self, request: Request) -> None:
        reply_id = request.admitted.reply_id
        self.requests.put(reply_id, request)
        self.outbox.states[progress_key(self.name, reply_id)] = to_json(request.progress)

    def _leave(self, request: Request) -> None:
        progress = request.progress
        if progress.phase == "queued":
            self.queue.left(request)
            return
        self.queue.stopped(request)
        worker = self.workers.get(progress.inbox)
        if worker is None or worker.epoch != progress.epoch:
            return
        after = replace(
            worker,
            held=worker.held - 1,
            held_tokens=worker.held_tokens - progress.kv_tokens,
            isolated=worker.isolated - self.limits.is_suspect(progress.lost),
            free_slots=min(worker.registered.slots, worker.free_slots + 1),
            free_tokens=min(worker.registered.kv_tokens, worker.free_tokens + progress.kv_tokens),
        )
        self.put(after)

    # --- workers -----------------------------------------------------------------------------------------------

    def models(self) -> set[str]:
        """Models that somebody runs or waits for."""
        return self.queue.models() | {worker.registered.model for worker in self.workers.values()}

    def register(self, registered: WorkerRegistered, epoch: int) -> None:
        """A worker begins with all its room."""
        worker = Worker(
            registered=registered,
            epoch=epoch,
            renewed_flow_ms=self.flow_ms,
            free_slots=registered.slots,
            free_tokens=registered.kv_tokens,
        )
        self.keep(worker)

    def put(self, worker: Worker, names: Iterable[int] | None = None) -> None:
        """A worker's state changed. `names`: the blocks that it may have cached or dropped, where they are known."""
        before = self.workers.get(worker.registered.inbox)
        self.caches.changed(before, worker, names)
        self.capacities.changed(before, worker)
        self.workers[worker.registered.inbox] = worker

    def keep(self, worker: Worker) -> None:
        """The same, in a way that must outlive us."""
        self.put(worker)
        self.outbox.states[worker_key(self.name, worker.registered.inbox)] = worker_value(worker)

    def held_by(self, worker: Worker) -> list[Request]:
        """The requests that it has, in the order of their admission."""
        at = ("given", worker.registered.inbox, worker.epoch)
        held = [
            request
            for request in self.requests.values()
            if (request.progress.phase, request.progress.inbox, request.progress.epoch) == at
        ]
        return sorted(held, key=lambda request: request.order)
