"""The worker: reads its inbox, runs generations on its engine, keeps its lease, and leaves in good order.

It decides nothing itself: `inference_workers.assignments` says what to do, this carries it out.

1. The end of the inbox is resolved before the worker registers: what dispatch gives to it cannot be missed, what was
   given to its predecessor is not read. It commits nothing; dispatch owns the truth.
2. The offset of its registration is its lease epoch. The lease is renewed from the event loop that generates, so a
   worker that hangs loses it.
3. Told to stop, it takes nothing new, lets what runs finish within the grace, hands back the rest and releases its
   inbox. So it does when its engine keeps a slot that it was told to give up. When the engine is dead, or all of it has
   fallen silent, it hands back at once; either way it exits to be replaced.
4. A single generation that has fallen silent is handed back; the others go on.
5. An engine that has stopped telling how it is counts as full.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import structlog

from inference_workers.assignments import Action, Assignments, Begin, EndUnstarted, GiveBack, Leave, Stop
from inference_workers.engine import Engine, EngineDead
from inference_workers.intake import Batch, Intake, by_priority
from inference_workers.journal import Journal, Place, end_unstarted
from inference_workers.leases import Leases
from inference_workers.outcomes import is_hung, is_stalled
from inference_workers.pieces import Burst, Pieces
from inference_workers.policy import Policy
from inference_workers.prefixes import Prefixes
from inference_workers.run import Run, Told
from schemas.codec import Envelope
from schemas.events import (
    CancellationRequested,
    Event,
    GenerationRequested,
    GenerationRevoked,
    WorkerRegistered,
)
from schemas.topics import CANCELLATIONS, TOKENS, inference
from schemas.values import PRIORITIES
from streams.log.log import END, Log, Reader, since
from streams.log.steps import LogError, LogFull, NotAppended, Output, Partition, Writer

logger = structlog.get_logger("inference_workers")

Exit = Literal["drained", "superseded", "engine_dead", "engine_hung", "engine_stuck"]
AT_ONCE: frozenset[Exit] = frozenset({"engine_dead", "engine_hung", "superseded"})
"""Why nobody waits for what runs."""


def wall_ms() -> int:
    """The wall clock, milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Worker:
    """One worker process's life. `engine` must have been started."""

    def __init__(
        self,
        *,
        log: Log,
        engine: Engine,
        pool: str,
        inbox: int,
        instance: str,
        policy: Policy,
        now_ms: Callable[[], int] = wall_ms,
        heartbeat: Callable[[str], None] = lambda _detail: None,
    ) -> None:
        self._log = log
        self._engine = engine
        self._pool = pool
        self._inbox = inbox
        self._instance = instance
        self._policy = policy
        self._now_ms = now_ms
        self._heartbeat = heartbeat
        self._runs: dict[str, Run] = {}
        self._leaving: Exit | None = None
        self.unanswered_aborts = 0
        """Generations whose slot the engine did not give up in time when it was told to."""
        self._look = asyncio.Event()
        self._arrivals: asyncio.Queue[Batch | BaseException] = asyncio.Queue()

    async def run(self, stop: threading.Event) -> Exit:
        """Work until told to stop, superseded, or let down by the engine.

        Raises:
            LogError: the log cannot be reached at the start, or stopped serving reads.
        """
        info = self._engine.info()
        boxes = [Partition(inference(self._pool, priority).name, self._inbox) for priority in PRIORITIES]
        inbox = await asyncio.to_thread(self._log.reader, boxes, END)
        cancellations = await asyncio.to_thread(self._cancellations)
        self._writer: Writer = self._log.writer(f"worker/{self._pool}/{self._inbox}", linger_ms=1.0)
        place = await self._writer.append(
            Output(
                event=WorkerRegistered(
                    pool=self._pool,
                    instance=self._instance,
                    inbox=self._inbox,
                    model=info.model,
                    slots=info.slots,
                    kv_tokens=info.kv_tokens,
                    context_tokens=info.context_tokens,
                )
            )
        )
        self._epoch: int = place.offset
        self._assignments = Assignments(
            epoch=self._epoch, slots=info.slots, waiting_max=self._policy.waiting_max, kv_tokens=info.kv_tokens
        )
        here = Place(pool=self._pool, inbox=self._inbox, epoch=self._epoch, instance=self._instance, model=info.model)
        self._journal = Journal(self._writer, here, self._now_ms)
        self._leases = Leases(here, Prefixes(info.kv_tokens), self._policy.stats_stale_s)
        self._burst = Burst()
        self._partitions = await asyncio.to_thread(self._log.partitions, TOKENS.name)
        self._told = Told(freed=self._freed, lost=self._lost, dead=self._dead, stuck=self._stuck)
        logger.info("registered", pool=self._pool, inbox=self._inbox, epoch=self._epoch, instance=self._instance)
        return await self._serve([("inbox", inbox), ("cancellations", cancellations)], stop)

    def _cancellations(self) -> Reader:
        partitions = [Partition(CANCELLATIONS.name, n) for n in range(self._log.partitions(CANCELLATIONS.name))]
        return self._log.reader(partitions, since(self._now_ms() - self._policy.cancellations_from_ms))

    async def _serve(self, readers: list[tuple[str, Reader]], stop: threading.Event) -> Exit:
        intakes = [Intake(name, reader, self._arrivals) for name, reader in readers]
        asyncio.get_running_loop().set_exception_handler(self._broken)
        self._lease()
        for intake in intakes:
            intake.start()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                receiving = self._tasks.create_task(self._receive())
                await self._watch(stop)
                receiving.cancel()
            if self._leaving != "superseded":
                self._append(self._leases.released(self._leaving or "drained"))
            with contextlib.suppress(LogError):  # what is lost here, the expiry of the lease makes good
                await asyncio.to_thread(self._writer.flush, self._policy.hand_back_s)
        finally:
            for intake in intakes:
                await intake.close()
            with contextlib.suppress(LogError):
                await asyncio.to_thread(self._writer.close, 1.0)
        return self._leaving or "drained"

    def _broken(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback of ours raised: that is a bug, and the worker must not go on half."""
        error = context.get("exception") or RuntimeError(str(context.get("message")))
        self._arrivals.put_nowait(error)

    async def _receive(self) -> None:
        while True:
            item = await self._arrivals.get()
            if isinstance(item, BaseException):
                raise item
            for envelope in by_priority(item):
                self._do(self._arrived(envelope))

    def _arrived(self, envelope: Envelope[Event]) -> list[Action]:
        match envelope.event:
            case GenerationRequested():
                return self._assignments.requested(envelope, self._now_ms())  # type: ignore[arg-type]
            case GenerationRevoked() as event:
                return self._assignments.revoked(event)
            case CancellationRequested() as event:
                return self._assignments.cancellation(event, self._now_ms())
            case _:
                return []

    async def _watch(self, stop: threading.Event) -> None:
        """Renew the lease, look after time, until everything is over."""
        loop = asyncio.get_running_loop()
        renew_s = loop.time() + self._policy.lease_s
        give_up_s: float | None = None
        until_s: float | None = None
        while True:
            now_s = loop.time()
            if give_up_s is None and (stop.is_set() or self._leaving is not None):
                give_up_s = now_s + (self._policy.grace_s if self._leaving in (None, "engine_stuck") else 0.0)
                logger.info("draining", running=len(self._runs), because=self._leaving or "told to stop")
                self._do(self._assignments.drain())
                self._lease()
            if give_up_s is not None:
                if not self._runs or (until_s is not None and now_s >= until_s):
                    return
                if until_s is None and (now_s >= give_up_s or self._leaving in AT_ONCE):
                    self._do(
                        self._assignments.give_up("engine_stuck" if self._leaving == "engine_hung" else "handed_back")
                    )
                    until_s = now_s + self._policy.hand_back_s
            self._do(self._assignments.tick(self._now_ms()))
            self._stop_stalled(now_s)
            if now_s >= renew_s:
                renew_s = max(renew_s + self._policy.lease_s, now_s)
                self._lease()
            self._look.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._look.wait(), self._policy.tick_s)

    def _stop_stalled(self, now_s: float) -> None:
        heard_s = [(run.began_s, run.last_token_s) for run in self._runs.values()]
        if self._leaving is None and is_hung(self._policy.patience, heard_s, now_s):
            logger.error("engine_hung", running=len(self._runs))
            self._leaving = "engine_hung"
            return
        for generation_id, run in list(self._runs.items()):
            then_s = now_s - self._policy.patience.together_s
            if is_stalled(self._policy.patience, began_s=run.began_s, last_token_s=run.last_token_s, now_s=then_s):
                self._do(self._assignments.stop(generation_id, "stalled"))

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Begin():
                    self._begin(action)
                case Stop():
                    run = self._runs.get(action.generation_id)
                    if run is not None:
                        run.stop(action.reason)
                case EndUnstarted():
                    self._tasks.create_task(end_unstarted(self._journal, action))
                case GiveBack():
                    self._journal.handed_back(action.taken)
                case Leave():
                    logger.warning("superseded", epoch=self._epoch, by=action.epoch)
                    self._leaving = "superseded"
                    self._look.set()

    def _begin(self, action: Begin) -> None:
        taken = action.taken
        pieces = Pieces(self._writer, taken.request, self._partitions, lambda: self._lost(taken.id))
        try:
            self._journal.started(taken, pieces.failed)
        except (LogFull, NotAppended):
            self._journal.handed_back(taken)
            self._freed(taken.id)
            return
        self._leases.cached(taken.request)
        run = Run(taken, self._engine, self._journal, pieces, self._burst)
        self._runs[taken.id] = run
        self._tasks.create_task(self._carry(run))

    async def _carry(self, run: Run) -> None:
        try:
            await run.run(self._told, self._policy.abort_s)
        finally:
            del self._runs[run.taken.id]
            self._look.set()
        self._leases.cached(run.taken.request, run.text)

    def _freed(self, generation_id: str) -> None:
        self._do(self._assignments.freed(generation_id, self._now_ms()))

    def _lost(self, generation_id: str) -> None:
        self._do(self._assignments.stop(generation_id, "undeliverable"))

    def _dead(self, error: EngineDead) -> None:
        logger.error("engine_dead", reason=str(error))
        self._leaving = self._leaving or "engine_dead"
        self._look.set()

    def _stuck(self, generation_id: str) -> None:
        self.unanswered_aborts += 1
        logger.error("engine_stuck", generation_id=generation_id)
        self._leaving = self._leaving or "engine_stuck"
        self._look.set()

    def _lease(self) -> None:
        self._journal.tell_again()
        stats = self._engine.stats()
        self._append(self._leases.renewed(self._assignments, stats, self._engine.info()))
        silent = ", takes nothing: its engine is not able now" if stats.age_s > self._policy.stats_stale_s else ""
        self._heartbeat(f"{self._assignments.running} running, {self._assignments.waiting} waiting{silent}")

    def _append(self, event: Event) -> None:
        try:
            self._writer.append(Output(event=event))
        except (LogFull, NotAppended):
            logger.warning("not_told", event_type=type(event).__name__)
