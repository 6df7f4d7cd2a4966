"""Where partitions begin and end.

Asked through a connection of its own: a consumer's is held by its waiting fetch, and each question on it would take
up to `fetch.wait.max.ms`. One question is for any number of partitions.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, OffsetSpec

from streams.log.kafka.records import Names, asked
from streams.log.kafka.settings import Settings
from streams.log.log import Start
from streams.log.steps import LogError, Partition

_AFTER_ALL = -1
GRACE_S = 5.0
"""So much later than it should the client may say that there is no answer."""
_STALE = frozenset({KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH})
"""What the client knows of the partition's leader is from before a restart of it. It does not learn by itself: a fresh
client does."""


class Offsets:
    """Answers about all topics of a namespace."""

    def __init__(self, settings: Settings, names: Names) -> None:
        self._settings = settings
        self._names = names
        self._made: Any = None

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has."""
        full = self._names.full(topic)
        metadata = asked(lambda t: self._admin.list_topics(full, timeout=t), f"partitions of {full}")
        found = metadata.topics[full]
        if found.error is not None:
            raise LogError(f"topic {full}: {found.error.str()}")
        return len(found.partitions)

    def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first offset that each partition still has."""
        return self._asked(partitions, OffsetSpec.earliest())

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset that the next record of each partition will get."""
        return self._asked(partitions, OffsetSpec.latest())

    def starts(self, partitions: Iterable[Partition], start: Start) -> dict[Partition, int]:
        """Where a reader begins."""
        if start.at == "beginning":
            return self.begins(partitions)
        if start.at == "end":
            return self.ends(partitions)
        wanted = tuple(partitions)
        ends = self.ends(wanted)
        found = self._asked(wanted, OffsetSpec.for_timestamp(start.time_ms))
        return {p: ends[p] if offset == _AFTER_ALL else offset for p, offset in found.items()}

    def has_begun(self, group: str, partitions: Iterable[Partition]) -> bool:
        """Whether a group has committed an offset of any of these."""
        wanted = ConsumerGroupTopicPartitions(self._names.full(group), [self._names.place(p) for p in partitions])

        def ask(timeout_s: float) -> bool:
            admin = self._admin
            (answer,) = admin.list_consumer_group_offsets([wanted], request_timeout=timeout_s).values()
            return any(place.offset >= 0 for place in _group(answer, timeout_s))

        return asked(ask, f"offsets of group {group}")

    def begin(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Commit these for a group without members. Raises `LogError`, also when it has some."""
        wanted = ConsumerGroupTopicPartitions(self._names.full(group), self._names.places(offsets))

        def ask(timeout_s: float) -> None:
            admin = self._admin
            (answer,) = admin.alter_consumer_group_offsets([wanted], request_timeout=timeout_s).values()
            for place in _group(answer, timeout_s):
                if place.error is not None:
                    raise KafkaException(place.error)

        asked(ask, f"offsets of group {group}")

    @property
    def _admin(self) -> Any:
        if self._made is None:
            self._made = AdminClient(self._settings)
        return self._made

    def _asked(self, partitions: Iterable[Partition], spec: Any) -> dict[Partition, int]:
        wanted = {self._names.place(partition): spec for partition in partitions}
        if not wanted:
            return {}

        def ask(timeout_s: float) -> dict[Partition, int]:
            admin = self._admin  # held here until it has answered: a client that nobody holds never does
            answers = admin.list_offsets(wanted, request_timeout=timeout_s)
            try:
                found = {place: answer.result(timeout_s + GRACE_S).offset for place, answer in answers.items()}
            except TimeoutError as late:
                raise LogError("offsets: no answer") from late
            except KafkaException as failure:
                if failure.args[0].code() in _STALE and self._made is admin:
                    self._made = None
                raise
            return {self._names.partition(place): offset for place, offset in found.items()}

        return asked(ask, "offsets")


def _group(answer: Any, timeout_s: float) -> Any:
    try:
        return answer.result(timeout_s + GRACE_S).topic_partitions
    except TimeoutError as late:
        raise LogError("offsets of a group: no answer") from late
