"""The whole service in one thread, on the log in memory, in virtual time, with faults drawn from a seed.

Processes are turned in random order. Each may be killed at any point at which it touches the log (and between turns),
stopped and continued (also in the middle of a turn, while the others go on), drained and restarted, or lose its
session; partitions move; appends and transactions may fail, or be done and not be answered, or be done twice; what is
appended may be read late. The buffer's store may be flushed, killed, or fail over to a replica that is behind; what it
pushes to the API comes late, or not, or the connection breaks. One seed gives one history.
"""

import contextlib
import random
from collections.abc import Callable, Iterator

from streams.log.log import BEGINNING, Aborted
from streams.log.steps import LogError, NotAppended, Partition
from tests.simulation.audience import Audience
from tests.simulation.clients import IDENTITIES, Clients
from tests.simulation.faults import Faults
from tests.simulation.front import Front, Views
from tests.simulation.log import SimulatedLog
from tests.simulation.processes import DEADLINE_MS, Process, Processes
from tests.simulation.promises import Broken
from tests.simulation.store import MemoryStore
from tests.simulation.virtual import VirtualLoop
from tests.simulation.worker import Left

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
STEPS = 320
CALM_STEP_MS = 50
CALM_STEP_MAX_MS = 500
IDLE_MS = 400
"""A process that has nothing to read is turned so often in the calm."""
BEGIN_MS = 1_764_434_400_000


class Crash(Exception):
    """The process in hand is killed."""


class World:
    """One history. `faults` is the share of moments at which something happens."""

    def __init__(
        self,
        seed: int,
        *,
        sends: int = 8,
        faults: float = 1.0,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_ms = BEGIN_MS
        self.log = SimulatedLog(PARTITIONS, lambda: self.now_ms)
        self.log.at_point = self._at_point
        self.store = MemoryStore()
        self.faults = Faults(self.rng, self.log, self.store, faults, self._say)
        self.loop = VirtualLoop(lambda: self.now_ms)
        self.views = Views()
        self.audience = Audience(self.store, IDENTITIES, self.rng)
        self.audience.faults = faults > 0
        self.clients = Clients(self.log, self.store, self.rng, sends, self.audience)
        self.crashes = 0
        self.calm_ms = BEGIN_MS
        """Since when there are no more faults."""
        self._trace = trace
        self._current: Process | None = None
        self._nested = False
        self._viewed_version = -1
        self._viewed = self.log.reader([Partition("messages", n) for n in range(PARTITIONS["messages"])], BEGINNING)
        made = Processes(self.log, self.store, self._front, self.faults.mishap)
        self.processes = made.all
        self.alarms = made.alarms
        self.audience.fronts = [lambda process=process: process.running for process in made.fronts]

    def _front(self) -> Front:
        return Front(self.store, self.views, self.loop, lambda: self.now_ms, self.faults.delays)

    # --- time ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Faults and sends, then calm until everything has come to its end. Raises `Broken`."""
        for _ in range(STEPS):
            self._pass(self.rng.choice((1, 2, 5, 10, 30, 30, 80)))
            if self.rng.random() < 0.15:
                with self._process(None):
                    self.clients.act(self.now_ms)
            self._turn(self.rng.choice(self.processes))
        self.calm()

    def calm(self) -> None:
        """No more faults; everything that was accepted comes to its end, and every reader to the end of its stream."""
        self.faults.calm()
        self.calm_ms = self.now_ms
        self.audience.faults = False
        for sent in self.clients.sent.values():
            self.audience.come(sent.event.account_id, sent.event.reply_id)
        for process in self.processes:
            process.not_before_ms = min(process.not_before_ms, self.now_ms + 500)
        until_ms, step_ms = self.now_ms + 4 * DEADLINE_MS, CALM_STEP_MS
        while self.now_ms < until_ms:
            before = (self.log.version, self.audience.taken)
            self._pass(step_ms)
            self.clients.act(self.now_ms, only_retries=True)
            for process in self.processes:
                if process.version != self.log.version or self.now_ms - process.turned_ms >= IDLE_MS:
                    self._turn(process)
            quiet_now = before == (self.log.version, self.audience.taken)
            step_ms = min(step_ms + 25, CALM_STEP_MAX_MS) if quiet_now else CALM_STEP_MS
            if quiet_now and self._settled():
                return
        if left := self._open():
            raise Broken("an_accepted_message_ends_once", f"not at rest after the calm: {left}")
        going = [(follower.read.who, follower.read.reply_id, follower.cursor) for follower in self.audience.going]
        if going:
            raise Broken("a_reader_sees_the_end", f"not at rest after the calm: {going}")

    def _open(self) -> list[str]:
        """Accepted replies without a stored end."""
        sent = self.clients.sent.items()
        return [reply_id for reply_id, one in sent if one.accepted and reply_id not in self.views.stored]

    def unfinished(self) -> list[str]:
        """Accepted replies without a stored end, and groups that are behind."""
        behind = [
            process.name for process in self.processes if process.group and process.running and process.running.lag()
        ]
        return self._open() + behind

    def _settled(self) -> bool:
        everybody = all(process.running is not None for process in self.processes)
        readable = all(buffer.closed for buffer in self.store.buffers.values())
        if not self.store.losses:
            readable = readable and all(
                self.store.frames(id_) for id_, sent in self.clients.sent.items() if sent.accepted
            )
        return everybody and self.clients.done and readable and not self.audience.going and not self.unfinished()

    def _pass(self, step_ms: int) -> None:
        """Time passes; what is due happens."""
        self.now_ms += step_ms
        self.faults.tick()
        self.loop.run_due()
        if self.faults.share:
            self.faults.strike()
        if self._viewed_version == self.log.version:
            return
        self._viewed_version = self.log.version
        for record in self._viewed.poll(0):
            self.views.take(record)

    def _turn(self, process: Process) -> None:
        self._expire(process)
        if self.now_ms < process.not_before_ms:
            return
        if self.faults.share and self._between_turns(process):
            return
        process.turned_ms = self.now_ms
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
                if isinstance(process.running, Front):
                    self.audience.step(self.now_ms, process.running)
                process.version = self.log.version
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
        chance = self.faults.chance()
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
        else:
            return False
        return True

    def _at_point(self, point: str, who: str) -> None:
        process = self._current
        if point == "transaction-committed":
            self.log.version += 1
        if not self.faults.share:
            return
        chance = self.faults.chance()
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
            self._pass(self.rng.choice((5, 20, 60)))
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
        if isinstance(process.running, Front):
            process.running.killed()
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
            self._say(f"{process.name} {what}")

    def _say(self, what: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.now_ms - BEGIN_MS:>8} {what}")
