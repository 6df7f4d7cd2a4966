"""Faults that the simulation has found, each as its own short history."""

import pytest

from inference_workers.assignments import Taken
from inference_workers.journal import Journal, Place
from projections.buffer.commands import Lifetimes
from projections.buffer.replies import Limits as BufferLimits
from projections.buffer.step import MARK_MS, BufferStep
from schemas.codec import Envelope
from schemas.events import (
    GenerationEnded,
    GenerationFinished,
    GenerationQueued,
    GenerationRequested,
    GenerationStarted,
    ReplyStored,
    TokensGenerated,
)
from schemas.models import DEFAULT_MODELS
from schemas.stream import Delta, Ended, Started, frame
from schemas.values import PromptMessage, Sampling, Usage
from streams.log.loop import Loop
from streams.log.memory import MemoryLog
from streams.log.steps import NotAppended, Output, Partition
from streams.settlement.rules import Tariff
from streams.settlement.step import Limits, Settle
from tests.simulation.clients import IDENTITIES
from tests.simulation.connection import Delays
from tests.simulation.front import Front, Opened, Views
from tests.simulation.store import Buffer, MemoryStore
from tests.simulation.virtual import Task, VirtualLoop
from tests.simulation.worker import at_once

AT_MS = 1_764_434_400_000
GENERATION = {"reply_id": "rep_1", "conversation_id": "conv_1", "generation_id": "gen_1", "attempt": 1}
QUEUED = GenerationQueued(
    reply_id="rep_1",
    message_id="msg_1",
    conversation_id="conv_1",
    account_id="a",
    tier="paid",
    pool="default",
    model="m",
    submitted_at_ms=AT_MS,
)
REPLY = (
    QUEUED,
    GenerationStarted(**GENERATION, model="m", worker="w", started_at_ms=AT_MS),
    TokensGenerated(**GENERATION, seq=1, text="hello", tokens=1),
    GenerationEnded(
        **GENERATION,
        seq=2,
        status="completed",
        ended_at_ms=AT_MS,
        usage=Usage(input_tokens=1, output_tokens=1),
    ),
)


REQUESTED = GenerationRequested(
    pool="default",
    priority="paid",
    epoch=1,
    reply_id="rep_1",
    conversation_id="conv_1",
    account_id="a",
    generation_id="gen_1",
    attempt=1,
    model="m",
    prompt=(PromptMessage(role="user", content="hello"),),
    sampling=Sampling(max_output_tokens=10),
    submitted_at_ms=AT_MS,
    deadline_at_ms=AT_MS + 60_000,
)


class Service:
    """A log, a store, and what reads and writes them."""

    def __init__(self) -> None:
        self.now_ms = AT_MS
        self.store = MemoryStore()
        self.log = MemoryLog({"tokens": 1}, lambda: self.now_ms, real_time=False)
        self.writer = self.log.writer("test")

    def write(self, *events) -> None:
        for event in events:
            self.writer.append(Output(event=event)).result(0)

    def settlement(self) -> Loop:
        step = Settle(self.log.writer("settlement"), Tariff(models=DEFAULT_MODELS), Limits(), lambda _: None)
        return Loop(self.log, step, topics=("tokens",), group="settlement")

    def buffer(self, replica: int) -> Loop:
        lifetimes = Lifetimes(open_ms=10**9, retention_ms=10**9)
        step = BufferStep(self.store, "n", lifetimes, BufferLimits())
        return Loop(self.log, step, topics=("tokens",), group="buffer", replica=replica)

    def front(self) -> Front:
        loop = VirtualLoop(lambda: self.now_ms)
        return Front(self.store, Views(), loop, lambda: self.now_ms, Delays(lambda: 0, lambda: False))

    def turn(self, loop: Loop, turns: int = 3) -> None:
        for _ in range(turns):
            self.now_ms += 1_000
            loop.turn(self.now_ms, 0)

    def stored(self) -> list[ReplyStored]:
        return [event for event in self.log.events("messages") if isinstance(event, ReplyStored)]


def test_a_reply_whose_stored_end_was_not_taken_is_settled_by_the_next_life():
    """The process ends with the failure, and leaving in order it must not commit past what the log refused."""
    service = Service()
    service.write(*REPLY)
    loop = service.settlement()

    def refuse(point: str, who: str) -> None:
        if (point, who) == ("append", "messages"):
            raise NotAppended("the log does not answer")

    service.log.at_point = refuse
    with pytest.raises(NotAppended):
        service.turn(loop)
    service.log.at_point = lambda _point, _who: None
    loop.close()
    service.turn(service.settlement())
    assert [event.text for event in service.stored()] == ["hello"]


def test_a_late_opening_of_an_ended_reply_holds_settlement_up_for_a_bounded_time():
    """A dispatch that was stopped for seconds opens the reply again; settlement has ended it, and was restarted.

    Nothing is written for it, and the checkpoint moves on once the reply counts as abandoned.
    """
    service = Service()
    service.write(*REPLY)
    loop = service.settlement()
    service.turn(loop)
    loop.stop()
    service.write(QUEUED)
    again = service.settlement()
    service.turn(again)
    assert service.log.committed("settlement")[Partition("tokens", 0)] == len(REPLY)
    service.now_ms += 2 * Limits().abandoned_ms
    service.turn(again)
    assert service.log.committed("settlement")[Partition("tokens", 0)] == len(REPLY) + 1
    assert len(service.stored()) == 1


def test_a_reply_that_was_taken_over_after_its_end_survives_a_flush():
    """Its new owner found it closed, forgot it, and committed past it: what Redis lost then never came back."""
    service = Service()
    service.write(*REPLY)
    first = service.buffer(0)
    service.turn(first)
    whole = list(service.store.frames("rep_1"))
    first.stop()
    second = service.buffer(1)
    service.turn(second)
    service.store.lose()
    service.turn(second)
    assert len(whole) == 3
    assert service.store.frames("rep_1") == whole


def test_an_end_that_a_failover_loses_comes_back():
    """It was written between two questions for the marker, and no later frame of the reply could show the gap."""
    service = Service()
    service.write(*REPLY[:-1])
    loop = service.buffer(0)
    service.turn(loop)
    service.write(REPLY[-1])
    loop.turn(service.now_ms + MARK_MS // 2, 0)
    whole = list(service.store.frames("rep_1"))
    while len(service.store.frames("rep_1")) == 3:
        service.store.fail_over(1)
    service.turn(loop)
    assert len(whole) == 3
    assert service.store.frames("rep_1") == whole


def test_a_reply_that_is_lost_twice_comes_back_twice():
    """The marker had moved on beside an append that was refused; then it vouched for what was not written again yet."""
    service = Service()
    service.write(QUEUED)
    loop = service.buffer(0)
    service.turn(loop)
    service.store.fail_over(1)
    while "rep_1" in service.store.buffers:
        service.store.fail_over(1)
    service.write(*REPLY[1:])
    loop.turn(service.now_ms + MARK_MS, 0)
    for _ in range(100):
        service.now_ms += 10
        loop.turn(service.now_ms, 0)
        if len(service.store.frames("rep_1")) == 3:
            break
    whole = list(service.store.frames("rep_1"))
    while len(service.store.frames("rep_1")) == 3:
        service.store.fail_over(1)
    service.turn(loop)
    assert len(whole) == 3
    assert service.store.frames("rep_1") == whole


CONVERSATION = IDENTITIES.conversation("ann", "c")
REPLY_ID = IDENTITIES.reply("ann", CONVERSATION, "c")


def test_a_reader_that_has_the_end_is_let_go_when_the_buffer_is_back():
    """It came with the cursor of the end while the buffer was lost, and was kept open with nothing to wait for."""
    service = Service()
    front = service.front()
    asked = front.open(IDENTITIES, "ann", REPLY_ID, 3)
    assert asked.step()
    assert isinstance(asked.result, Opened)
    held = service.store.buffers[REPLY_ID] = Buffer()
    frames = [frame(1, Started(message_id="m", conversation_id="c", model="m", attempt=1)), frame(2, Delta(text="x"))]
    end = Ended(status="completed", usage=Usage(input_tokens=1, output_tokens=1))
    service.store.put(REPLY_ID, held, [*frames, frame(3, end)], ends=True)
    waits = Task(front.loop, asked.result.reader.next)
    for _ in range(3):
        front.turn(service.now_ms)
        waits.step()
    assert waits.done
    assert waits.result is None


def test_a_cursor_in_the_middle_waits_while_redis_is_away():
    """It was told that its events are gone, when they were only out of reach for a moment."""
    service = Service()
    front = service.front()
    front.views.stored[REPLY_ID] = ReplyStored(
        conversation_id=CONVERSATION,
        reply_id=REPLY_ID,
        message_id="msg_1",
        account_id="ann",
        tier="paid",
        pool="default",
        model="m",
        status="completed",
        text="hello",
        attempt=1,
        final_offset=10,
        usage=Usage(input_tokens=1, output_tokens=1),
        submitted_at_ms=AT_MS,
        ended_at_ms=AT_MS,
    )
    service.store.down = True
    for cursor, answers in ((0, Opened), (4, Opened), (9, Opened)):
        asked = front.open(IDENTITIES, "ann", REPLY_ID, cursor)
        assert asked.step()
        assert isinstance(asked.result, answers), cursor
    service.store.down = False
    asked = front.open(IDENTITIES, "ann", REPLY_ID, 4)
    assert asked.step()
    assert asked.result == 410


def test_a_start_that_the_log_did_not_take_is_not_reported_as_a_finished_generation():
    """Its pieces and its end count for nothing then; the reply was left to the sweeper, minutes later."""
    service = Service()
    place = Place(pool="default", inbox=0, epoch=1, instance="i", model="m")
    journal = Journal(service.log.writer("worker"), place, lambda: service.now_ms)
    taken = Taken(REQUESTED, Envelope(event=REQUESTED, source="dispatch"))
    lost: list[NotAppended] = []

    def refuse(point: str, who: str) -> None:
        if point == "append":
            raise NotAppended("the log does not answer")

    service.log.at_point = refuse
    journal.started(taken, lost.append)
    service.log.at_point = lambda _point, _who: None
    assert not at_once(journal.ended(taken, REPLY[-1], 0, lambda: bool(lost)))
    finished = [event for event in service.log.events("workers") if isinstance(event, GenerationFinished)]
    assert [(event.returned, event.status) for event in finished] == [(True, None)]


def test_what_dispatch_was_told_in_vain_is_told_again():
    """The worker lived on, so no lease ended, and dispatch waited for a generation that nobody ran any more."""
    service = Service()
    place = Place(pool="default", inbox=0, epoch=1, instance="i", model="m")
    journal = Journal(service.log.writer("worker"), place, lambda: service.now_ms)

    def refuse(point: str, who: str) -> None:
        raise NotAppended("the log does not answer")

    service.log.at_point = refuse
    journal.handed_back(Taken(REQUESTED, Envelope(event=REQUESTED, source="dispatch")))
    journal.tell_again()
    assert service.log.events("workers") == []
    service.log.at_point = lambda _point, _who: None
    journal.tell_again()
    journal.tell_again()
    assert [type(event) for event in service.log.events("workers")] == [GenerationFinished]
