"""A whole deployment in memory and in virtual time: turns, dispatch, settlement, workers, people, and faults."""

import random
from collections.abc import Callable
from typing import Any

from schemas.codec import decode
from schemas.events import (
    CancellationRequested,
    Event,
    GenerationEnded,
    GenerationFinished,
    GenerationRequested,
    GenerationRevoked,
    GenerationStarted,
    ReplyStored,
    TokensGenerated,
    WorkerLeased,
    WorkerRegistered,
)
from schemas.ids import text_digest
from schemas.models import DEFAULT_MODELS
from schemas.topics import inference
from schemas.values import PRIORITIES, Usage
from streams.dispatch.limits import Limits
from streams.dispatch.step import Dispatch
from streams.log.log import END, Aborted, Reader
from streams.log.loop import Loop, LoopSettings
from streams.log.memory import MemoryLog
from streams.log.steps import LogError, Output, Partition
from streams.log.transactions import TransactionalLoop
from streams.settlement.rules import Alarm, Tariff
from streams.settlement.step import Limits as SettlementLimits
from streams.settlement.step import Settle
from streams.turns.policy import Policy
from streams.turns.step import Turns
from tests.streams.events import MODEL, cancellation, deleted, regenerated, submitted

DEADLINE_MS = 60_000
COUNTS = {"messages": 2, "cancellations": 2, "conversations": 2, "tokens": 2, "requests": 2, "workers": 2, "pools": 2}


class Crash(BaseException):
    """A SIGKILL."""


class Worker:
    """A worker of the pool: takes what its epoch is given, says it in pieces, renews its lease."""

    def __init__(self, world: "World", inbox: int, instance: int) -> None:
        self._world = world
        self._inbox = inbox
        self._instance = f"i{inbox}-{instance}"
        self._writer = world.log.writer("inference_workers")
        boxes = [Partition(inference("default", priority).name, inbox) for priority in PRIORITIES]
        self._reader: Reader = world.log.reader(boxes, END)
        cancels = [Partition("cancellations", number) for number in range(COUNTS["cancellations"])]
        self._cancels: Reader = world.log.reader(cancels, END)
        registered = WorkerRegistered(
            pool="default",
            instance=self._instance,
            inbox=inbox,
            model=MODEL,
            slots=2,
            kv_tokens=0,
            context_tokens=8192,
        )
        self.epoch = self._writer.append(Output(event=registered)).result(0).offset
        self.running: dict[str, tuple[GenerationRequested, list[str]]] = {}
        self._cancelled: set[str] = set()
        self._renewed_ms = -1_000
        self._renewal = 0

    def turn(self) -> bool:
        """False: it was superseded and stops."""
        now_ms = self._world.now_ms
        for record in self._reader.poll(0):
            event = decode(record.value, record.headers).event
            if isinstance(event, GenerationRequested) and event.epoch > self.epoch:
                return False
            if isinstance(event, GenerationRequested) and event.epoch == self.epoch:
                self._world.check_given(event)
                self.running[event.reply_id] = (event, [])
                self._write(event, GenerationStarted, model=event.model, worker=self._instance, started_at_ms=now_ms)
            elif isinstance(event, GenerationRevoked):
                self._revoked(event)
        for record in self._cancels.poll(0):
            event = decode(record.value, record.headers).event
            if isinstance(event, CancellationRequested):
                self._cancelled.add(event.reply_id)
        for request, pieces in list(self.running.values()):
            self._generate(request, pieces)
        if now_ms - self._renewed_ms >= 1_000:
            self._renewed_ms = now_ms
            self._renewal += 1
            leased = WorkerLeased(
                pool="default",
                instance=self._instance,
                inbox=self._inbox,
                epoch=self.epoch,
                renewal=self._renewal,
                free_slots=2 - len(self.running),
                free_kv_tokens=0,
            )
            self._writer.append(Output(event=leased))
        return True

    def _revoked(self, event: GenerationRevoked) -> None:
        if event.reply_id in self.running and self.running[event.reply_id][0].generation_id == event.generation_id:
            del self.running[event.reply_id]

    def _generate(self, request: GenerationRequested, pieces: list[str]) -> None:
        if request.reply_id in self._cancelled:
            self._end(request, pieces, "cancelled")
        elif len(pieces) >= 3 and self._world.random.random() < 0.3:
            self._end(request, pieces, "completed")
        elif self._world.random.random() < 0.02:
            self._finish(request, None)
        else:
            text = f"{request.attempt}.{len(pieces) + 1} "
            pieces.append(text)
            self._write(request, TokensGenerated, seq=len(pieces), text=text, tokens=1)

    def _end(self, request: GenerationRequested, pieces: list[str], status: Any) -> None:
        text = "".join(pieces)
        self._write(
            request,
            GenerationEnded,
            seq=len(pieces) + 1,
            status=status,
            ended_at_ms=self._world.now_ms,
            usage=Usage(input_tokens=5, output_tokens=len(pieces)),
            text_bytes=len(text),
            text_digest=text_digest(text),
        )
        self._finish(request, status)

    def _finish(self, request: GenerationRequested, status: Any) -> None:
        del self.running[request.reply_id]
        finished = GenerationFinished(
            pool="default",
            inbox=self._inbox,
            epoch=self.epoch,
            reply_id=request.reply_id,
            generation_id=request.generation_id,
            attempt=request.attempt,
            status=status,
            returned=status is None,
        )
        self._writer.append(Output(event=finished))

    def _write(self, request: GenerationRequested, kind: type[Event], **members: Any) -> None:
        event = kind(
            reply_id=request.reply_id,
            conversation_id=request.conversation_id,
            generation_id=request.generation_id,
            attempt=request.attempt,
            **members,
        )
        self._writer.append(Output(event=event))


class World:
    """Everything, turned by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_000_000
        self.log = MemoryLog(COUNTS, now_ms=lambda: self.now_ms, real_time=False)
        self.log.at_point = self._point
        self.alarms: list[Alarm] = []
        self.faults = True
        self.given: dict[str, tuple[int, int]] = {}
        self.accepted: set[str] = set()
        self._inside = False
        self._asleep: dict[str, int] = {}
        self._sends: dict[str, int] = {}
        self._client = self.log.writer("api")
        self._makers: dict[str, Callable[[], Loop | TransactionalLoop]] = {
            "turns-0": lambda: self._turns(0),
            "turns-1": lambda: self._turns(1),
            "dispatch-0": lambda: self._dispatch(0),
            "dispatch-1": lambda: self._dispatch(1),
            "settlement-0": self._settlement,
        }
        self._loops: dict[str, Loop | TransactionalLoop] = {}
        self._workers: dict[int, Worker] = {}
        self._instances = 0

    def check_given(self, event: GenerationRequested) -> None:
        """An attempt is given to one worker only."""
        place = (event.epoch, event.attempt)
        assert self.given.setdefault(event.generation_id, place) == place

    def step(self) -> None:
        """Some time passes, and everybody does something or other."""
        self.now_ms += self.random.randrange(20, 300)
        for name in self._makers:
            self._turn(name)
        for inbox in (0, 1):
            self._work(inbox)
        if self.faults:
            self._people()
            self._fate()

    def settle(self) -> None:
        """No more faults and no more people; on until nothing is open, past every deadline if need be."""
        self.faults = False
        self.log.down = False
        self._asleep.clear()
        for turn in range(1_500):
            self.step()
            if turn % 50 == 0 and self._ended() >= self.accepted:
                return

    def _ended(self) -> set[str]:
        return {event.reply_id for event in self.log.events("messages") if isinstance(event, ReplyStored)}

    def _turn(self, name: str) -> None:
        if self._asleep.get(name, 0) > self.now_ms:
            return
        self._inside = True
        try:
            if name not in self._loops:
                self._loops[name] = self._makers[name]()
            self._loops[name].turn(self.now_ms, 0.0)
        except (Crash, LogError):
            self._loops.pop(name, None)
            if self.random.random() < 0.5:
                self.log.end_transactions()
        finally:
            self._inside = False

    def _work(self, inbox: int) -> None:
        name = f"worker-{inbox}"
        if self._asleep.get(name, 0) > self.now_ms or self.log.down:
            return
        if inbox not in self._workers:
            self._instances += 1
            self._workers[inbox] = Worker(self, inbox, self._instances)
        if not self._workers[inbox].turn():
            del self._workers[inbox]

    def _people(self) -> None:
        if self.log.down or self.random.random() < 0.6:
            return
        conversation = f"conv_{self.random.choice('abcd')}"
        sent = self._sends.get(conversation, 0)
        number = self.random.randint(1, sent) if sent and self.random.random() < 0.3 else sent + 1
        what = self.random.random()
        if what < 0.6 or sent == 0:
            tier = self.random.choice(["free", "paid"])
            self._say(submitted(number, conversation, tier=tier, submitted_at_ms=self.now_ms))
            self._sends[conversation] = max(sent, number)
        elif what < 0.7:
            of = self.random.randint(1, sent)
            self._say(regenerated(sent + 1, of, conversation, submitted_at_ms=self.now_ms))
            self._sends[conversation] = sent + 1
        elif what < 0.98:
            self._client.append(Output(event=cancellation(self.random.randint(1, sent + 1), conversation)))
        else:
            self._client.append(Output(event=deleted(conversation)))

    def _say(self, event: Any) -> None:
        self.accepted.add(event.reply_id)
        self._client.append(Output(event=event))

    def _fate(self) -> None:
        if self.random.random() < 0.02:
            self.log.down = not self.log.down
        elif self.log.down and self.random.random() < 0.2:
            self.log.down = False
        if self.random.random() < 0.03:
            self._workers.pop(self.random.choice([0, 1]), None)
        if self.random.random() < 0.03:
            name = self.random.choice([*self._makers, "worker-0", "worker-1"])
            self._asleep[name] = self.now_ms + self.random.randrange(1_000, 8_000)
            group, _, replica = name.partition("-")
            if group in ("turns", "dispatch") and name in self._loops and not self.log.down:
                self.log.expire(group, int(replica))
        if self.random.random() < 0.02:
            self._loops.pop(self.random.choice(list(self._makers)), None)

    def _point(self, point: str, who: str) -> None:
        if not (self._inside and self.faults):
            return
        what = self.random.random()
        if what < 0.01:
            raise Crash
        if what < 0.02 and point == "transaction":
            raise Aborted

    def _turns(self, replica: int) -> TransactionalLoop:
        policy = Policy(deadline_ms=DEADLINE_MS, sweep_margin_ms=5_000)
        topics = ("messages", "cancellations")
        return TransactionalLoop(
            self.log, Turns(policy), topics=topics, state_topic="conversations", group="turns", replica=replica
        )

    def _dispatch(self, replica: int) -> TransactionalLoop:
        step = Dispatch(frozenset({"default"}), Limits())
        topics = ("requests", "workers")
        return TransactionalLoop(self.log, step, topics=topics, state_topic="pools", group="dispatch", replica=replica)

    def _settlement(self) -> Loop:
        step = Settle(
            self.log.writer("streams/settlement"), Tariff(models=DEFAULT_MODELS), SettlementLimits(), self.alarms.append
        )
        return Loop(self.log, step, topics=("tokens",), group="settlement", settings=LoopSettings(commit_ms=200))
