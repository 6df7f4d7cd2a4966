"""Many processes on one log in memory, turned, killed, fenced and cut off by chance: nothing is lost or doubled."""

import random

import pytest
from log.places import COUNTS, InMemory, fill
from log.test_loop import Collect
from log.test_transactions import Crash, Numbering, assert_numbered

from streams.log.log import Aborted
from streams.log.loop import Loop, LoopSettings
from streams.log.memory import MemoryLog
from streams.log.steps import Fenced, LogError, NotAppended
from streams.log.transactions import TransactionalLoop, TransactionalSettings

MESSAGES = 300
TURNS = 1_500


class World:
    """A clock, a log with faults of a seed, and processes by name."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_ms = 0
        self.place = InMemory()
        self.log = self.place.log = MemoryLog(COUNTS, lambda: self.now_ms, real_time=False)
        self.calm = False
        self.loops: dict[tuple[str, int], TransactionalLoop | Loop] = {}
        self.collected: list[Collect] = []
        self.log.at_point = self._fault
        self.kills = 0

    def _fault(self, point: str, who: str) -> None:
        if self.calm or self.chance.random() > 0.03 or who == "messages":
            return
        if point in ("transaction", "transaction-written") and self.chance.random() < 0.5:
            raise Aborted(point)
        if point != "append":
            raise Crash

    def start(self, kind: str, replica: int) -> None:
        if kind == "numbering":
            settings = TransactionalSettings(tick_ms=50, offsets_ms=200)
            self.loops[kind, replica] = TransactionalLoop(
                self.log,
                Numbering(),
                topics=["messages"],
                state_topic="conversations",
                group="n",
                replica=replica,
                settings=settings,
            )
        else:
            step = Collect()
            self.collected.append(step)
            settings = LoopSettings(commit_ms=200, busy_pause_ms=100)
            self.loops[kind, replica] = Loop(
                self.log, step, topics=["messages"], group="c", replica=replica, settings=settings
            )

    def kill(self, kind: str, replica: int) -> None:
        self.kills += 1
        del self.loops[kind, replica]
        self.log.end_transactions()
        if self.chance.random() < 0.5:
            self.log.expire(kind[0], replica)
        self.start(kind, replica)

    def turn(self) -> None:
        self.now_ms += self.chance.randrange(60)
        kind, replica = name = self.chance.choice(sorted(self.loops))
        if not self.calm:
            self._disturb()
        try:
            self.loops[name].turn(self.now_ms, 0)
        except (Crash, Fenced, NotAppended):
            self.kill(kind, replica)

    def _disturb(self) -> None:
        what = self.chance.random()
        if what < 0.01:
            self.kill(*self.chance.choice(sorted(self.loops)))
        elif what < 0.02:
            self.log.shake(self.chance.choice("nc"))
        elif what < 0.03:
            self.log.expire(self.chance.choice("nc"), self.chance.randrange(2))
        elif what < 0.04:
            self.log.down = True
        elif what < 0.10:
            self.log.down = False
        if self.chance.random() < 0.02:
            for step in self.collected:
                step.busy = self.chance.random() < 0.3


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_doubled_or_out_of_order_whatever_is_killed(seed: int) -> None:
    world = World(seed)
    for kind in ("numbering", "collecting"):
        for replica in range(2):
            world.start(kind, replica)
    written = 0
    for turn in range(TURNS):
        if turn % 4 == 0 and written < MESSAGES and not world.log.down:
            fill(world.log, [written])
            written += 1
        world.turn()
    world.calm, world.log.down = True, False
    for step in world.collected:
        step.busy = False
    fill(world.log, range(written, MESSAGES))
    for _ in range(400):
        world.turn()
    assert world.kills > 5
    assert_numbered(world.place, MESSAGES)
    assert {number for step in world.collected for number in step.numbers} == set(range(MESSAGES))
    assert sum(world.log.committed("n").values()) == MESSAGES
    assert sum(world.log.committed("c").values()) == MESSAGES


def test_the_same_seed_gives_the_same_history() -> None:
    def history() -> list[object]:
        world = World(99)
        world.start("numbering", 0)
        world.start("numbering", 1)
        fill(world.log, range(40))
        for _ in range(300):
            world.turn()
        return [(record.key, record.offset, record.timestamp_ms) for record in world.log.records("requests")]

    assert history() == history()


def test_errors_of_the_log_are_of_one_family() -> None:
    assert issubclass(Fenced, LogError)
    assert issubclass(NotAppended, LogError)
