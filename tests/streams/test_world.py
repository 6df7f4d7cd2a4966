"""Whatever befalls the processes, every accepted message has one reply, told to all in the same words."""

import pytest

from schemas.codec import decode
from schemas.events import (
    ConversationDeleted,
    Event,
    GenerationQueued,
    MessageSubmitted,
    RegenerationRequested,
    ReplyStored,
    UsageRecorded,
)
from schemas.reply import Reply, apply
from tests.streams.world import World


@pytest.mark.parametrize("seed", range(10))
def test_every_accepted_message_has_exactly_one_end_whatever_happens(seed: int) -> None:
    world = World(seed)
    for _ in range(400):
        world.step()
    world.settle()

    replies = folded(world)
    stored: dict[str, ReplyStored] = {}
    for event in world.log.events("messages"):
        if isinstance(event, ReplyStored):
            assert stored.setdefault(event.reply_id, event) == event
    usage: dict[str, UsageRecorded] = {}
    for event in world.log.events("usage"):
        assert isinstance(event, UsageRecorded)
        assert usage.setdefault(event.identity(), event) == event

    assert world.accepted
    assert set(stored) == expected(world)
    assert {record.reply_id for record in usage.values()} == set(stored)
    for reply_id, end in stored.items():
        reply = replies[reply_id]
        assert reply.phase == "ended"
        assert (end.text, end.final_offset, end.attempt) == (reply.text, reply.offset, reply.attempt)
    assert world.alarms == []


def folded(world: World) -> dict[str, Reply]:
    """Every reply as a reader sees it who was there from the beginning."""
    replies: dict[str, Reply] = {}
    for event in world.log.events("tokens"):
        reply_id = str(getattr(event, "reply_id", ""))
        reply, _ = apply(replies.get(reply_id), event)
        if reply is not None:
            replies[reply_id] = reply
    return replies


def expected(world: World) -> set[str]:
    """The replies that have to have an end: all that were asked for."""
    asked: set[str] = set()
    for event in messages(world):
        if isinstance(event, MessageSubmitted | RegenerationRequested):
            asked.add(event.reply_id)
    return asked


def messages(world: World) -> list[Event]:
    return [decode(record.value, record.headers).event for record in world.log.records("messages")]


def test_the_simulation_is_worth_something() -> None:
    world = World(3)
    for _ in range(400):
        world.step()
    world.settle()
    attempts = [reply.attempt for reply in folded(world).values()]
    statuses = {reply.end.status for reply in folded(world).values() if reply.end}
    assert max(attempts) > 1
    assert {"completed", "cancelled", "refused"} <= statuses
    queued = [event for event in world.log.events("tokens") if isinstance(event, GenerationQueued)]
    assert len(queued) >= len(attempts) > 30
    assert any(isinstance(event, ConversationDeleted) for event in messages(world))
