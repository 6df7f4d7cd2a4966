"""Faults that the simulation has found, each as its own short history."""

import pytest

from schemas.events import GenerationEnded, GenerationQueued, GenerationStarted, ReplyStored, TokensGenerated
from schemas.models import DEFAULT_MODELS
from schemas.values import Usage
from streams.log.loop import Loop
from streams.log.memory import MemoryLog
from streams.log.steps import NotAppended, Output, Partition
from streams.settlement.step import Limits, Settle

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


class Service:
    """A log and the settlement that reads it."""

    def __init__(self) -> None:
        self.now_ms = AT_MS
        self.log = MemoryLog({"tokens": 1}, lambda: self.now_ms, real_time=False)
        self.writer = self.log.writer("test")

    def write(self, *events) -> None:
        for event in events:
            self.writer.append(Output(event=event)).result(0)

    def settlement(self) -> Loop:
        step = Settle(self.log.writer("settlement"), DEFAULT_MODELS, Limits(), lambda _: None)
        return Loop(self.log, step, topics=("tokens",), group="settlement")

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
