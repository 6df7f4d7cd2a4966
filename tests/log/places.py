"""Logs that the contract tests run on, with what a test can do to each of them."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Protocol

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from infra.kafka_admin import KafkaAdmin
from schemas.codec import decode
from schemas.events import ConversationRenamed, Event
from streams.log.kafka import KafkaLog
from streams.log.log import BEGINNING, Log
from streams.log.memory import MemoryLog
from streams.log.steps import Output, Partition, Record

PARTITIONS = 2
COUNTS = {
    "messages": PARTITIONS,
    "cancellations": PARTITIONS,
    "requests": PARTITIONS,
    "tokens": PARTITIONS,
    "conversations": PARTITIONS,
    "messages.dead": 1,
}
PATIENCE_S = 40.0


class Turned(Protocol):
    """A loop, of either kind."""

    def turn(self, now_ms: int, wait_s: float | None = None) -> int: ...


class Place(ABC):
    """A log with the topics of `COUNTS`."""

    log: Log

    def records(self, topic: str) -> list[Record]:
        """Committed records of a topic, partition by partition."""
        partitions = [Partition(topic, number) for number in range(COUNTS[topic])]
        reader = self.log.reader(partitions, BEGINNING)
        ends = reader.ends()
        found = []
        deadline = time.monotonic() + PATIENCE_S
        while any(reader.positions()[partition] < end for partition, end in ends.items()):
            found.extend(reader.poll(0.1))
            assert time.monotonic() < deadline
        reader.close()
        return sorted(found, key=lambda record: (record.partition, record.offset))

    def events(self, topic: str) -> list[Event]:
        return [decode(record.value, record.headers).event for record in self.records(topic)]

    def turn_until(self, condition: Callable[[], object], *loops: Turned) -> None:
        """Turn loops one after the other until a condition holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            for loop in loops:
                loop.turn(time.time_ns() // 1_000_000, 0.02)
            assert time.monotonic() < deadline, "the condition did not come about in time"

    @abstractmethod
    def committed(self, group: str) -> dict[Partition, int]:
        """What a group has committed."""

    @abstractmethod
    def cut(self, partition: Partition, before: int) -> None:
        """Delete the records of a partition before an offset."""

    @abstractmethod
    def remove(self) -> None:
        """Take the topics away."""


class InMemory(Place):
    def __init__(self) -> None:
        self.log: MemoryLog = MemoryLog(COUNTS)

    def committed(self, group: str) -> dict[Partition, int]:
        return self.log.committed(group)

    def cut(self, partition: Partition, before: int) -> None:
        self.log.cut(partition, before)

    def remove(self) -> None:
        self.log.close()


class OnKafka(Place):
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.namespace = f"test-{uuid.uuid4().hex[:12]}"
        self._admin = KafkaAdmin(bootstrap)
        full = {f"{self.namespace}.{name}": count for name, count in COUNTS.items()}
        self._admin.create_all([(name, count, {}) for name, count in full.items()], 1)
        self._admin.await_leaders(frozenset(full))
        self.log: KafkaLog = self.another()

    def another(self) -> KafkaLog:
        """The same log as another process sees it."""
        return KafkaLog(self._bootstrap, self.namespace, "test")

    def committed(self, group: str) -> dict[Partition, int]:
        from confluent_kafka import Consumer

        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": f"{self.namespace}.{group}"})
        places = [
            TopicPartition(f"{self.namespace}.{name}", number) for name, n in COUNTS.items() for number in range(n)
        ]
        found = consumer.committed(places, timeout=10)
        consumer.close()
        return {
            Partition(p.topic.removeprefix(f"{self.namespace}."), p.partition): p.offset for p in found if p.offset >= 0
        }

    def cut(self, partition: Partition, before: int) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        place = TopicPartition(f"{self.namespace}.{partition.topic}", partition.number, before)
        for done in admin.delete_records([place]).values():
            done.result()

    def remove(self) -> None:
        self.log.close()
        self._admin.delete([f"{self.namespace}.{name}" for name in COUNTS])


def renamed(number: int, conversation: str = "c0") -> ConversationRenamed:
    """An event of `messages` with a number in it."""
    return ConversationRenamed(
        conversation_id=conversation, account_id="a", title=str(number), renamed_at_ms=0, request_id=str(number)
    )


def fill(log: Log, numbers: Iterable[int], partition: int | None = None, topic: str | None = None) -> None:
    """Write numbered events; conversation `c<number modulo 5>`."""
    writer = log.writer("test")
    for number in numbers:
        writer.append(Output(event=renamed(number, f"c{number % 5}"), partition=partition, topic=topic))
    writer.close()
