"""A compacted topic, followed by a thread: per record key the newest record counts, a tombstone takes it away."""

import threading
import time
from collections.abc import Callable

import structlog

from schemas.codec import Undecodable
from schemas.events import Event
from streams.log.encoding import decoded
from streams.log.log import BEGINNING, Log, Reader, Start
from streams.log.steps import LogError, OffsetExpired, Partition, Record

log = structlog.get_logger()

POLL_S = 0.5
CHECK_EVERY_S = 2.0
RETRY_S = 1.0


class CompactedReader:
    """Keeps a fold of a topic up to date from the log, and thereby knows whether the log answers."""

    def __init__(
        self,
        log_: Log,
        topic: str,
        apply: Callable[[str, Event | None], None],
        *,
        start: Start = BEGINNING,
        now_s: Callable[[], float] = time.monotonic,
        poll_s: float = POLL_S,
    ) -> None:
        """Reads nothing before `start()`.

        Args:
            log_: where the topic is.
            topic: its logical name.
            apply: takes a record's key and its event, None for a tombstone; called by the thread, in the log's order
                within a partition; after an outage it goes on where it was.
            start: from where what is there counts.
            now_s: a monotonic clock.
            poll_s: how long one look at the log waits.
        """
        self._log = log_
        self._topic = topic
        self._apply = apply
        self._from = start
        self._now_s = now_s
        self._poll_s = poll_s
        self._stop = threading.Event()
        self._answered_s: float | None = None
        self._read_to: dict[Partition, int] = {}
        """After an outage it goes on from here. From the beginning it would say again what is long over, such as a key
        that was revoked, until it came to where that is said."""
        self._complete = threading.Event()
        self._thread = threading.Thread(target=self._run, name=topic, daemon=True)

    @property
    def complete(self) -> bool:
        """Everything that was there at the start has been read."""
        return self._complete.is_set()

    def log_answers(self, within_s: float) -> bool:
        """Whether the log answered lately."""
        return self._answered_s is not None and self._now_s() - self._answered_s <= within_s

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """Stop; waits for the thread a moment."""
        self._stop.set()
        self._thread.join(2 * self._poll_s + RETRY_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._read()
            except OffsetExpired as error:
                log.warning("topic is read from its beginning again", topic=self._topic, reason=str(error))
                self._read_to = {}
                self._stop.wait(RETRY_S)
            except LogError as error:
                log.warning("topic cannot be read", topic=self._topic, reason=str(error))
                self._stop.wait(RETRY_S)

    def _read(self) -> None:
        partitions = [Partition(self._topic, n) for n in range(self._log.partitions(self._topic))]
        reader = self._log.reader(partitions, self._from)
        try:
            if self._read_to:
                reader.seek(self._read_to)
            ends = self._asked(reader)
            asked_s = self._now_s()
            while not self._stop.is_set():
                for record in reader.poll(self._poll_s):
                    self._take(record)
                self._read_to = reader.positions()
                if not self._complete.is_set():
                    positions = reader.positions()
                    if all(positions.get(partition, 0) >= end for partition, end in ends.items()):
                        self._complete.set()
                if self._now_s() - asked_s >= CHECK_EVERY_S:
                    self._asked(reader)
                    asked_s = self._now_s()
        finally:
            reader.close()

    def _asked(self, reader: Reader) -> dict[Partition, int]:
        ends = reader.ends()
        self._answered_s = self._now_s()
        return ends

    def _take(self, record: Record) -> None:
        if record.key is None:
            return
        event = None
        if record.value is not None:
            try:
                event = decoded(record).event
            except Undecodable as error:
                log.warning("record cannot be read", topic=self._topic, reason=str(error))
                return
        self._apply(record.key, event)
