"""A member of a Kafka group.

Rules:

1. Where to begin is always said: at the committed offset, or, for a group that has none, at the earliest record.
   An offset that the log does not have any more is an error, or by an operator's decision the earliest.
2. Committed offsets are asked for before anything else of a new partition is, and that answer waits for
   transactions that are about to change them.
3. Who does not come into the group again, though its coordinator is there, ends, to be started anew: nobody else would
   notice a member without partitions.
4. The listener's errors, raised within librdkafka's callbacks, come out of `poll`.
"""

# ruff: noqa: SLF001 - librdkafka's own error codes begin with an underscore

import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from streams.log.kafka.offsets import Offsets
from streams.log.kafka.records import PAUSE_S, Names, asked, passing, record, report
from streams.log.kafka.settings import LOGGER, SILENCE_MS, Settings
from streams.log.kafka.statistics import standing
from streams.log.log import Expired, Listener
from streams.log.steps import Fenced, LogError, NotAppended, OffsetExpired, Partition, Record

_TAKEN_OVER = frozenset({KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED})
_SEEK_PATIENCE_S = 10.0
_OUTSIDE_S = 10.0
"""To join is begun within milliseconds."""


class KafkaConsumer:
    """See `Consumer`, and the rules of this module."""

    def __init__(
        self,
        settings: Settings,
        names: Names,
        offsets: Offsets,
        topics: Iterable[str],
        listener: Listener,
        expired: Expired,
    ) -> None:
        self._names = names
        self._offsets = offsets
        self._listener = listener
        self._expired: Expired = expired
        self._owned: dict[Partition, int] = {}
        self._ends_seen: dict[Partition, int] = {}
        self._answering: frozenset[tuple[str, int]] = frozenset()
        self._answered_s = 0.0
        self._outside_s: float | None = None
        self._moved: set[Partition] = set()
        self._commit_failed = False
        self._failure: LogError | None = None
        self._closed = False
        hooks: Settings = {"on_commit": self._committed, "error_cb": self._error, "stats_cb": self._statistics}
        self._consumer: Any = Consumer(settings | hooks)
        self._cooperative = settings["partition.assignment.strategy"] == "cooperative-sticky"
        self._consumer.subscribe(
            [names.full(topic) for topic in topics],
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )

    def poll(self, timeout_s: float, limit: int, gather_s: float = 0.0) -> list[Record]:
        deadline = time.monotonic() + timeout_s
        while True:
            records = []
            for message in self._messages(max(deadline - time.monotonic(), 0.0), limit, gather_s):
                if message.error() is not None:
                    self._failed(message)
                    continue
                taken = record(message, self._names)
                if (taken.topic, taken.partition) in self._owned:
                    records.append(taken)
            if self._failure is not None:
                raise self._failure
            if records or time.monotonic() >= deadline:
                return records

    def commit(self, offsets: Mapping[Partition, int], *, wait: bool) -> None:
        if not offsets:
            return
        try:
            self._consumer.commit(offsets=self._names.places(offsets), asynchronous=not wait)
        except KafkaException as failure:
            if wait:
                raise NotAppended(f"offsets: {failure.args[0].str()}") from failure
            self._committed(failure.args[0], [])

    def commit_failed(self) -> bool:
        failed, self._commit_failed = self._commit_failed, False
        return failed

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        for place in self._names.places(offsets):
            deadline = time.monotonic() + _SEEK_PATIENCE_S
            while True:
                try:
                    self._consumer.seek(place)
                except KafkaException as failure:
                    # A partition that was assigned a moment ago cannot be moved yet.
                    if failure.args[0].code() != KafkaError._STATE or time.monotonic() > deadline:
                        raise LogError(f"seek: {failure.args[0].str()}") from failure
                    time.sleep(PAUSE_S / 10)
                else:
                    break

    def pause(self, partitions: Iterable[Partition]) -> None:
        self._consumer.pause([self._names.place(p) for p in partitions if p in self._owned])

    def resume(self, partitions: Iterable[Partition]) -> None:
        self._consumer.resume([self._names.place(p) for p in partitions if p in self._owned])

    def lag(self, positions: Mapping[Partition, int]) -> int | None:
        behind = 0
        for partition, position in positions.items():
            seen = max(position, self._ends_seen.get(partition, 0))
            _, end = self._consumer.get_watermark_offsets(self._names.place(partition), cached=True)
            if end < 0:
                return None
            behind += max(end - seen, 0)
        return behind

    def reachable(self) -> bool:
        if not self._answered_s:
            return True  # no statistics yet: a moment ago we were not even here
        fresh = time.monotonic() - self._answered_s < 2 * SILENCE_MS / 1000
        return fresh and all((self._names.full(p.topic), p.number) in self._answering for p in self._owned)

    def group_metadata(self) -> Any:
        """For transactions: which member of which generation we are."""
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._consumer.close()

    def _messages(self, timeout_s: float, limit: int, gather_s: float) -> list[Any]:
        first = self._consumer.poll(timeout_s)
        if first is None or limit == 1:
            return [] if first is None else [first]
        self._moved.clear()
        more: list[Any] = self._consumer.consume(limit - 1, gather_s)
        # librdkafka leaves out what a rebalance within `consume` makes void, but `first` is in our hands already.
        if self._moved and (self._names.logical(first.topic() or ""), first.partition()) in self._moved:
            return more
        return [first, *more]

    def _assigned(self, consumer: Any, places: list[Any]) -> None:
        try:
            starts = self._starts(places)
        except LogError as failure:
            self._failure = failure
            return
        wanted = self._names.places(starts)
        if self._cooperative:
            consumer.incremental_assign(wanted)
        else:
            consumer.assign(wanted)
        self._owned.update(starts)
        self._moved.update(starts)
        try:
            self._listener.on_assigned(starts)
        except LogError as failure:
            self._failure = failure

    def _starts(self, places: list[Any]) -> dict[Partition, int]:
        if not places:
            return {}
        found = asked(lambda t: self._consumer.committed(places, timeout=t), "committed offsets")
        for place in found:
            if place.error is not None:
                raise LogError(f"committed offset of {place.topic}[{place.partition}]: {place.error.str()}")
        offsets = {self._names.partition(place): place.offset for place in found}
        return offsets | self._offsets.begins([partition for partition, offset in offsets.items() if offset < 0])

    def _revoked(self, _: Any, places: list[Any]) -> None:
        self._gone(places, lost=False)

    def _lost(self, _: Any, places: list[Any]) -> None:
        self._gone(places, lost=True)

    def _gone(self, places: list[Any], *, lost: bool) -> None:
        partitions = [self._names.partition(place) for place in places]
        self._moved.update(partitions)
        try:
            self._listener.on_revoked(partitions, lost=lost)
        except LogError as failure:
            self._failure = failure
        for partition in partitions:
            self._owned.pop(partition, None)

    def _failed(self, message: Any) -> None:
        error = message.error()
        if error.code() == KafkaError._PARTITION_EOF:
            partition = Partition(self._names.logical(message.topic()), message.partition())
            self._ends_seen[partition] = message.offset()
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._offset_gone(message)
        else:
            self._error(error)

    def _offset_gone(self, message: Any) -> None:
        partition = Partition(self._names.logical(message.topic()), message.partition())
        if partition not in self._owned:
            return
        first = self._offsets.begins([partition])[partition]
        text = f"{partition.topic}[{partition.number}]: the offset to go on from is gone; the first one left is {first}"
        if self._expired == "stop":
            raise OffsetExpired(text)
        LOGGER.error("%s; going on from there, as set", text)
        # After this error a partition cannot be moved; it has to be given and taken anew.
        if self._cooperative:
            self._consumer.incremental_unassign([self._names.place(partition)])
            self._consumer.incremental_assign(self._names.places({partition: first}))
        else:
            self._consumer.assign(self._names.places(self._next_offsets() | {partition: first}))

    def _next_offsets(self) -> dict[Partition, int]:
        places = [self._names.place(partition) for partition in self._owned]
        offsets = {self._names.partition(place): place.offset for place in self._consumer.position(places)}
        return {p: offset if offset >= 0 else self._owned[p] for p, offset in offsets.items()}

    def _error(self, error: Any) -> None:
        # A fatal error has a code of its own; what it was stands in its text only.
        if error.code() in _TAKEN_OVER or (error.code() == KafkaError._FATAL and "fenced" in error.str()):
            self._failure = Fenced(error.str())
        elif error.fatal() or not passing(error):
            self._failure = LogError(error.str())
        else:
            report(error)

    def _statistics(self, text: str) -> None:
        told, now_s = standing(text), time.monotonic()
        self._answering, self._answered_s = told.answering, now_s
        if not told.outside:
            self._outside_s = None
        elif self._outside_s is None:
            self._outside_s = now_s
        elif now_s - self._outside_s > _OUTSIDE_S:
            self._failure = LogError("the session in the group was lost, and nothing is done to join it again")

    def _committed(self, error: Any, _: Any) -> None:
        if error is not None:
            self._commit_failed = True
            report(error)
