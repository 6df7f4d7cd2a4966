"""The processes of a history, as the product composes them, two of each."""

from collections.abc import Callable
from typing import Any

from projections.buffer.commands import Lifetimes
from projections.buffer.replies import Limits as BufferLimits
from projections.buffer.step import BufferStep
from schemas.models import DEFAULT_MODELS
from streams.dispatch.limits import Limits as DispatchLimits
from streams.dispatch.load import Thresholds
from streams.dispatch.step import Dispatch
from streams.log.loop import Loop
from streams.log.transactions import TransactionalLoop
from streams.settlement.rules import Alarm, Tariff
from streams.settlement.step import Limits as SettlementLimits
from streams.settlement.step import Settle
from streams.turns.policy import Policy
from streams.turns.step import Turns
from tests.simulation.front import Front
from tests.simulation.log import SimulatedLog
from tests.simulation.store import MemoryStore
from tests.simulation.worker import SimulatedWorker

DISPATCH = DispatchLimits(
    running_max_free=1,
    running_max_paid=2,
    ageing_ms=1_000,
    ageing_share=3,
    thresholds=Thresholds(shorten_ms=500, smaller_ms=1_000, refuse_ms=4_000, shortened_tokens=16),
)
"""Bounds so small that they are met."""
POOL = DEFAULT_MODELS[0].pool
DEADLINE_MS = 60_000


class Process:
    """A process: how it is made, what runs of it now, and when it is turned again."""

    def __init__(self, name: str, group: str | None, replica: int, make: Callable[[], Any]) -> None:
        self.name = name
        self.group = group
        self.replica = replica
        self.make = make
        self.running: Any = None
        self.not_before_ms = 0
        self.turned_ms = 0
        self.version = -1
        """Of the log, at its last turn."""
        self.silent_since_ms: int | None = None
        self.expired = False


class Processes:
    """Makes each of them anew, for every life of it."""

    def __init__(
        self, log: SimulatedLog, store: MemoryStore, front: Callable[[], Front], mishap: Callable[[], str]
    ) -> None:
        self._mishap = mishap
        self._log = log
        self._store = store
        self._instances = 0
        self.alarms: list[Alarm] = []
        self.fronts = [Process(f"api-{n}", None, n, front) for n in range(2)]
        self.all = [
            *(Process(f"turns-{n}", "turns", n, lambda n=n: self._turns(n)) for n in range(2)),
            *(Process(f"dispatch-{n}", "dispatch", n, lambda n=n: self._dispatch(n)) for n in range(2)),
            *(Process(f"settlement-{n}", "settlement", n, lambda n=n: self._settlement(n)) for n in range(2)),
            *(Process(f"buffer-{n}", "buffer", n, lambda n=n: self._buffer(n)) for n in range(2)),
            *(Process(f"worker-{n}", None, n, lambda n=n: self._worker(n)) for n in range(2)),
            *self.fronts,
        ]

    def _turns(self, replica: int) -> TransactionalLoop:
        step = Turns(Policy(deadline_ms=DEADLINE_MS, sweep_margin_ms=5_000, conversation_running_max=2))
        topics = ("messages", "cancellations")
        return TransactionalLoop(
            self._log, step, topics=topics, state_topic="conversations", group="turns", replica=replica
        )

    def _dispatch(self, replica: int) -> TransactionalLoop:
        step = Dispatch(frozenset({POOL}), DISPATCH)
        topics = ("requests", "workers")
        return TransactionalLoop(self._log, step, topics=topics, state_topic="pools", group="dispatch", replica=replica)

    def _settlement(self, replica: int) -> Loop:
        limits = SettlementLimits(abandoned_ms=600_000)
        step = Settle(self._log.writer("streams/settlement"), Tariff(models=DEFAULT_MODELS), limits, self.alarms.append)
        return Loop(self._log, step, topics=("tokens",), group="settlement", replica=replica)

    def _buffer(self, replica: int) -> Loop:
        lifetimes = Lifetimes(open_ms=10**9, retention_ms=10**9)
        step = BufferStep(self._store, "n", lifetimes, BufferLimits())  # type: ignore[arg-type]
        return Loop(self._log, step, topics=("tokens",), group="buffer", replica=replica)

    def _worker(self, inbox: int) -> SimulatedWorker:
        self._instances += 1
        return SimulatedWorker(self._log, POOL, inbox, f"instance {self._instances}", self._mishap)
