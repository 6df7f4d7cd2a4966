"""One decision about one pool: a working copy of its state, and the moves that rules make on it.

The pool that it was made from is never touched; `pool()` is the one afterwards. Each move keeps the state, its
records and the outputs in step with each other:

- `before`: opens streams, so that nobody starts a reply that no fold knows;
- `outputs`: what workers get, in one transaction with the records;
- `after`: resets and ends in `tokens`. The records say that they may be missing until `confirm`.
"""

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
from schemas.topics import PARKED, inference
from schemas.values import PRIORITIES, EndStatus, Failure, Notice, Priority
from streams.dispatch import events
from streams.dispatch.limits import Limits
from streams.dispatch.lines import Line, Place
from streams.dispatch.load import Capacity, held_for
from streams.dispatch.placement import ISOLATED_FROM, tokens_needed
from streams.dispatch.pool import ModelLine, Pool, Progress, Request, Worker
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
        self.waiting = pool.waiting
        self.waiting_chars = pool.waiting_chars
        self.running = dict(pool.running)
        self.workers = dict(pool.workers)
        self.endings = dict(pool.endings)
        self.next_deadline_ms = pool.next_deadline_ms
        self.recent = dict(pool.recent)
        self.affinity = dict(pool.affinity)
        self.unaged = pool.unaged
        self.last_inbox = pool.last_inbox
        self.hold_ms = dict(pool.hold_ms)
        self.levels = dict(pool.levels)
        self.empty_since_ms = dict(pool.empty_since_ms)
        self.reported_flow_ms = pool.reported_flow_ms
        self.tally = dict(pool.tally)
        self.before: list[Output] = []
        self.outputs: list[Output] = []
        self.states: dict[str, bytes | None] = {}
        self.after: list[Output] = []
        self.reports: list[Output] = []
        self.marks: list[Mark] = []
        self.capacities: dict[str, Capacity] = {}
        """By model, while no worker changes."""
        self._lines: dict[ModelLine, Line] = dict(pool.lines)
        self._mine: set[ModelLine] = set()

    def pool(self) -> Pool:
        """The pool after the moves."""
        return Pool(
            name=self.name,
            requests=self.requests,
            lines=self._lines,
            waiting=self.waiting,
            waiting_chars=self.waiting_chars,
            running=self.running,
            workers=self.workers,
            endings=self.endings,
            next_deadline_ms=self.next_deadline_ms,
            recent=self.recent,
            affinity=self.affinity,
            unaged=self.unaged,
            last_inbox=self.last_inbox,
            hold_ms=self.hold_ms,
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
        self.before.append(Output(event=queued, cause=cause))
        for notice in notices:
            self.count("notice", notice.code)
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
        self.count("end", error.code if error else status)
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
        """The worker gets the request, which waits."""
        admitted, inbox = request.admitted, worker.registered.inbox
        tokens = tokens_needed(worker, request)
        progress = replace(request.progress, phase="given", inbox=inbox, epoch=worker.epoch, kv_tokens=tokens)
        request = replace(request, progress=progress, given_flow_ms=self.flow_ms)
        self._save(request)
        self.line(admitted.model, admitted.priority).given(admitted.account_id, place_of(request), request.tokens)
        self.waiting -= 1
        self.waiting_chars -= request.chars
        self.running[admitted.account_id] = self.running.get(admitted.account_id, 0) + 1
        self.workers[inbox] = replace(
            worker,
            held=worker.held + 1,
            held_tokens=worker.held_tokens + tokens,
            isolated=worker.isolated + (progress.lost >= ISOLATED_FROM),
            free_slots=worker.free_slots - 1,
            free_tokens=worker.free_tokens - tokens,
            fresh=worker.fresh.union(request.blocks),
        )
        self.last_inbox = inbox
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

    def park(self, request: Request, error: Failure) -> None:
        """A request that kills its workers fails, and is kept for a person to look at."""
        event = events.parked(request, self.now_ms)
        self.outputs.append(Output(event=event, topic=PARKED.name, partition=0, cause=events.cause_of(request)))
        self.end(request, "failed", error)

    def forget(self, request: Request, used_tokens: int | None = None) -> None:
        """The request is over (its end is in `tokens`, or will be). `used_tokens`: prompt and output, where known."""
        admitted = request.admitted
        if used_tokens is not None:
            self.line(admitted.model, admitted.priority).charge(admitted.account_id, used_tokens - request.tokens)
            if request.given_flow_ms >= 0:
                held_ms = self.flow_ms - request.given_flow_ms
                self.hold_ms[admitted.model] = held_for(self.hold_ms.get(admitted.model), held_ms)
        self._leave(request)
        del self.requests[admitted.reply_id]
        self.states[request_key(self.name, admitted.reply_id)] = None
        self.states[progress_key(self.name, admitted.reply_id)] = None
        self.remember(admitted.reply_id)

    def revoke(self, request: Request) -> None:
        """Its worker, if it lives, shall stop this attempt."""
        self._to_inbox(request, events.revoked(request))

    def again(
        self, request: Request, reason: str, *, killed: str | None = None, returned: int = 0, stalled: int = 0
    ) -> None:
        """An attempt is void: the request waits for its next one, at its old place."""
        self.count("attempt", reason)
        self._leave(request)
        before = request.progress
        progress = Progress(
            attempt=before.attempt + 1,
            killed=before.killed if killed is None else (*before.killed, killed),
            returned=before.returned + returned,
            stalled=before.stalled + stalled,
            reset_reason=reason,
            unwritten=True,
        )
        request = replace(request, progress=progress, given_flow_ms=-1)
        self._save(request)
        self._wait(request)
        self._write_reset(request)

    def step_aside(self, request: Request) -> None:
        """It lets those behind it pass, until `step_back`."""
        admitted = request.admitted
        self.line(admitted.model, admitted.priority).given(admitted.account_id, place_of(request), 0)

    def step_back(self, request: Request) -> None:
        """To the front of its account again."""
        admitted = request.admitted
        self.line(admitted.model, admitted.priority).add(admitted.account_id, place_of(request), self.waits)

    def line(self, model: str, priority: Priority) -> Line:
        """The line, ours to change."""
        of = (model, priority)
        if of not in self._mine:
            before = self._lines.get(of)
            self._lines[of] = before.copy() if before else Line()
            self._mine.add(of)
        return self._lines[of]

    def waits(self, place: Place) -> bool:
        """Whether an entry of a line stands for a request that waits."""
        request = self.requests.get(place[1])
        return request is not None and request.progress.phase == "queued" and request.order == place[0]

    def waiting_of(self, model: str) -> dict[Priority, int]:
        """How many wait for a model, by priority."""
        lines = {priority: self._lines.get((model, priority)) for priority in PRIORITIES}
        return {priority: line.waiting if line else 0 for priority, line in lines.items()}

    def models(self) -> set[str]:
        """Models that somebody runs or waits for."""
        waited_for = {model for (model, _), line in self._lines.items() if line.waiting}
        return waited_for | {worker.registered.model for worker in self.workers.values()}

    def remember(self, reply_id: str) -> None:
        """It had its end: a repeated admission is ignored."""
        remember(self.recent, reply_id, None, self.limits.recent_max)

    def _save(self, request: Request) -> None:
        reply_id = request.admitted.reply_id
        self.requests[reply_id] = request
        self.states[progress_key(self.name, reply_id)] = to_json(request.progress)

    def _wait(self, request: Request) -> None:
        admitted = request.admitted
        self.line(admitted.model, admitted.priority).add(admitted.account_id, place_of(request), self.waits)
        self.waiting += 1
        self.waiting_chars += request.chars

    def _leave(self, request: Request) -> None:
        admitted, progress = request.admitted, request.progress
        if progress.phase == "queued":
            self.line(admitted.model, admitted.priority).left()
            self.waiting -= 1
            self.waiting_chars -= request.chars
            return
        self._one_less(admitted.account_id)
        worker = self.workers.get(progress.inbox)
        if worker is None or worker.epoch != progress.epoch:
            return
        self.workers[progress.inbox] = replace(
            worker,
            held=worker.held - 1,
            held_tokens=worker.held_tokens - progress.kv_tokens,
            isolated=worker.isolated - (progress.lost >= ISOLATED_FROM),
            free_slots=min(worker.registered.slots, worker.free_slots + 1),
            free_tokens=min(worker.registered.kv_tokens, worker.free_tokens + progress.kv_tokens),
        )

    def _one_less(self, account: str) -> None:
        before = self.running.pop(account, 0)
        if before > 1:
            self.running[account] = before - 1
        for (model, priority), line in list(self._lines.items()):
            if line.waiting and before >= self.limits.running_max(priority):
                self.line(model, priority).wake(account)

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


def place_of(request: Request) -> Place:
    return request.order, request.admitted.reply_id


def remember(memory: dict[str, V], key: str, value: V, most: int) -> None:
    """Put the key last; forget the oldest above the limit."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > most:
        del memory[next(iter(memory))]
