"""The whole service in one thread, on the log in memory, in virtual time, with faults drawn from a seed.

Processes are turned in random order. Each may be killed at any point at which it touches the log (and between turns),
stopped and continued (also in the middle of a turn, while the others go on), drained and restarted, or lose its
session; appends and transactions may fail; the buffer's store may be flushed. One seed gives one history.
"""

import contextlib
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import structlog

from projections.buffer.commands import Lifetimes
from projections.buffer.replies import Limits as BufferLimits
from projections.buffer.step import BufferStep
from schemas.models import DEFAULT_MODELS
from streams.dispatch.limits import Limits as DispatchLimits
from streams.dispatch.step import Dispatch
from streams.log.log import Aborted
from streams.log.loop import Loop
from streams.log.memory import MemoryLog
from streams.log.steps import LogError, NotAppended
from streams.log.transactions import TransactionalLoop
from streams.settlement.rules import Alarm
from streams.settlement.step import Limits as SettlementLimits
from streams.settlement.step import Settle
from streams.turns.policy import Policy
from streams.turns.step import Turns
from tests.simulation.clients import Clients
from tests.simulation.store import MemoryStore
from tests.simulation.worker import Left, SimulatedWorker

POOL = DEFAULT_MODELS[0].pool
PARTITIONS = {
    "messages": 2,
    "cancellations": 2,
    "conversations": 2,
    "requests": 2,
    "workers": 2,
    "pools": 2,
    "tokens": 2,
    "usage": 2,
}
SESSION_MS = 3_000
DEADLINE_MS = 60_000
CALM_STEP_MS = 50
BEGIN_MS = 1_764_434_400_000


class Crash(Exception):
    """The process in hand is killed."""


class Unfinished(AssertionError):
    """Something never came to its end."""


class Process:
    """A process: how it is made, what runs of it now, and when it is turned again."""

    def __init__(self, name: str, group: str | None, replica: int, make: Callable[[], Any]) -> None:
        self.name = name
        self.group = group
        self.replica = replica
        self.make = make
        self.running: Any = None
        self.not_before_ms = 0
        self.silent_since_ms: int | None = None
        self.expired = False


class World:
    """One history. `faults` is the share of moments at which something happens."""

    def __init__(
        self, seed: int, *, sends: int = 12, faults: float = 1.0, trace: Callable[[str], None] | None = None
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_ms = BEGIN_MS
        self.log = MemoryLog(PARTITIONS, lambda: self.now_ms, real_time=False)
        self.log.at_point = self._at_point
        self.store = MemoryStore()
        self.clients = Clients(self.log, self.store, self.rng, sends)
        self.alarms: list[Alarm] = []
        self.crashes = 0
        self.flushed = False
        self._faults = faults
        self._trace = trace
        self._current: Process | None = None
        self._nested = False
        self._instances = 0
        self.processes = [
            *(Process(f"turns-{n}", "turns", n, lambda n=n: self._turns(n)) for n in range(2)),
            *(Process(f"dispatch-{n}", "dispatch", n, lambda n=n: self._dispatch(n)) for n in range(2)),
            *(Process(f"settlement-{n}", "settlement", n, lambda n=n: self._settlement(n)) for n in range(2)),
            *(Process(f"buffer-{n}", "buffer", n, lambda n=n: self._buffer(n)) for n in range(2)),
            *(Process(f"worker-{n}", None, n, lambda n=n: self._worker(n)) for n in range(2)),
        ]

    # --- what runs ----------------------------------------------------------------------------------------------

    def _turns(self, replica: int) -> TransactionalLoop:
        step = Turns(Policy(deadline_ms=DEADLINE_MS, sweep_margin_ms=5_000))
        topics = ("messages", "cancellations")
        return TransactionalLoop(
            self.log, step, topics=topics, state_topic="conversations", group="turns", replica=replica
        )

    def _dispatch(self, replica: int) -> TransactionalLoop:
        step = Dispatch(frozenset({POOL}), DispatchLimits())
        topics = ("requests", "workers")
        return TransactionalLoop(self.log, step, topics=topics, state_topic="pools", group="dispatch", replica=replica)

    def _settlement(self, replica: int) -> Loop:
        limits = SettlementLimits(abandoned_ms=600_000)
        step = Settle(self.log.writer("streams/settlement"), DEFAULT_MODELS, limits, self.alarms.append)
        return Loop(self.log, step, topics=("tokens",), group="settlement", replica=replica)

    def _buffer(self, replica: int) -> Loop:
        lifetimes = Lifetimes(open_ms=10**9, retention_ms=10**9)
        step = BufferStep(self.store, "n", lifetimes, BufferLimits())  # type: ignore[arg-type]
        return Loop(self.log, step, topics=("tokens",), group="buffer", replica=replica)

    def _worker(self, inbox: int) -> SimulatedWorker:
        self._instances += 1
        return SimulatedWorker(self.log, POOL, inbox, f"instance {self._instances}")

    # --- time ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Faults and sends, then calm until everything has come to its end. Raises `Unfinished`."""
        for _ in range(600):
            self.now_ms += self.rng.choice((1, 2, 5, 10, 30, 30, 80))
            if self.rng.random() < 0.12:
                with self._process(None):
                    self.clients.act(self.now_ms)
            self._turn(self.rng.choice(self.processes))
        self.calm()

    def calm(self) -> None:
        """No more faults; everything that was accepted comes to its end."""
        self._faults = 0.0
        for process in self.processes:
            process.not_before_ms = min(process.not_before_ms, self.now_ms + 500)
        until_ms = self.now_ms + 4 * DEADLINE_MS
        while self.now_ms < until_ms:
            self.now_ms += CALM_STEP_MS
            self.clients.act(self.now_ms, only_retries=True)
            for process in self.processes:
                self._turn(process)
            if self.rng.random() < 0.1 and self._settled():
                return
        raise Unfinished(f"not at rest after {4 * DEADLINE_MS} ms of calm: {self.unfinished()}")

    def unfinished(self) -> list[str]:
        """Accepted replies without a stored end, and groups that are behind."""
        stored = {event.reply_id for event in self.log.events("messages") if type(event).__name__ == "ReplyStored"}
        open_ = [reply_id for reply_id, sent in self.clients.sent.items() if sent.accepted and reply_id not in stored]
        behind = [
            process.name for process in self.processes if process.group and process.running and process.running.lag()
        ]
        return open_ + behind

    def _settled(self) -> bool:
        everybody = all(process.running is not None for process in self.processes)
        return everybody and self.clients.done and not self.unfinished()

    def _turn(self, process: Process) -> None:
        self._expire(process)
        if self.now_ms < process.not_before_ms:
            return
        if self._faults and self._between_turns(process):
            return
        process.silent_since_ms, process.expired = None, False
        with self._process(process):
            try:
                if process.running is None:
                    process.running = process.make()
                    self._note(process, "starts")
                if process.group is None:
                    process.running.turn(self.now_ms)
                else:
                    process.running.turn(self.now_ms, 0)
            except Crash:
                self._kill(process, "crashes")
            except (LogError, Left) as error:
                self._exit(process, error)

    @contextlib.contextmanager
    def _process(self, process: Process | None) -> Iterator[None]:
        outer, self._current = self._current, process
        try:
            yield
        finally:
            self._current = outer

    # --- faults -------------------------------------------------------------------------------------------------

    def _between_turns(self, process: Process) -> bool:
        """Perhaps something happens to the process instead of its turn."""
        chance = self.rng.random() / self._faults
        if process.running is None or chance > 0.02:
            return False
        if chance < 0.006:
            self._kill(process, "is killed")
        elif chance < 0.010:
            self._stop(process)
        elif chance < 0.014:
            process.not_before_ms = self.now_ms + self.rng.choice((200, 2_000, 8_000))
            process.silent_since_ms = self.now_ms
            self._note(process, f"is stopped until {process.not_before_ms - BEGIN_MS}")
        elif chance < 0.017 and process.group:
            self.log.shake(process.group)
            self._note(process, "is rebalanced")
        elif chance < 0.0185 and process.name.startswith("buffer"):
            self.store.lose()
            self.flushed = True
            self._note(process, "finds its store flushed")
        else:
            return False
        return True

    def _at_point(self, point: str, who: str) -> None:
        process = self._current
        if not self._faults:
            return
        chance = self.rng.random() / self._faults
        if process is None:
            if point == "append" and chance < 0.05:
                raise NotAppended("the log does not answer")
            return
        if chance < 0.004:
            self._note(process, f"at {point} {who}")
            raise Crash
        if chance < 0.006 and point == "append":
            raise NotAppended("the log does not answer")
        if chance < 0.012 and point == "transaction":
            raise Aborted("the coordinator does not answer")
        if chance < 0.014 and point in ("append", "transaction") and not self._nested:
            self._others_go_on(process, point)

    def _others_go_on(self, process: Process, point: str) -> None:
        """The process is stopped in the middle of its turn; its session may end meanwhile."""
        self._nested = True
        steps = self.rng.choice((20, 100, 300))
        self._note(process, f"is stopped at {point} for {steps} turns")
        before_ms = process.not_before_ms
        process.not_before_ms = self.now_ms + 10**9
        process.silent_since_ms = self.now_ms
        others = [other for other in self.processes if other is not process]
        for _ in range(steps):
            self.now_ms += self.rng.choice((5, 20, 60))
            self._expire(process)
            self._turn(self.rng.choice(others))
        process.not_before_ms = before_ms
        self._nested = False
        self._note(process, "goes on")

    def _expire(self, process: Process) -> None:
        silent = process.silent_since_ms
        if process.group and not process.expired and silent is not None and self.now_ms - silent >= SESSION_MS:
            process.expired = True
            self.log.expire(process.group, process.replica)

    def _kill(self, process: Process, how: str) -> None:
        self.crashes += 1
        process.running = None
        process.silent_since_ms = self.now_ms
        process.not_before_ms = self.now_ms + self.rng.choice((0, 100, 1_000, 5_000))
        self.log.end_transactions()
        self._note(process, how)

    def _stop(self, process: Process) -> None:
        """SIGTERM."""
        self._note(process, "drains")
        with self._process(process):
            try:
                if process.group is None:
                    process.running.stop(self.now_ms)
                else:
                    process.running.stop()
            except Crash:
                self._kill(process, "crashes")
                return
            except LogError as error:
                self._exit(process, error)
                return
        process.running = None
        process.not_before_ms = self.now_ms + self.rng.choice((0, 500))

    def _exit(self, process: Process, error: Exception) -> None:
        """The process ends by itself; its supervisor starts it again."""
        self._note(process, f"exits: {type(error).__name__}: {error}")
        running, process.running = process.running, None
        if running is not None:
            with self._process(process), contextlib.suppress(LogError, Crash):
                running.close()
        self.log.end_transactions()
        process.silent_since_ms = self.now_ms
        process.not_before_ms = self.now_ms + 200

    def _note(self, process: Process, what: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.now_ms - BEGIN_MS:>8} {process.name} {what}")


def quiet() -> None:
    """Let the product's own logs be silent."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
