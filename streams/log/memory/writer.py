"""Writers of the log in memory. What they append is acknowledged at once, except while the log is down."""

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from schemas.codec import Headers
from streams.log.encoding import encoded
from streams.log.log import Aborted, Consumer
from streams.log.memory.consumer import MemoryConsumer
from streams.log.steps import Fenced, NotAppended, Output, Partition, Place, Record, StateRecord

if TYPE_CHECKING:
    from streams.log.memory.log import MemoryLog

OnError = Callable[[NotAppended], None]


class MemoryAppended:
    """An append in flight."""

    def __init__(self, log: "MemoryLog", record: Record, on_error: OnError | None) -> None:
        self._log = log
        self._on_error = on_error
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.record = record
        self.place: Place | None = None
        self.error: NotAppended | None = None

    def done(self) -> bool:
        return self.place is not None or self.error is not None

    def result(self, timeout_s: float | None = None) -> Place:
        with self._log.changed:
            if not self._log.changed.wait_for(self.done, timeout_s):
                raise TimeoutError(f"{self.record.topic}: not acknowledged within {timeout_s} s")
        return self._outcome()

    def __await__(self) -> Generator[Any, None, Place]:
        with self._log.changed:
            waiting = None
            if not self.done():
                loop = asyncio.get_running_loop()
                waiting = loop.create_future()
                self._waiters.append((loop, waiting))
        if waiting is not None:
            yield from waiting
        return self._outcome()

    def decided(self, place: Place | None, error: NotAppended | None) -> None:
        """Called by the log."""
        self.place, self.error = place, error
        if error is not None and self._on_error is not None:
            self._on_error(error)
        for loop, waiting in self._waiters:
            loop.call_soon_threadsafe(_resolve, waiting)

    def _outcome(self) -> Place:
        if self.place is None:
            raise self.error or AssertionError("neither acknowledged nor failed")
        return self.place


class MemoryWriter:
    """See `RecordWriter`."""

    def __init__(self, log: "MemoryLog", source: str) -> None:
        self._log = log
        self._source = source
        self._unflushed: list[MemoryAppended] = []

    def append(self, output: Output, on_error: OnError | None = None) -> MemoryAppended:
        topic, key, value, headers, partition = encoded(output, self._source, self._log.now_ms())
        return self.append_record(topic, key, value, headers, partition, on_error)

    def append_record(
        self,
        topic: str,
        key: str | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None = None,
        on_error: OnError | None = None,
    ) -> MemoryAppended:
        record = self._log.record(topic, key, value, headers, partition)
        appended = MemoryAppended(self._log, record, on_error)
        self._unflushed.append(appended)
        self._log.take(appended)
        return appended

    def flush(self, timeout_s: float) -> None:
        unflushed, self._unflushed = self._unflushed, []
        with self._log.changed:
            self._log.changed.wait_for(
                lambda: all(appended.done() for appended in unflushed), self._log.patience(timeout_s)
            )
        for appended in unflushed:
            if appended.error is not None:
                raise appended.error
            if not appended.done():
                raise NotAppended(f"{appended.record.topic}: the log is down")

    def close(self, timeout_s: float = 10.0) -> None:
        self.flush(timeout_s)


class MemoryTransactions:
    """See `Transactions`."""

    def __init__(self, log: "MemoryLog", name: str, source: str) -> None:
        self._log = log
        self._name = name
        self._source = source
        self._epoch = log.new_epoch(name)

    def commit(
        self,
        outputs: Sequence[Output],
        states: Sequence[tuple[Partition, StateRecord]],
        offsets: Mapping[Partition, int],
        consumer: Consumer,
        condition: Callable[[], None],
    ) -> None:
        if not isinstance(consumer, MemoryConsumer):
            raise TypeError("a transaction in memory takes the offsets of a consumer in memory")
        log = self._log
        try:
            condition()
        except NotAppended as failure:
            raise Aborted(str(failure)) from failure
        with log.changed:
            if log.epoch(self._name) != self._epoch:
                raise Fenced(f"transactions {self._name} were taken over")
            if log.down:
                raise Aborted("the log is down")
            log.point("transaction", self._name)
            transaction = log.store.begin(self._name)
            for output in outputs:
                topic, key, value, headers, number = encoded(output, self._source, log.now_ms())
                log.store.append(log.record(topic, key, value, headers, number), transaction)
            for partition, state in states:
                log.store.append(log.record(partition.topic, state.key, state.value, (), partition.number), transaction)
            try:
                # A crash that a test raises here leaves the transaction open, as a killed process does.
                log.point("transaction-written", self._name)
                consumer.commit_in_transaction(offsets)
            except Aborted:
                log.store.end(self._name, "aborted")
                raise
            log.store.end(self._name, "committed")
            log.changed.notify_all()
            log.point("transaction-committed", self._name)

    def close(self) -> None:
        return


def _resolve(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
