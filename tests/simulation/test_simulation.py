"""Histories with crashes, pauses, duplicates and failures keep every promise; a seed gives one history."""

import logging

import pytest
import structlog

from schemas.topics import all_topics
from tests.simulation.__main__ import play, quiet
from tests.simulation.checker import check
from tests.simulation.processes import POOL
from tests.simulation.world import BEGIN_MS, World

SEEDS = 500
PER_TEST = 25


@pytest.fixture(autouse=True)
def _silent():
    quiet()
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    structlog.reset_defaults()


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_every_promise_holds_whatever_is_killed(first):
    for seed in range(first, first + PER_TEST):
        try:
            play(seed)
        except AssertionError as error:
            raise AssertionError(f"python -m tests.simulation {seed} --trace: {error}") from error


def test_without_faults_every_reply_is_complete_or_cancelled():
    world = World(1, faults=0.0)
    world.run()
    check(world)
    assert world.crashes == 0
    ends = {event.status for event in world.log.events("messages") if type(event).__name__ == "ReplyStored"}
    assert ends <= {"completed", "cancelled", "refused"}


def test_a_seed_gives_one_history():
    def history() -> list[tuple[object, ...]]:
        world = play(3)
        topics = [topic.name for topic in all_topics((POOL,))]
        records = [record for topic in topics for record in world.log.records(topic)]
        # Values carry random trace ids; everything else follows from the seed.
        written = [(r.topic, r.partition, r.offset, r.key, r.timestamp_ms - BEGIN_MS) for r in records]
        return [*written, *((one.read.who, one.read.after, *one.read.frames) for one in world.audience.followers)]

    assert history() == history()
