"""Whether the brokers answer, and whether we are in our group, from librdkafka's statistics.

https://github.com/confluentinc/librdkafka/blob/master/STATISTICS.md
"""

import msgspec

from streams.log.kafka.settings import SILENCE_MS


class _Served(msgspec.Struct, frozen=True):
    topic: str
    partition: int


class _Broker(msgspec.Struct, frozen=True):
    nodeid: int
    state: str
    rxidle: int
    """Microseconds since something was received, -1 when nothing ever was."""
    toppars: dict[str, _Served]


class _Group(msgspec.Struct, frozen=True):
    state: str
    join_state: str


class _Statistics(msgspec.Struct, frozen=True):
    brokers: dict[str, _Broker]
    cgrp: _Group | None = None


class Standing(msgspec.Struct, frozen=True):
    """Of a moment."""

    answering: frozenset[tuple[str, int]]
    """The partitions (full topic name, number) whose broker has answered within `SILENCE_MS`."""
    outside: bool
    """The group's coordinator is there, and we have not begun to join: for a moment after a session was lost, or for
    ever (librdkafka 2.16 does not ask again where an answer went missing)."""


_DECODER = msgspec.json.Decoder(_Statistics)


def standing(statistics: str) -> Standing:
    """What they say."""
    told = _DECODER.decode(statistics)
    outside = told.cgrp is not None and (told.cgrp.state, told.cgrp.join_state) == ("up", "init")
    return Standing(_answering(told), outside)


def _answering(told: _Statistics) -> frozenset[tuple[str, int]]:
    return frozenset(
        (served.topic, served.partition)
        for broker in told.brokers.values()
        if broker.nodeid >= 0 and broker.state == "UP" and 0 <= broker.rxidle < SILENCE_MS * 1000
        for served in broker.toppars.values()
    )
