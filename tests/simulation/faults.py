"""What happens to the network and the store, drawn from the seed. `share` scales all of it; 0 is calm.

The processes' own faults (kills, pauses, sessions) are the world's.
"""

import random
from collections.abc import Callable

from streams.log.steps import Partition
from tests.simulation.connection import Delays
from tests.simulation.log import HELD, Fate, SimulatedLog
from tests.simulation.store import MemoryStore

MOVED = ("settlement", "buffer")
HOLD_MS = (30, 100, 400, 2_500)
DOWN_MS = (50, 500, 3_000)
COMMANDS_LOST = (1, 2, 2, 3, 4, 20, 400)
"""How far a replica is behind when it takes over."""


class Faults:
    """Draws; `strike` is one thing that happens, or nothing."""

    def __init__(
        self, rng: random.Random, log: SimulatedLog, store: MemoryStore, share: float, note: Callable[[str], None]
    ) -> None:
        self._rng = rng
        self._log = log
        self._store = store
        self._note = note
        self._up_ms = 0
        self._returns: Callable[[], None] | None = None
        self.share = share
        self.delays = Delays(self._delay_ms, self._push_is_lost)
        log.fate = self._append
        store.fate = self._breaks

    def chance(self) -> float:
        """A draw from 0 to 1, scaled: the smaller the share, the larger it is."""
        return self._rng.random() / self.share if self.share else 1.0

    def calm(self) -> None:
        """No more of it; what is under way arrives."""
        self.share = 0.0
        self._log.tick(release=True)
        self._up_ms = min(self._up_ms, self._log.now_ms() + 500)

    def mishap(self) -> str:
        """What befalls a worker's engine in a turn of its: nothing, mostly."""
        chance = self.chance()
        if chance < 0.002:
            return "engine_dead"
        return "engine_stalled" if chance < 0.008 else ""

    def tick(self) -> None:
        """Time has passed."""
        self._log.tick()
        if self._store.down and self._log.now_ms() >= self._up_ms:
            self._store.down = False
            if self._returns is not None:
                self._returns()
            self._note("the store is back")

    def strike(self) -> None:
        """Perhaps something happens."""
        chance = self.chance()
        if chance < 0.012:
            topic = self._rng.choice(HELD)
            partition = Partition(topic, self._rng.randrange(self._log.partitions(topic)))
            self._log.hold(partition, self._log.now_ms() + self._rng.choice(HOLD_MS))
        elif chance < 0.016:
            group = self._rng.choice(MOVED)
            self._log.move(group)
            self._note(f"the partitions of {group} move")
        elif chance < 0.021:
            self._to_the_store()
        elif chance < 0.023 and self._store.connections:
            self._rng.choice(self._store.connections).cut()

    def _to_the_store(self) -> None:
        store, rng = self._store, self._rng
        if store.down:
            return
        kind = rng.choice(("flush", "restart", "new server", "failover", "failover", "failover"))
        self._note(f"the store: {kind}")
        if kind == "flush":
            store.lose()
            return
        store.kill()
        self._up_ms = self._log.now_ms() + rng.choice(DOWN_MS)
        commands = rng.choice(COMMANDS_LOST)
        self._returns = {
            "restart": None,
            "new server": lambda: store.lose(functions_too=True),
            "failover": lambda: store.fail_over(commands),
        }[kind]

    def _append(self, topic: str) -> Fate:
        chance = self.chance()
        if chance < 0.004:
            return "twice"
        if chance < 0.005:
            return "unheard"
        return "late" if chance < 0.006 and topic == "tokens" else "once"

    def _breaks(self) -> int | None:
        return self._rng.choice((0, 1, 2, 5)) if self.chance() < 0.004 else None

    def _delay_ms(self) -> int:
        return self._rng.choice((0, 0, 5, 40, 200)) if self.share else 0

    def _push_is_lost(self) -> bool:
        return self.chance() < 0.02
