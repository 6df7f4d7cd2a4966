"""A member that librdkafka leaves outside of its group ends, so that somebody starts it anew.

Found by stopping a broker for longer than a session: after one stop in ten a member stays so for good, its coordinator
at hand ("up") and its joining not begun ("init").
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pytest

from streams.log.kafka import KafkaLog
from streams.log.kafka.consumer import KafkaConsumer
from streams.log.kafka.statistics import standing
from streams.log.steps import LogError, Partition


def statistics(state: str, join_state: str) -> str:
    broker = {"nodeid": 1, "state": "UP", "rxidle": 1_000, "toppars": {"a": {"topic": "t.messages", "partition": 3}}}
    told = {"brokers": {"one": broker}, "cgrp": {"state": state, "join_state": join_state}}
    return msgspec.json.encode(told).decode()


OUTSIDE = statistics("up", "init")


class Listener:
    def on_assigned(self, starts: Mapping[Partition, int]) -> None:
        pass

    def on_revoked(self, partitions: Sequence[Partition], *, lost: bool) -> None:
        pass


@pytest.fixture
def consumer() -> Iterator[KafkaConsumer]:
    log = KafkaLog("127.0.0.1:1", "t", "test")
    yield log.consumer("views", ["messages"], Listener())
    log.close()


@pytest.mark.parametrize(
    ("state", "join_state", "outside"),
    [
        ("up", "init", True),
        ("up", "steady", False),
        ("up", "wait-join", False),
        ("query-coord", "init", False),
        ("wait-broker-transport", "init", False),
    ],
)
def test_who_has_not_begun_to_join_though_its_coordinator_is_there_is_outside(
    state: str, join_state: str, *, outside: bool
) -> None:
    told = standing(statistics(state, join_state))
    assert (told.outside, told.answering) == (outside, {("t.messages", 3)})


def test_who_is_in_no_group_is_not_outside_of_one() -> None:
    assert not standing('{"brokers": {}}').outside


def test_who_stays_outside_ends(consumer: KafkaConsumer) -> None:
    consumer._statistics(OUTSIDE)
    consumer._statistics(OUTSIDE)
    assert consumer.poll(0.0, 1) == []
    assert consumer._outside_s is not None
    consumer._outside_s -= 10.0
    consumer._statistics(OUTSIDE)
    with pytest.raises(LogError, match="join it again"):
        consumer.poll(0.0, 1)


def test_who_has_come_in_meanwhile_goes_on(consumer: KafkaConsumer) -> None:
    consumer._statistics(OUTSIDE)
    assert consumer._outside_s is not None
    consumer._outside_s -= 60.0
    consumer._statistics(statistics("up", "steady"))
    consumer._statistics(OUTSIDE)
    assert consumer.poll(0.0, 1) == []
