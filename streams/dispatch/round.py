"""One decision about one pool: a working copy of its state, and the moves that rules make on it.

The pool that it was made from is never touched; `pool()` is the one afterwards. Each move keeps the state, its
records and the outputs in step with each other:

- `before`: opens streams, so that nobody starts a reply that no fold knows;
- `outputs`: what workers get, in one transaction with the records;
- `after`: resets and ends in `tokens`. The records say that they may be missing until `confirm`.
"""

import heapq
from collections.abc import Iterable
from typing import TypeVar

from msgspec.structs import replace

from schemas.codec import Envelope, to_json
from schemas.events import (
    Event,
    GenerationEnded,
    GenerationQueued,
    GenerationRequested,
    GenerationRevoked,
    NoticeGiven,
    WorkerRegistered,
)
from schemas.topics import inference
from schemas.values import EndStatus, Failure, Notice, Priority
from streams.dispatch import events
from streams.dispatch.limits import Limits
from streams.dispatch.pool import Place, Pool, Progress, Request, Worker, tokens_held
from streams.dispatch.records import end_key, progress_key, request_key, request_value, worker_key, worker_value
from streams.log.steps import Output

V = TypeVar("V")

Mark = tuple[str, str, int]
"""Pool, reply id, and the attempt of a reset (0: the end) that was given to the plain writer."""


class Round:
    """A working copy of a pool for the length of one decision."""

    def __init__(self, pool: Pool, limits: Limits, now_ms: int, flow_ms: int) -> None:
        self.name = pool.name
        self.limits = limits
        self.now_ms = now_ms
        self.flow_ms = flow_ms
        self.requests = dict(pool.requests)
        self.queues = {of: list(queue) for of, queue in pool.queues.items()}
        self.waiting = pool.waiting
        self.waiting_chars = pool.waiting_chars
        self.workers = dict(pool.workers)
        self.endings = dict(pool.endings)
        self.next_deadline_ms = pool.next_deadline_ms
        self.recent = dict(pool.recent)
        self.affinity = dict(pool.affinity)
        self.paid_in_row = pool.paid_in_row
        self.before: list[Output] = []
        self.outputs: list[Output] = []
        self.states: dict[str, bytes | None] = {}
        self.after: list[Output] = []
        self.marks: list[Mark] = []

    def pool(self) -> Pool:
        """The pool after the moves."""
        return Pool(
            name=self.name,
            requests=self.requests,
            queues={of: queue for of, queue in self.queues.items() if queue},
            waiting=self.waiting,
            waiting_chars=self.waiting_chars,
            workers=self.workers,
            endings=self.endings,
            next_deadline_ms=self.next_deadline_ms,
            recent=self.recent,
            affinity=self.affinity,
            paid_in_row=self.paid_in_row,
        )

    # --- streams -----------------------------------------------------------------------------------------------

    def open_stream(self, queued: GenerationQueued, notices: Iterable[Notice], cause: Envelope[Event]) -> None:
        """The reply exists for its readers from here on."""
        self.before.append(Output(event=queued, cause=cause))
        for notice in notices:
            given = NoticeGiven(reply_id=queued.reply_id, conversation_id=queued.conversation_id, notice=notice)
            self.before.append(Output(event=given, cause=cause))

    def end_stream(
        self,
        reply_id: str,
        conversation_id: str,
        attempt: int,
        status: EndStatus,
        error: Failure | None,
        cause: Envelope[Event] | None = None,
    ) -> None:
        """The reply ends by our word."""
        ended = events.ended(reply_id, conversation_id, attempt, status, error, self.now_ms)
        self.endings[reply_id] = ended
        self.states[end_key(self.name, reply_id)] = to_json(ended)
        self._write_end(ended, cause)
        self.remember(reply_id)

    def write_again(self) -> None:
        """After a restart: whatever may be missing in `tokens` is written once more."""
        for ended in self.endings.values():
            self._write_end(ended, None)
        for request in self.requests.values():
            if request.progress.unwritten:
                self._write_reset(request)

    def confirm(self, mark: Mark) -> None:
        """What the mark stands for is in `tokens`: forget that it might not be."""
        _, reply_id, attempt = mark
        if attempt == 0 and self.endings.pop(reply_id, None) is not None:
            self.states[end_key(self.name, reply_id)] = None
        request = self.requests.get(reply_id)
        if request is not None and request.progress.unwritten and request.progress.attempt == attempt:
            self._save(replace(request, progress=replace(request.progress, unwritten=False)))

    def _write_end(self, ended: GenerationEnded, cause: Envelope[Event] | None) -> None:
        self.after.append(Output(event=ended, cause=cause))
        self.marks.append((self.name, ended.reply_id, 0))

    def _write_reset(self, request: Request) -> None:
        reset = events.reset(request)
        self.after.append(Output(event=reset, cause=events.cause_of(request)))
        self.marks.append((self.name, reset.reply_id, reset.attempt))

    # --- requests ----------------------------------------------------------------------------------------------

    def enqueue(self, request: Request) -> None:
        """A new request waits."""
        admitted = request.admitted
        self.requests[admitted.reply_id] = request
        self.states[request_key(self.name, admitted.reply_id)] = request_value(request)
        self.next_deadline_ms = min(self.next_deadline_ms, admitted.deadline_at_ms)
        self._wait(request)

    def give(self, request: Request, worker: Worker) -> None:
        """The worker gets the request, which is the first of its queue."""
        admitted, inbox = request.admitted, worker.registered.inbox
        progress = replace(request.progress, phase="given", inbox=inbox, epoch=worker.epoch)
        request = replace(request, progress=progress)
        self._save(request)
        heapq.heappop(self.queues[admitted.model, admitted.priority])
        self.waiting -= 1
        self.waiting_chars -= request.chars
        tokens = tokens_held(worker, request)
        self.workers[inbox] = replace(
            worker,
            held=worker.held + 1,
            held_tokens=worker.held_tokens + tokens,
            free_slots=worker.free_slots - 1,
            free_tokens=worker.free_tokens - tokens,
        )
        remember(self.affinity, admitted.conversation_id, inbox, self.limits.affinity_max)
        self._to_inbox(request, events.requested(request))

    def cancel(self, request: Request) -> None:
        """A request that runs: its worker stops it; it is never given again."""
        self._save(replace(request, progress=replace(request.progress, cancelled=True)))

    def end(
        self, request: Request, status: EndStatus, error: Failure | None, cause: Envelope[Event] | None = None
    ) -> None:
        """A request ends by our word, wherever it is."""
        admitted = request.admitted
        attempt = request.progress.attempt
        self.forget(request)
        self.end_stream(
            admitted.reply_id, admitted.conversation_id, attempt, status, error, cause or events.cause_of(request)
        )

    def forget(self, request: Request) -> None:
        """The request is over (its end is in `tokens`, or will be)."""
        reply_id = request.admitted.reply_id
        self._leave(request)
        del self.requests[reply_id]
        self.states[request_key(self.name, reply_id)] = None
        self.states[progress_key(self.name, reply_id)] = None
        self.remember(reply_id)

    def revoke(self, request: Request) -> None:
        """Its worker, if it lives, shall stop this attempt."""
        self._to_inbox(request, events.revoked(request))

    def again(self, request: Request, reason: str, *, lost: int = 0, returned: int = 0) -> None:
        """An attempt is void: the request waits for its next one, at its old place."""
        self._leave(request)
        before = request.progress
        progress = Progress(
            attempt=before.attempt + 1,
            lost=before.lost + lost,
            returned=before.returned + returned,
            reset_reason=reason,
            unwritten=True,
        )
        request = replace(request, progress=progress)
        self._save(request)
        self._wait(request)
        self._write_reset(request)

    def first(self, model: str, priority: Priority) -> Request | None:
        """The first that waits in a queue; drops entries that do not wait any more."""
        queue = self.queues.get((model, priority))
        while queue:
            order, reply_id = queue[0]
            request = self.requests.get(reply_id)
            if request is not None and request.progress.phase == "queued" and request.order == order:
                return request
            heapq.heappop(queue)
        return None

    def remember(self, reply_id: str) -> None:
        """It had its end: a repeated admission is ignored."""
        remember(self.recent, reply_id, None, self.limits.recent_max)

    def _save(self, request: Request) -> None:
        reply_id = request.admitted.reply_id
        self.requests[reply_id] = request
        self.states[progress_key(self.name, reply_id)] = to_json(request.progress)

    def _wait(self, request: Request) -> None:
        queue: list[Place] = self.queues.setdefault((request.admitted.model, request.admitted.priority), [])
        if len(queue) > 2 * self.waiting + 64:
            queue[:] = [place for place in queue if self._waits(place)]
            heapq.heapify(queue)
        heapq.heappush(queue, (request.order, request.admitted.reply_id))
        self.waiting += 1
        self.waiting_chars += request.chars

    def _waits(self, place: Place) -> bool:
        request = self.requests.get(place[1])
        return request is not None and request.progress.phase == "queued"

    def _leave(self, request: Request) -> None:
        if request.progress.phase == "queued":
            self.waiting -= 1
            self.waiting_chars -= request.chars
            return
        worker = self.workers.get(request.progress.inbox)
        if worker is None or worker.epoch != request.progress.epoch:
            return
        tokens = tokens_held(worker, request)
        self.workers[request.progress.inbox] = replace(
            worker,
            held=worker.held - 1,
            held_tokens=worker.held_tokens - tokens,
            free_slots=min(worker.registered.slots, worker.free_slots + 1),
            free_tokens=min(worker.registered.kv_tokens, worker.free_tokens + tokens),
        )

    def _to_inbox(self, request: Request, event: GenerationRequested | GenerationRevoked) -> None:
        topic = inference(self.name, request.admitted.priority).name
        inbox = request.progress.inbox
        self.outputs.append(Output(event=event, topic=topic, partition=inbox, cause=events.cause_of(request)))

    # --- workers -----------------------------------------------------------------------------------------------

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

    def keep(self, worker: Worker) -> None:
        """A worker's state changed in a way that must outlive us."""
        self.workers[worker.registered.inbox] = worker
        self.states[worker_key(self.name, worker.registered.inbox)] = worker_value(worker)

    def held_by(self, worker: Worker) -> list[Request]:
        """The requests that it has, in the order of their admission."""
        inbox, epoch = worker.registered.inbox, worker.epoch
        held = [
            request
            for request in self.requests.values()
            if request.progress.phase == "given" and request.progress.inbox == inbox and request.progress.epoch == epoch
        ]
        return sorted(held, key=lambda request: request.order)


def remember(memory: dict[str, V], key: str, value: V, most: int) -> None:
    """Put the key last; forget the oldest above the limit."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > most:
        del memory[next(iter(memory))]
