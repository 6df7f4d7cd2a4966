"""Whoever follows a compacted topic goes on where it was after an outage: what is long over is not said again."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from log.places import Place, fill

from schemas.events import Event
from streams.log import compacted
from streams.log.compacted import CompactedReader
from streams.log.log import Reader, Start
from streams.log.steps import LogError, OffsetExpired, Partition, Record


def eventually(what: str, condition: Callable[[], Any], within_s: float = 20.0) -> None:
    deadline, pause = time.monotonic() + within_s, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        pause.wait(0.005)


class Interrupted:
    """A log whose readers fail when they are told to."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.failure: LogError | None = None
        self.failed = 0

    def partitions(self, topic: str) -> int:
        return int(self._log.partitions(topic))

    def reader(
        self, partitions: Sequence[Partition], start: Start, *, committed_only: bool = True
    ) -> "InterruptedReader":
        return InterruptedReader(self, self._log.reader(partitions, start, committed_only=committed_only))


class InterruptedReader:
    """Loses what one poll brought when it fails, as the broker's does."""

    def __init__(self, log: Interrupted, reader: Reader) -> None:
        self._log = log
        self._reader = reader

    def poll(self, timeout_s: float) -> list[Record]:
        records = self._reader.poll(timeout_s)
        if (failure := self._log.failure) is not None:
            self._log.failure = None
            self._log.failed += 1
            raise failure
        return records

    def ends(self) -> dict[Partition, int]:
        return self._reader.ends()

    def positions(self) -> dict[Partition, int]:
        return self._reader.positions()

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        self._reader.seek(offsets)

    def close(self) -> None:
        self._reader.close()


def test_after_an_outage_each_record_is_told_once_and_none_is_missing(place: Place, monkeypatch: Any) -> None:
    monkeypatch.setattr(compacted, "RETRY_S", 0.01)
    log, told = Interrupted(place.log), []

    def apply(key: str, event: Event | None) -> None:
        told.append((key, getattr(event, "conversation_id", None), getattr(event, "title", None)))

    reader = CompactedReader(log, "messages", apply, poll_s=0.05)  # type: ignore[arg-type] - what it asks of a log
    fill(place.log, range(10), partition=0)
    reader.start()
    try:
        eventually("it has read", lambda: len(told) == 10 and reader.complete)
        for round_ in range(1, 4):
            log.failure = LogError("the broker is away")
            eventually("it has failed", lambda round_=round_: log.failed == round_)
            fill(place.log, range(5), partition=0)
            eventually("it has read on", lambda round_=round_: len(told) >= 10 + 5 * round_)
        fill(place.log, range(1), partition=1)
        eventually("and on", lambda: len(told) >= 26)
        assert len(told) == 26
    finally:
        reader.close()


def test_where_its_place_is_gone_it_begins_again(place: Place, monkeypatch: Any) -> None:
    monkeypatch.setattr(compacted, "RETRY_S", 0.01)
    log, told = Interrupted(place.log), []
    reader = CompactedReader(log, "messages", lambda key, _: told.append(key), poll_s=0.05)  # type: ignore[arg-type]
    fill(place.log, range(10), partition=0)
    reader.start()
    try:
        eventually("it has read", lambda: len(told) == 10)
        log.failure = OffsetExpired("gone")
        eventually("it has read all of it again", lambda: len(told) == 20)
    finally:
        reader.close()
