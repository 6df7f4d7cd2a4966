"""A worker turned step by step: the product's own rules and journal, and an engine that gives a word when it is due.

What the real worker's event loop adds (threads, bursts, an engine) is left out; what decides is the same code:
`inference_workers.assignments`, `outcomes`, `journal` and `prefixes`.
"""

import hashlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from inference_workers.assignments import (
    Action,
    Assignments,
    Begin,
    EndUnstarted,
    GiveBack,
    Leave,
    Stop,
    Taken,
)
from inference_workers.journal import Journal, Place, end_event, end_unstarted
from inference_workers.outcomes import Ending, HandBack, Outcome, finished, stopped
from inference_workers.prefixes import Prefixes
from schemas.codec import decode
from schemas.events import (
    CancellationRequested,
    GenerationRequested,
    GenerationRevoked,
    TokensGenerated,
    WorkerLeased,
    WorkerRegistered,
    WorkerReleased,
)
from schemas.prefix import blocks, salt_of
from schemas.topics import CANCELLATIONS, inference
from schemas.values import PRIORITIES, Timings, Usage
from streams.log.log import END, since
from streams.log.memory import MemoryLog
from streams.log.steps import Appended, Output, Partition

SLOTS = 3
WAITING_MAX = 3
LEASE_MS = 1_000
CACHE_TOKENS = 1_024
"""A small cache: blocks come and go."""
MODEL = "smollm2-135m-instruct"


class Left(Exception):
    """The worker was superseded: its process exits."""


def script_of(content: str) -> tuple[int, int]:
    """Number of words and milliseconds between them; of a message such as `12x40 …`, its last paragraph."""
    words, _, rest = content.rpartition("\n\n")[2].partition("x")
    return int(words), int(rest.split()[0])


def word(number: int, tag: str) -> str:
    """The text of a piece, with its generation's tag; some are not ASCII."""
    return f"w{number}/{tag} " if number % 3 else f"ü{number}/{tag}… "


class Running:
    """A generation on the engine."""

    def __init__(self, taken: Taken, tag: str, now_ms: int) -> None:
        self.taken = taken
        self.tag = tag
        """Names the worker's life and the attempt, in every word of it."""
        self.words, self.every_ms = script_of(taken.request.prompt[-1].content)
        self.words = min(self.words, taken.request.sampling.max_output_tokens)
        self.began_ms = now_ms
        self.first_ms: int | None = None
        self.done = 0
        self.text = ""
        self.undelivered = False
        self.appended: list[Appended] = []
        self.outcome: Outcome | None = None
        """How it is over, once all pieces are acknowledged."""

    def due(self, now_ms: int) -> bool:
        """Whether the next word, or the end, is due."""
        return self.outcome is not None or self.began_ms + (self.done + 1) * self.every_ms <= now_ms


class SimulatedWorker:
    """One life of a worker."""

    def __init__(
        self, log: MemoryLog, pool: str, inbox: int, instance: str, mishap: Callable[[], str] = lambda: ""
    ) -> None:
        self._log = log
        self._mishap = mishap
        self._prefixes = Prefixes(CACHE_TOKENS)
        self._writer = log.writer(f"worker/{pool}/{inbox}")
        boxes = [Partition(inference(pool, priority).name, inbox) for priority in PRIORITIES]
        self._inbox = log.reader(boxes, END)
        numbers = range(log.partitions(CANCELLATIONS.name))
        partitions = [Partition(CANCELLATIONS.name, number) for number in numbers]
        self._cancellations = log.reader(partitions, since(log.now_ms() - 300_000))
        self._named = {"pool": pool, "instance": instance, "inbox": inbox}
        registered = WorkerRegistered(**self._named, model=MODEL, slots=SLOTS, kv_tokens=100_000, context_tokens=8192)
        self.epoch = self._writer.append(Output(event=registered)).result(0).offset
        self._assignments = Assignments(epoch=self.epoch, slots=SLOTS, waiting_max=WAITING_MAX)
        place = Place(pool=pool, inbox=inbox, epoch=self.epoch, instance=instance, model=MODEL)
        self._journal = Journal(self._writer, place, log.now_ms)
        self._running: dict[str, Running] = {}
        self._renewal = 0
        self._renewed_ms = -LEASE_MS

    def turn(self, now_ms: int) -> None:
        """Read, decide, generate, renew."""
        if now_ms - self._renewed_ms >= LEASE_MS:
            self._renew(now_ms)
        for reader in (self._cancellations, self._inbox):
            for record in reader.poll(0):
                envelope = decode(record.value, record.headers)
                match envelope.event:
                    case GenerationRequested():
                        self._do(self._assignments.requested(envelope, now_ms), now_ms)
                    case GenerationRevoked() as event:
                        self._do(self._assignments.revoked(event), now_ms)
                    case CancellationRequested() as event:
                        self._do(self._assignments.cancellation(event, now_ms), now_ms)
        self._do(self._assignments.tick(now_ms), now_ms)
        self._engine_fails(self._mishap(), now_ms)
        for running in list(self._running.values()):
            while running.taken.id in self._running and running.due(now_ms):
                before = running.done
                self._advance(running, now_ms)
                if running.done == before:
                    break

    def stop(self, now_ms: int) -> None:
        """Hand everything back and release the inbox, as after a drain's grace."""
        self._do(self._assignments.give_up(), now_ms)
        self._writer.append(Output(event=WorkerReleased(**self._named, epoch=self.epoch)))

    def close(self) -> None:
        """Nothing is held."""

    def _engine_fails(self, how: str, now_ms: int) -> None:
        """It falls silent about one generation, or dies with all of them; then the process exits."""
        running = list(self._running.values())
        if how == "engine_stalled" and running:
            self._over(running[0], HandBack(how), now_ms)
        elif how == "engine_dead":
            self._do(self._assignments.drain(), now_ms)
            for one in running:
                self._over(one, HandBack(how), now_ms)
            raise Left

    def _renew(self, now_ms: int) -> None:
        self._renewed_ms = now_ms
        self._journal.tell_again()
        self._renewal += 1
        told = self._prefixes.tell(self._renewal)
        leased = WorkerLeased(
            **self._named,
            epoch=self.epoch,
            renewal=self._renewal,
            free_slots=self._assignments.free_slots,
            free_kv_tokens=100_000,
            draining=self._assignments.draining,
            prefixes=told.prefixes,
            dropped=told.dropped,
            whole=told.whole,
        )
        self._writer.append(Output(event=leased))

    def _do(self, actions: Iterable[Action], now_ms: int) -> None:
        for action in actions:
            match action:
                case Begin():
                    self._begin(action.taken, now_ms)
                case Stop():
                    self._over(self._running[action.generation_id], stopped(action.reason), now_ms)
                case EndUnstarted():
                    at_once(end_unstarted(self._journal, action))
                case GiveBack():
                    self._journal.handed_back(action.taken)
                case Leave():
                    raise Left

    def _begin(self, taken: Taken, now_ms: int) -> None:
        self._running[taken.id] = running = Running(taken, f"{self.epoch}.{taken.request.attempt}", now_ms)
        self._prefixes.used(blocks(salt_of(taken.request.account_id), taken.request.prompt))
        self._journal.started(taken, lambda _: _undelivered(running))

    def _advance(self, running: Running, now_ms: int) -> None:
        if running.undelivered or running.outcome is not None:
            self._over(running, running.outcome or HandBack("undeliverable"), now_ms)
            return
        if running.done >= running.words:
            cut = running.words < script_of(running.taken.request.prompt[-1].content)[0]
            self._over(running, finished("length" if cut else "stop"), now_ms)
            return
        running.done += 1
        running.first_ms = running.first_ms or now_ms
        request = running.taken.request
        piece = TokensGenerated(
            reply_id=request.reply_id,
            conversation_id=request.conversation_id,
            generation_id=request.generation_id,
            attempt=request.attempt,
            seq=running.done,
            text=word(running.done, running.tag),
            tokens=1,
        )
        running.appended.append(self._writer.append(Output(event=piece), lambda _: _undelivered(running)))
        if running.undelivered:
            self._over(running, HandBack("undeliverable"), now_ms)
            return
        running.text += piece.text

    def _over(self, running: Running, outcome: Outcome, now_ms: int) -> None:
        taken = running.taken
        if isinstance(outcome, Ending) and not all(appended.done() for appended in running.appended):
            running.outcome = outcome
            return
        if running.undelivered:
            outcome = HandBack("undeliverable")
        del self._running[taken.id]
        if isinstance(outcome, HandBack):
            self._journal.handed_back(taken, outcome.because, outcome.detail)
        elif isinstance(outcome, Ending):
            began_ms = taken.request.submitted_at_ms
            data = running.text.encode()
            event = end_event(
                taken,
                outcome,
                seq=running.done + 1,
                usage=Usage(input_tokens=10, output_tokens=running.done),
                text_bytes=len(data),
                digest=hashlib.sha256(data).hexdigest()[:16],
                timings=Timings(
                    queued_ms=running.began_ms - began_ms,
                    first_token_ms=None if running.first_ms is None else running.first_ms - began_ms,
                    total_ms=now_ms - began_ms,
                ),
                now_ms=now_ms,
            )
            at_once(self._journal.ended(taken, event, running.began_ms - began_ms, lambda: running.undelivered))
        self._do(self._assignments.freed(taken.id, now_ms), now_ms)


def _undelivered(running: Running) -> None:
    running.undelivered = True


def at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")
