"""Whether the brokers answer, from librdkafka's statistics.

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


class _Statistics(msgspec.Struct, frozen=True):
    brokers: dict[str, _Broker]


_DECODER = msgspec.json.Decoder(_Statistics)


def answering(statistics: str) -> frozenset[tuple[str, int]]:
    """The partitions (full topic name, number) whose broker has answered within `SILENCE_MS`."""
    return frozenset(
        (served.topic, served.partition)
        for broker in _DECODER.decode(statistics).brokers.values()
        if broker.nodeid >= 0 and broker.state == "UP" and 0 <= broker.rxidle < SILENCE_MS * 1000
        for served in broker.toppars.values()
    )
