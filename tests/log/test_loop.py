"""What the consumer loop promises to its steps, on each log."""

import time
from collections.abc import Iterable, Mapping, Sequence

import pytest
from log.places import Place, fill

from schemas.codec import Undecodable
from streams.log.log import Log
from streams.log.loop import Loop, LoopSettings
from streams.log.memory import MemoryLog
from streams.log.steps import Arrived, Busy, Fenced, OffsetExpired, Partition, Rewind, TooManyDead

ZERO, ONE = Partition("messages", 0), Partition("messages", 1)
QUICK = LoopSettings(commit_ms=0, busy_pause_ms=50, poll_s=0.02)


class Collect:
    """Takes numbers; its effect is durable once the test says so."""

    def __init__(self, *, slow: bool = False) -> None:
        self.taken: dict[Partition, list[int]] = {}
        self.mine: set[Partition] = set()
        self.durable: dict[Partition, int] = {}
        self.slow = slow
        self.busy = False
        self.refuse: int | None = None
        self.rewind: dict[Partition, int] = {}
        self.drained = False
        self.offers = 0

    @property
    def numbers(self) -> list[int]:
        return sorted(number for numbers in self.taken.values() for number in numbers)

    def assigned(self, starts: Mapping[Partition, int]) -> None:
        assert not self.mine & set(starts)
        self.mine |= set(starts)
        for partition in starts:
            self.durable.pop(partition, None)

    def revoked(self, partitions: Iterable[Partition]) -> None:
        self.mine -= set(partitions)
        for partition in partitions:
            self.durable.pop(partition, None)

    def submit(self, batch: Sequence[Arrived], now_ms: int) -> None:
        self.offers += 1
        if self.busy:
            raise Busy
        for arrived in batch:
            record = arrived.record
            if int(arrived.envelope.event.title) == self.refuse:
                raise Undecodable(
                    topic=record.topic, partition=record.partition, offset=record.offset, field="title", reason="bad"
                )
        for arrived in batch:
            partition = Partition(arrived.record.topic, arrived.record.partition)
            assert partition in self.mine
            self.taken.setdefault(partition, []).append(int(arrived.envelope.event.title))
            if not self.slow:
                self.durable[partition] = arrived.record.offset + 1
            else:
                self.durable.setdefault(partition, arrived.record.offset)

    def poll(self, now_ms: int) -> None:
        if self.rewind:
            rewind, self.rewind = self.rewind, {}
            raise Rewind(rewind)

    def settled(self) -> Mapping[Partition, int]:
        return dict(self.durable)

    def drain(self, deadline_s: float) -> None:
        self.drained = True


def collecting(log: Log, step: Collect, *, settings: LoopSettings = QUICK, replica: int = 0) -> Loop:
    return Loop(log, step, topics=["messages"], group="g", replica=replica, settings=settings)


def test_a_new_group_begins_at_the_earliest_and_takes_every_record_once(place: Place) -> None:
    fill(place.log, range(100))
    step = Collect()
    loop = collecting(place.log, step)
    place.turn_until(lambda: len(step.numbers) >= 100, loop)
    assert step.numbers == list(range(100))
    loop.stop()
    assert step.drained
    assert sum(place.committed("g").values()) == 100


def test_a_restarted_loop_goes_on_where_it_committed(place: Place) -> None:
    fill(place.log, range(50))
    first = Collect()
    loop = collecting(place.log, first)
    place.turn_until(lambda: len(first.numbers) == 50, loop)
    loop.stop()
    fill(place.log, range(50, 60))
    second = Collect()
    loop = collecting(place.log, second)
    place.turn_until(lambda: len(second.numbers) == 10, loop)
    assert second.numbers == list(range(50, 60))
    loop.close()


def test_a_record_in_flight_comes_again_and_nothing_after_it_is_committed(place: Place) -> None:
    fill(place.log, range(20), partition=0)
    step = Collect(slow=True)
    loop = collecting(place.log, step)
    place.turn_until(lambda: len(step.numbers) == 20, loop)
    step.durable[ZERO] = 7
    loop.stop()
    assert place.committed("g")[ZERO] == 7
    again = Collect()
    loop = collecting(place.log, again)
    place.turn_until(lambda: len(again.numbers) == 13, loop)
    assert again.numbers == list(range(7, 20))
    loop.close()


def test_a_busy_step_gets_the_same_records_later_and_nothing_is_lost(place: Place) -> None:
    fill(place.log, range(30))
    step = Collect()
    loop = collecting(place.log, step)
    place.turn_until(lambda: len(step.numbers) == 30, loop)
    step.busy = True
    fill(place.log, range(30, 80))
    place.turn_until(lambda: loop.counts.pauses == 1, loop)
    offers = step.offers
    place.turn_until(lambda: step.offers > offers + 3, loop)
    assert step.numbers == list(range(30))
    step.busy = False
    place.turn_until(lambda: len(step.numbers) == 80, loop)
    assert step.numbers == list(range(80))
    fill(place.log, range(80, 90))
    place.turn_until(lambda: len(step.numbers) == 90, loop)
    loop.close()


def test_what_a_busy_step_did_not_take_is_not_committed(place: Place) -> None:
    fill(place.log, range(10), partition=0)
    step = Collect()
    step.busy = True
    loop = collecting(place.log, step)
    place.turn_until(lambda: loop.counts.pauses == 1, loop)
    loop.stop()
    assert place.committed("g").get(ZERO, 0) == 0


def test_a_record_that_nobody_can_decode_goes_to_the_dead_letters(place: Place) -> None:
    fill(place.log, range(5), partition=0)
    writer = place.log.writer("test")
    writer.append_record("messages", "k", b"{", [("ce_type", b"turnlog.ConversationRenamed.v1")], partition=0)
    writer.close()
    fill(place.log, range(5, 10), partition=0)
    step = Collect()
    loop = collecting(place.log, step)
    place.turn_until(lambda: len(step.numbers) == 10, loop)
    (dead,) = place.records("messages.dead")
    headers = dict(dead.headers)
    assert (dead.key, dead.value) == ("k", b"{")
    assert (headers["dead_topic"], headers["dead_partition"], headers["dead_offset"]) == (b"messages", b"0", b"5")
    assert headers["dead_field"] == b"value"
    assert headers["dead_group"] == b"g"
    loop.stop()
    assert place.committed("g")[ZERO] == 11


def test_dead_letters_alone_are_committed(place: Place) -> None:
    writer = place.log.writer("test")
    for _ in range(3):
        writer.append_record("messages", "k", b"{", [], partition=0)
    writer.close()
    loop = collecting(place.log, Collect())
    place.turn_until(lambda: place.committed("g").get(ZERO) == 3, loop)
    loop.close()


def test_a_record_that_the_step_refuses_goes_to_the_dead_letters(place: Place) -> None:
    fill(place.log, range(10), partition=0)
    step = Collect()
    step.refuse = 4
    loop = collecting(place.log, step)
    place.turn_until(lambda: len(step.numbers) == 9, loop)
    assert 4 not in step.numbers
    (dead,) = place.records("messages.dead")
    assert dict(dead.headers)["dead_offset"] == b"4"
    loop.close()


def test_a_loop_stops_when_most_records_are_dead_instead_of_draining_the_topic(place: Place) -> None:
    writer = place.log.writer("test")
    for _ in range(60):
        writer.append_record("messages", "k", b"{", [], partition=0)
    writer.close()
    step = Collect()
    loop = collecting(place.log, step, settings=LoopSettings(records_max=25))
    with pytest.raises(TooManyDead):
        place.turn_until(lambda: False, loop)
    loop.close()
    assert len(place.records("messages.dead")) < 60
    assert place.committed("g").get(ZERO, 0) < 60


def test_a_step_can_rewind(place: Place) -> None:
    fill(place.log, range(20), partition=0)
    step = Collect()
    loop = collecting(place.log, step)
    place.turn_until(lambda: len(step.numbers) == 20, loop)
    step.rewind = {ZERO: 12}
    place.turn_until(lambda: len(step.numbers) == 28, loop)
    assert step.taken[ZERO] == [*range(20), *range(12, 20)]
    loop.close()


def test_a_rewind_while_paused_does_not_leave_it_paused(place: Place) -> None:
    fill(place.log, range(10), partition=0)
    step = Collect()
    step.busy = True
    loop = collecting(place.log, step)
    place.turn_until(lambda: loop.counts.pauses == 1, loop)
    step.rewind = {ZERO: 0}
    place.turn_until(lambda: not step.rewind, loop)
    step.busy = False
    place.turn_until(lambda: step.numbers == list(range(10)), loop)
    loop.close()


def test_partitions_are_shared_and_come_back_when_a_member_leaves(place: Place) -> None:
    fill(place.log, range(40))
    step, other = Collect(), Collect()
    loop = collecting(place.log, step)
    place.turn_until(lambda: len(step.numbers) == 40, loop)
    second = collecting(place.log, other, replica=1)
    place.turn_until(lambda: len(step.mine) == 1 and len(other.mine) == 1, loop, second)
    assert step.mine | other.mine == {ZERO, ONE}
    fill(place.log, range(40, 80))
    place.turn_until(lambda: len(set(step.numbers + other.numbers)) == 80, loop, second)
    second.stop()
    fill(place.log, range(80, 90))
    place.turn_until(lambda: len(step.mine) == 2, loop)
    place.turn_until(lambda: set(step.numbers + other.numbers) == set(range(90)), loop)
    loop.close()


def test_a_busy_and_paused_loop_goes_on_after_a_rebalance(place: Place) -> None:
    fill(place.log, range(40))
    step, other = Collect(), Collect()
    step.busy = True
    loop = collecting(place.log, step)
    place.turn_until(lambda: loop.counts.pauses == 1 and step.mine == {ZERO, ONE}, loop)
    second = collecting(place.log, other, replica=1)
    place.turn_until(lambda: len(step.mine) == 1 and len(other.mine) == 1, loop, second)
    step.busy = False
    place.turn_until(lambda: len(set(step.numbers + other.numbers)) == 40, loop, second)
    assert len(step.numbers) + len(other.numbers) == 40
    second.stop()
    fill(place.log, range(40, 60))
    place.turn_until(lambda: set(step.numbers + other.numbers) == set(range(60)), loop)
    loop.close()


def test_the_next_life_of_a_process_takes_its_place_and_the_one_before_is_fenced(place: Place) -> None:
    fill(place.log, range(10))
    step, next_step = Collect(), Collect()
    loop = collecting(place.log, step)
    place.turn_until(lambda: len(step.numbers) == 10, loop)
    next_life = collecting(place.log, next_step)
    place.turn_until(lambda: next_step.mine == {ZERO, ONE}, next_life)
    with pytest.raises(Fenced):
        place.turn_until(lambda: False, loop)
    loop.close()
    fill(place.log, range(10, 20))
    place.turn_until(lambda: set(next_step.numbers) >= set(range(10, 20)), next_life)
    next_life.close()


def test_an_expired_offset_stops_the_loop(place: Place) -> None:
    fill(place.log, range(20), partition=0)
    step = Collect(slow=True)
    loop = collecting(place.log, step)
    place.turn_until(lambda: len(step.numbers) == 20, loop)
    step.durable[ZERO] = 5
    loop.stop()
    place.cut(ZERO, 12)
    loop = collecting(place.log, Collect())
    with pytest.raises(OffsetExpired, match="12"):
        place.turn_until(lambda: False, loop)
    loop.close()
    assert place.committed("g")[ZERO] == 5


def test_an_operator_may_choose_to_go_on_from_the_earliest(place: Place) -> None:
    fill(place.log, range(20), partition=0)
    step = Collect(slow=True)
    loop = collecting(place.log, step)
    place.turn_until(lambda: len(step.numbers) == 20, loop)
    step.durable[ZERO] = 5
    loop.stop()
    place.cut(ZERO, 12)
    step = Collect()
    loop = collecting(place.log, step, settings=LoopSettings(expired="earliest"))
    place.turn_until(lambda: step.numbers == list(range(12, 20)), loop)
    loop.close()


def test_an_idle_loop_neither_commits_nor_rebalances(place: Place) -> None:
    fill(place.log, range(10))
    step = Collect()
    loop = collecting(place.log, step)
    place.turn_until(lambda: len(step.numbers) == 10 and loop.counts.commits, loop)
    commits, rebalances = loop.counts.commits, loop.counts.rebalances
    until = time.monotonic() + 4
    place.turn_until(lambda: time.monotonic() > until, loop)
    assert (loop.counts.commits, loop.counts.rebalances) == (commits, rebalances)
    loop.close()


def test_lag_is_what_was_not_submitted_yet(place: Place) -> None:
    fill(place.log, range(10))
    step = Collect()
    loop = collecting(place.log, step)
    place.turn_until(lambda: len(step.numbers) == 10, loop)
    place.turn_until(lambda: loop.lag() == 0, loop)
    step.busy = True
    fill(place.log, range(10, 30))
    place.turn_until(lambda: loop.counts.pauses == 1, loop)
    loop.close()


def test_a_forced_revoke_and_assign_goes_on() -> None:
    log = MemoryLog({"messages": 2})
    fill(log, range(10))
    step = Collect()
    loop = collecting(log, step)
    loop.turn(1, 0)
    log.shake("g")
    fill(log, range(10, 20))
    loop.turn(2, 0)
    loop.turn(3, 0)
    assert step.numbers == list(range(20))
    assert loop.counts.rebalances == 3


def test_a_member_whose_session_ended_comes_back() -> None:
    log = MemoryLog({"messages": 2})
    fill(log, range(10))
    step = Collect()
    loop = collecting(log, step)
    loop.turn(1, 0)
    log.expire("g", 0)
    fill(log, range(10, 20))
    loop.turn(2, 0)
    loop.turn(3, 0)
    assert set(step.numbers) == set(range(20))
