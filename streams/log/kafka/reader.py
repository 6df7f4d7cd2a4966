"""Reading given partitions of Kafka, outside of any group."""

# ruff: noqa: SLF001 - librdkafka's own error codes begin with an underscore

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError

from streams.log.kafka.offsets import Offsets
from streams.log.kafka.records import PAUSE_S, Names, passing, record, report
from streams.log.kafka.settings import Settings
from streams.log.log import Start
from streams.log.steps import LogError, OffsetExpired, Partition, Record

LIMIT = 2_000


class KafkaReader:
    """See `Reader`."""

    def __init__(
        self, settings: Settings, names: Names, offsets: Offsets, partitions: Sequence[Partition], start: Start
    ) -> None:
        self._consumer: Any = Consumer(settings | {"enable.partition.eof": True})
        self._names = names
        self._offsets = offsets
        self._positions = offsets.starts(partitions, start)
        self._consumer.assign(names.places(self._positions))

    def poll(self, timeout_s: float) -> list[Record]:
        deadline = time.monotonic() + timeout_s
        while True:
            records = []
            for message in self._messages(max(deadline - time.monotonic(), 0.0)):
                if message.error() is not None:
                    self._failed(message)
                    continue
                records.append(record(message, self._names))
            last = {(taken.topic, taken.partition): taken.offset for taken in records}
            for place, offset in last.items():
                partition = Partition(*place)
                self._positions[partition] = max(self._positions[partition], offset + 1)
            if records or time.monotonic() >= deadline:
                return records

    def ends(self) -> dict[Partition, int]:
        return self._offsets.ends(self._positions)

    def positions(self) -> dict[Partition, int]:
        return dict(self._positions)

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        self._positions.update(offsets)
        self._consumer.assign(self._names.places(self._positions))

    def close(self) -> None:
        self._consumer.close()

    def _messages(self, timeout_s: float) -> list[Any]:
        first = self._consumer.poll(timeout_s)
        return [] if first is None else [first, *self._consumer.consume(LIMIT, 0)]

    def _failed(self, message: Any) -> None:
        error = message.error()
        if error.code() == KafkaError._PARTITION_EOF:
            partition = Partition(self._names.logical(message.topic()), message.partition())
            self._positions[partition] = max(self._positions[partition], message.offset())
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise OffsetExpired(f"{message.topic()}[{message.partition()}]: {error.str()}")
        elif error.fatal():
            raise LogError(error.str())
        elif passing(error):
            report(error)
            time.sleep(PAUSE_S)
        else:
            raise LogError(error.str())
