"""The composition of the Kafka log: names and settings for each kind of client."""

import contextlib
from collections.abc import Sequence

from streams.log.kafka import settings
from streams.log.kafka.consumer import KafkaConsumer
from streams.log.kafka.offsets import Offsets
from streams.log.kafka.reader import KafkaReader
from streams.log.kafka.records import Names
from streams.log.kafka.transactions import KafkaTransactions
from streams.log.kafka.writer import KafkaWriter
from streams.log.log import Assignment, Expired, Listener, Start
from streams.log.steps import LogError, NotAppended, Partition


class KafkaLog:
    """The log on a Kafka cluster, within a namespace: topics, groups and transactional ids are `<namespace>.<name>`."""

    def __init__(self, bootstrap: str, namespace: str, client_id: str) -> None:
        self._base = settings.client(bootstrap, client_id)
        self._names = Names(namespace)
        self._counts: dict[str, int] = {}
        self._offsets = Offsets(self._base, self._names)
        self._opened: list[KafkaWriter | KafkaReader | KafkaConsumer | KafkaTransactions] = []

    def partitions(self, topic: str) -> int:
        if topic not in self._counts:
            self._counts[topic] = self._offsets.partitions(topic)
        return self._counts[topic]

    def writer(self, source: str, *, linger_ms: float = 0.0, delivery_timeout_s: float = 30.0) -> KafkaWriter:
        chosen = settings.producer(self._base, linger_ms=linger_ms, delivery_timeout_s=delivery_timeout_s)
        writer = KafkaWriter(chosen, self._names, source)
        self._opened.append(writer)
        return writer

    def reader(self, partitions: Sequence[Partition], start: Start, *, committed_only: bool = True) -> KafkaReader:
        chosen = settings.consumer(self._base, self._names.full("reader"), committed_only=committed_only)
        reader = KafkaReader(chosen, self._names, self._offsets, partitions, start)
        self._opened.append(reader)
        return reader

    def begin(self, group: str, topic: str, start: Start) -> bool:
        """Where a group begins that has committed nothing yet of a topic; whether that was so.

        By itself such a group begins at the earliest record. What is decided here is durable when this returns.

        Raises:
            LogError: the log cannot be reached, or the group has members and has committed nothing: try again.
        """
        partitions = [Partition(topic, number) for number in range(self.partitions(topic))]
        if self._offsets.has_begun(group, partitions):
            return False
        try:
            self._offsets.begin(group, self._offsets.starts(partitions, start))
        except LogError:
            # Another process has begun meanwhile.
            if not self._offsets.has_begun(group, partitions):
                raise
            return False
        return True

    def consumer(
        self,
        group: str,
        topics: Sequence[str],
        listener: Listener,
        *,
        replica: int = 0,
        assignment: Assignment = "sticky",
        expired: Expired = "stop",
        held_ms: int = 0,
    ) -> KafkaConsumer:
        name = self._names.full(group)
        chosen = settings.member(
            settings.consumer(self._base, name, committed_only=True, held_ms=held_ms),
            f"{name}-{replica}",
            together=assignment == "together",
        )
        consumer = KafkaConsumer(chosen, self._names, self._offsets, topics, listener, expired)
        self._opened.append(consumer)
        return consumer

    def transactions(self, name: str, source: str) -> KafkaTransactions:
        transactions = KafkaTransactions(
            settings.transactional(self._base, self._names.full(name)), self._names, source
        )
        self._opened.append(transactions)
        return transactions

    def close(self) -> None:
        """Close what was opened, the latest first. What a writer still had is lost if it cannot be delivered."""
        while self._opened:
            opened = self._opened.pop()
            with contextlib.suppress(NotAppended):
                opened.close()
