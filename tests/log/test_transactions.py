"""What the transactional loop promises to its steps, on each log."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import pytest
from log.places import InMemory, Place, fill, renamed

from schemas.events import GenerationCancelled
from streams.log.log import Aborted, Log
from streams.log.memory import MemoryLog
from streams.log.steps import (
    NOTHING,
    Arrived,
    Decision,
    Fenced,
    LogError,
    NotAppended,
    Output,
    Record,
    StateRecord,
)
from streams.log.transactions import TransactionalLoop, TransactionalSettings

QUICK = TransactionalSettings(tick_ms=20, offsets_ms=0)


class Crash(BaseException):
    """A SIGKILL at a point in the log."""


class Numbering:
    """Numbers the messages of each conversation: one output and one state record for each."""

    def __init__(self) -> None:
        self.counts: dict[int, dict[str, int]] = {}
        self.restored: list[int] = []
        self.ticks: Counter[int] = Counter()
        self.flows: list[int] = []
        self.told: list[tuple[str, int]] = []
        self.before: tuple[Output, ...] = ()
        self.after: tuple[Output, ...] = ()
        self.silent = False

    def restore(self, number: int, records: Iterable[Record], now_ms: int, flow_ms: int) -> None:
        assert number not in self.counts
        self.restored.append(number)
        self.counts[number] = {}
        for record in records:
            self.counts[number][record.key] = msgspec.json.decode(record.value)

    def decide(self, number: int, batch: Sequence[Arrived], now_ms: int, flow_ms: int) -> Decision:
        self.flows.append(flow_ms)
        if not batch:
            self.ticks[number] += 1
            return NOTHING
        counts = dict(self.counts[number])
        if self.silent:
            return Decision(staged=counts)
        outputs = []
        for arrived in batch:
            conversation = arrived.envelope.event.conversation_id
            counts[conversation] = counts.get(conversation, 0) + 1
            event = GenerationCancelled(
                pool="p", reply_id=f"{conversation}/{counts[conversation]}", conversation_id=conversation
            )
            outputs.append(Output(event=event, cause=arrived.envelope))
        states = tuple(
            StateRecord(key=key, value=str(count).encode())
            for key, count in counts.items()
            if self.counts[number].get(key) != count
        )
        return Decision(before=self.before, outputs=tuple(outputs), states=states, after=self.after, staged=counts)

    def committed(self, number: int, decision: Decision) -> None:
        self.told.append(("committed", number))
        if decision.staged is not None:
            self.counts[number] = decision.staged

    def written(self, number: int, decision: Decision) -> None:
        self.told.append(("written", number))

    def revoked(self, number: int) -> None:
        del self.counts[number]

    def total(self) -> int:
        return sum(sum(counts.values()) for counts in self.counts.values())


def numbering(log: Log, step: Numbering, replica: int = 0) -> TransactionalLoop:
    return TransactionalLoop(
        log,
        step,
        topics=["messages", "cancellations"],
        state_topic="conversations",
        group="n",
        replica=replica,
        settings=QUICK,
    )


def assert_numbered(place: Place, messages: int) -> None:
    """Every message was numbered once, and the numbers of each conversation are dense and in order."""
    numbered: dict[str, list[int]] = {}
    for event in place.events("requests"):
        conversation, _, number = event.reply_id.partition("/")
        numbered.setdefault(conversation, []).append(int(number))
    assert sum(map(len, numbered.values())) == messages
    for numbers in numbered.values():
        assert numbers == list(range(1, len(numbers) + 1))


def test_outputs_states_and_offsets_are_in_the_log_once(place: Place) -> None:
    fill(place.log, range(60))
    fill(place.log, range(60, 80), topic="cancellations")
    step = Numbering()
    loop = numbering(place.log, step)
    place.turn_until(lambda: step.total() == 80, loop)
    loop.stop()
    assert_numbered(place, 80)
    assert sum(place.committed("n").values()) == 80
    assert step.restored == [0, 1]


def test_a_restarted_loop_restores_its_state_and_goes_on(place: Place) -> None:
    fill(place.log, range(30))
    loop = numbering(place.log, Numbering())
    place.turn_until(lambda: len(place.events("requests")) == 30, loop)
    loop.stop()
    fill(place.log, range(30, 60))
    step = Numbering()
    loop = numbering(place.log, step)
    place.turn_until(lambda: step.total() == 60, loop)
    loop.stop()
    assert_numbered(place, 60)


def test_numbers_are_shared_and_taken_over_with_their_state(place: Place) -> None:
    fill(place.log, range(30))
    steps = [Numbering(), Numbering()]
    first = numbering(place.log, steps[0])
    place.turn_until(lambda: steps[0].total() == 30, first)
    second = numbering(place.log, steps[1], replica=1)
    place.turn_until(lambda: len(steps[0].counts) == 1 and len(steps[1].counts) == 1, first, second)
    fill(place.log, range(30, 60))
    place.turn_until(lambda: sum(step.total() for step in steps) == 60, first, second)
    first.stop()
    fill(place.log, range(60, 90))
    place.turn_until(lambda: steps[1].total() == 90, second)
    second.stop()
    assert_numbered(place, 90)


def test_a_zombie_is_fenced_and_writes_nothing(place: Place) -> None:
    fill(place.log, range(20))
    step = Numbering()
    zombie = numbering(place.log, step)
    place.turn_until(lambda: step.total() == 20, zombie)
    successor_step = Numbering()
    successor = numbering(place.log, successor_step)
    place.turn_until(lambda: successor_step.total() == 20, successor)
    fill(place.log, range(20, 40))
    with pytest.raises(Fenced):
        place.turn_until(lambda: False, zombie)
    place.turn_until(lambda: successor_step.total() == 40, successor)
    assert_numbered(place, 40)
    successor.stop()


def test_before_is_in_the_log_before_the_transaction_and_after_once_it_is_committed(place: Place) -> None:
    step = Numbering()
    step.before = (Output(event=renamed(1, "before"), topic="tokens", partition=0),)
    step.after = (Output(event=renamed(2, "after"), topic="tokens", partition=1),)
    fill(place.log, [0])
    loop = numbering(place.log, step)
    place.turn_until(lambda: any(what == "written" for what, _ in step.told), loop)
    before, after = place.records("tokens")
    (output,) = place.records("requests")
    assert (before.key, after.key) == ("before", "after")
    assert before.timestamp_ms <= output.timestamp_ms <= after.timestamp_ms
    ((what, number),) = [told for told in step.told if told[0] == "written"]
    assert step.told.index(("committed", number)) < step.told.index((what, number))
    loop.stop()


def test_decisions_that_write_nothing_make_no_transaction_and_their_offsets_are_committed(place: Place) -> None:
    fill(place.log, range(20))
    step = Numbering()
    step.silent = True
    loop = numbering(place.log, step)
    place.turn_until(lambda: sum(place.committed("n").values()) == 20, loop)
    assert loop.counts.transactions == 0
    loop.stop()


def test_time_passes_for_numbers_without_records(place: Place) -> None:
    step = Numbering()
    loop = numbering(place.log, step)
    place.turn_until(lambda: step.ticks[0] > 3 and step.ticks[1] > 3, loop)
    assert loop.counts.transactions == 0
    loop.stop()


def test_the_flow_clock_goes_on_while_the_log_answers(place: Place) -> None:
    step = Numbering()
    loop = numbering(place.log, step)
    place.turn_until(lambda: loop.flow_ms > 0, loop)
    assert step.flows == sorted(step.flows)
    loop.stop()


def test_lag_is_zero_once_all_is_decided(place: Place) -> None:
    fill(place.log, range(20))
    step = Numbering()
    loop = numbering(place.log, step)
    place.turn_until(lambda: step.total() == 20, loop)
    place.turn_until(lambda: loop.lag() == 0, loop)
    loop.stop()


def test_lag_counts_no_marks_of_transactions(place: Place) -> None:
    fill(place.log, range(20))
    step = Numbering()
    loop = numbering(place.log, step)
    place.turn_until(lambda: step.total() == 20, loop)
    loop.stop()
    reader = TransactionalLoop(
        place.log, Silent(), topics=["requests"], state_topic="conversations", group="m", settings=QUICK
    )
    place.turn_until(lambda: reader.counts.records == 20 and reader.lag() == 0, reader)
    reader.stop()


class Silent(Numbering):
    def decide(self, number: int, batch: Sequence[Arrived], now_ms: int, flow_ms: int) -> Decision:
        return NOTHING


def test_topics_of_different_partition_counts_are_refused() -> None:
    with pytest.raises(LogError, match="same number"):
        TransactionalLoop(
            MemoryLog({"messages": 3}), Numbering(), topics=["messages"], state_topic="conversations", group="n"
        )


# --- faults that only the log in memory can be told to have -----------------------------------------------------


@pytest.mark.parametrize("point", ["transaction", "transaction-written"])
@pytest.mark.parametrize("failure", [Aborted, Crash])
def test_an_abort_or_a_crash_within_a_transaction_leaves_nothing_and_is_made_up_for(
    point: str, failure: type[BaseException]
) -> None:
    place = InMemory()
    fill(place.log, range(30))
    fail_at = {2, 5, 6, 9}
    attempts = itertools.count(1)

    def fault(at: str, _: str) -> None:
        if at == point and next(attempts) in fail_at:
            raise failure(at)

    place.log.at_point = fault
    step = Numbering()
    loop = numbering(place.log, step)
    for turn in range(200):
        if turn % 4 == 0:
            fill(place.log, range(turn, turn + 2))
        try:
            loop.turn(turn, 0)
        except Crash:
            step = Numbering()
            loop = numbering(place.log, step)
    assert next(attempts) > max(fail_at)
    assert step.total() == 130
    assert_numbered(place, 130)


def test_a_crash_after_the_commit_doubles_nothing() -> None:
    place = InMemory()
    fill(place.log, range(10))
    crashes = itertools.count()

    def crash(point: str, _: str) -> None:
        if point == "transaction-committed" and next(crashes) < 3:
            raise Crash

    place.log.at_point = crash
    step = Numbering()
    loop = numbering(place.log, step)
    for turn in range(40):
        fill(place.log, [turn])
        try:
            loop.turn(turn, 0)
        except Crash:
            step = Numbering()
            loop = numbering(place.log, step)
    loop.turn(41, 0)
    assert_numbered(place, 50)


def test_a_failure_of_before_commits_no_transaction() -> None:
    place = InMemory()
    fill(place.log, range(10))
    failures = itertools.count()

    def fail(point: str, topic: str) -> None:
        if point == "append" and topic == "tokens" and next(failures) < 2:
            raise NotAppended("no")

    place.log.at_point = fail
    step = Numbering()
    step.before = (Output(event=renamed(1), topic="tokens"),)
    loop = numbering(place.log, step)
    for turn in range(10):
        loop.turn(turn, 0)
    assert loop.counts.aborted >= 1
    assert_numbered(place, 10)


def test_a_failure_of_after_ends_the_process_whose_next_life_writes_it_again() -> None:
    place = InMemory()
    fill(place.log, [1])

    def fail(point: str, topic: str) -> None:
        if point == "append" and topic == "tokens":
            raise NotAppended("no")

    place.log.at_point = fail
    step = Numbering()
    step.after = (Output(event=renamed(1), topic="tokens"),)
    loop = numbering(place.log, step)
    with pytest.raises(NotAppended):
        loop.turn(0, 0)
    assert_numbered(place, 1)


def test_the_flow_clock_stands_while_the_log_is_down() -> None:
    log = MemoryLog({"messages": 2, "cancellations": 2, "conversations": 2})
    step = Numbering()
    loop = numbering(log, step)
    for now in range(0, 2_000, 100):
        loop.turn(now, 0)
    flow = loop.flow_ms
    log.down = True
    for now in range(2_000, 60_000, 100):
        loop.turn(now, 0)
    assert loop.flow_ms == flow
    log.down = False
    for now in range(60_000, 62_000, 100):
        loop.turn(now, 0)
    assert loop.flow_ms == flow
    for now in range(62_000, 70_000, 100):
        loop.turn(now, 0)
    assert loop.flow_ms > flow
