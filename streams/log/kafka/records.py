"""From messages to records, errors to ours, and questions that are asked again."""

# ruff: noqa: SLF001 - librdkafka's own error codes begin with an underscore

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from streams.log.kafka.settings import LOGGER, PATIENCE_S, REQUEST_TIMEOUT_S
from streams.log.steps import LogError, Partition, Record

T = TypeVar("T")

_AGAIN = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._DESTROY_BROKER,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._WAIT_COORD,
        KafkaError._RESOLVE,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)
PAUSE_S = 0.05


def passing(error: Any) -> bool:
    """Whether an error may be gone in a moment."""
    return bool(error.retriable()) or error.code() in _AGAIN


def asked(question: Callable[[float], T], about: str, patience_s: float = PATIENCE_S) -> T:
    """The answer to a question (a function of its timeout in seconds), asked again while the error may pass.

    Raises:
        LogError: it did not pass.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return question(REQUEST_TIMEOUT_S)
        except KafkaException as failure:
            error = failure.args[0]
            if not passing(error) or time.monotonic() > deadline:
                raise LogError(f"{about}: {error.str()}") from failure
        time.sleep(PAUSE_S)


class Names:
    """Logical names to the cluster's and back."""

    def __init__(self, namespace: str) -> None:
        self._prefix = f"{namespace}."
        self._logical: dict[str, str] = {}

    def full(self, name: str) -> str:
        """The name on the cluster."""
        return self._prefix + name

    def logical(self, full: str) -> str:
        """The name in our code."""
        name = self._logical.get(full)
        if name is None:
            name = self._logical[full] = full.removeprefix(self._prefix)
        return name

    def places(self, offsets: Mapping[Partition, int]) -> list[Any]:
        """As confluent-kafka wants partitions with offsets."""
        return [TopicPartition(self.full(p.topic), p.number, offset) for p, offset in offsets.items()]

    def place(self, partition: Partition) -> Any:
        """As confluent-kafka wants a partition."""
        return TopicPartition(self.full(partition.topic), partition.number)

    def partition(self, place: Any) -> Partition:
        """Ours for theirs (anything with a topic and a partition)."""
        return Partition(self.logical(place.topic), place.partition)


def record(message: Any, names: Names) -> Record:
    """The record in a message that is no error."""
    key = message.key()
    return Record(
        topic=names.logical(message.topic()),
        partition=message.partition(),
        offset=message.offset(),
        key=None if key is None else key.decode(errors="replace"),
        value=message.value(),
        headers=message.headers() or (),
        timestamp_ms=message.timestamp()[1],
    )


def report(error: Any) -> None:
    """Log an error that passes by itself, or that reaches its caller on another way."""
    LOGGER.warning("kafka: %s", error.str())
