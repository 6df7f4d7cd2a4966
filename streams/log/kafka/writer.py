"""The plain writer on Kafka.

Rules:

1. `append` is called from one thread (or one event loop); acknowledgements arrive on the writer's own thread.
2. Those who wait are woken once per round of acknowledgements, not once per record: a condition for threads, one
   `call_soon_threadsafe` for each event loop.
3. A failure reaches `result`, `await`, `on_error` and the next `flush`.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

from confluent_kafka import KafkaException, Producer

from schemas.codec import Headers
from streams.log.encoding import encoded
from streams.log.kafka.records import Names, report
from streams.log.kafka.settings import Settings
from streams.log.steps import LogFull, NotAppended, Output, Place

_ROUND_S = 0.2
_ANYWHERE = -1

OnError = Callable[[NotAppended], None]


class KafkaAppended:
    """An append in flight."""

    __slots__ = ("_error", "_on_error", "_place", "_topic", "_waiter", "_writer")

    def __init__(self, writer: "KafkaWriter", topic: str, on_error: OnError | None) -> None:
        self._writer = writer
        self._topic = topic
        self._on_error = on_error
        self._place: Place | None = None
        self._error: NotAppended | None = None
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def done(self) -> bool:
        return self._place is not None or self._error is not None

    def result(self, timeout_s: float | None = None) -> Place:
        if not self.done() and not self._writer.wait_for(self.done, timeout_s):
            raise TimeoutError(f"{self._topic}: not acknowledged within {timeout_s} s")
        return self._outcome()

    def __await__(self) -> Generator[Any, None, Place]:
        if not self.done():
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self._waiter = (loop, future)
            # The acknowledgement may have come between the look and the registration.
            if not self.done():
                yield from future
        return self._outcome()

    def delivered(self, error: Any, message: Any) -> None:
        """Called by the producer, on the writer's thread."""
        if error is None:
            self._place = Place(self._topic, message.partition(), message.offset())
        else:
            self._error = NotAppended(f"{self._topic}: {error.str()}")
            if self._on_error is not None:
                self._on_error(self._error)
        self._writer.settled(self._error, self._waiter)

    def _outcome(self) -> Place:
        if self._place is None:
            raise self._error or AssertionError("neither acknowledged nor failed")
        return self._place


class KafkaWriter:
    """See the rules of this module."""

    def __init__(self, settings: Settings, names: Names, source: str) -> None:
        self._producer: Any = Producer(settings | {"error_cb": report})
        self._names = names
        self._source = source
        self._appended = 0
        self._settled = 0
        self._failed: NotAppended | None = None
        self._woken: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._round = threading.Condition()
        self._waiting = 0
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=f"writer {source}", daemon=True)
        self._thread.start()

    def append(self, output: Output, on_error: OnError | None = None) -> KafkaAppended:
        topic, key, value, headers, partition = encoded(output, self._source, time.time_ns() // 1_000_000)
        return self.append_record(topic, key, value, headers, partition, on_error)

    def append_record(
        self,
        topic: str,
        key: str | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None = None,
        on_error: OnError | None = None,
    ) -> KafkaAppended:
        appended = KafkaAppended(self, topic, on_error)
        try:
            self._producer.produce(
                self._names.full(topic),
                value,
                key,
                _ANYWHERE if partition is None else partition,
                appended.delivered,
                headers=headers if isinstance(headers, list) else list(headers),
            )
        except BufferError as full:
            raise LogFull(f"{topic}: {len(self._producer)} records are waiting for the log") from full
        except KafkaException as failure:
            raise NotAppended(f"{topic}: {failure.args[0].str()}") from failure
        self._appended += 1
        return appended

    def flush(self, timeout_s: float) -> None:
        target = self._appended
        if not self.wait_for(lambda: self._settled >= target, timeout_s):
            raise NotAppended(f"{target - self._settled} records were not acknowledged within {timeout_s} s")
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def close(self, timeout_s: float = 10.0) -> None:
        if self._closed:
            return
        try:
            self.flush(timeout_s)
        finally:
            self._closed = True
            self._thread.join(5 * _ROUND_S)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until a condition holds that acknowledgements bring about; whether it does."""
        with self._round:
            self._waiting += 1
            try:
                return self._round.wait_for(condition, timeout_s)
            finally:
                self._waiting -= 1

    def settled(
        self, error: NotAppended | None, waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None
    ) -> None:
        """One more record is decided. On the writer's thread."""
        self._settled += 1
        if error is not None:
            self._failed = error
        if waiter is not None:
            self._woken.append(waiter)

    def _serve(self) -> None:
        while not self._closed:
            if self._producer.poll(_ROUND_S):
                self._wake()

    def _wake(self) -> None:
        if self._waiting:
            with self._round:
                self._round.notify_all()
        if not self._woken:
            return
        woken, self._woken = self._woken, []
        for loop in {loop for loop, _ in woken}:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, [future for of, future in woken if of is loop])


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
