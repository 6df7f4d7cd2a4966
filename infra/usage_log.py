"""The topic `usage` as an operator's commands read and write it: folded account by account, a partition at a time.

Memory: about 0.6 kB for each record of the partition that is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from infra.errors import StackError
from schemas.codec import Undecodable
from schemas.events import Event
from schemas.invoice import Ledger
from schemas.topics import USAGE
from streams.log.encoding import decoded
from streams.log.kafka import KafkaLog
from streams.log.log import BEGINNING, Reader, RecordWriter
from streams.log.partitioner import partition_of
from streams.log.steps import LogError, Output, Partition

CLIENT = "turnlog-infra"
SOURCE = "infra/turnlog"
APPEND_TIMEOUT_S = 30.0
SILENT_S = 60.0
"""So long the log may bring nothing before the reading of it is given up."""


class UsageLog:
    """The topic on one broker. Everything raises StackError where Kafka does not do it."""

    def __init__(self, bootstrap: str, namespace: str) -> None:
        self._bootstrap = bootstrap
        self._log = KafkaLog(bootstrap, namespace, CLIENT)
        self._writer: RecordWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.close()

    def partitions(self, account_id: str | None = None) -> Sequence[int]:
        """The partitions; that of an account alone where one is given."""
        try:
            count = self._log.partitions(USAGE.name)
        except LogError as failure:
            raise self._unreadable(failure) from failure
        return range(count) if account_id is None else (partition_of(account_id, count),)

    def read(self, number: int, account_id: str | None = None, tell: Callable[[int], None] = lambda _: None) -> Folded:
        """Fold a partition up to the end that it has now. `tell` hears how many records were read."""
        try:
            folded = Folded(self._log.reader([Partition(USAGE.name, number)], BEGINNING), number, account_id, tell)
            folded.catch_up()
        except LogError as failure:
            raise self._unreadable(failure) from failure
        return folded

    def append(self, events: Sequence[Event]) -> None:
        """Append events in order; durable when it returns."""
        try:
            if self._writer is None:
                self._writer = self._log.writer(SOURCE, delivery_timeout_s=APPEND_TIMEOUT_S)
            writer = self._writer
            for one in [writer.append(Output(event=event)) for event in events]:
                one.result(APPEND_TIMEOUT_S)
        except (LogError, TimeoutError) as failure:
            raise StackError(f"Kafka at {self._bootstrap} did not take the change: {failure}") from failure

    def _unreadable(self, failure: LogError) -> StackError:
        return StackError(
            f"The usage cannot be read from Kafka at {self._bootstrap} ({failure}); `turnlog provision` makes its "
            "topic."
        )


class Folded:
    """A partition's ledgers, up to an end that it had."""

    def __init__(self, reader: Reader, number: int, account_id: str | None, tell: Callable[[int], None]) -> None:
        self._reader = reader
        self._partition = Partition(USAGE.name, number)
        self._account_id = account_id
        self._tell = tell
        self._ledgers: dict[str, Ledger] = {}
        self.begins = reader.positions()[self._partition]
        """The first offset that the log still has."""
        self.begins_ms: int | None = None
        """When the first record that is left was written; None: there is none."""
        self.records = 0
        self.unreadable = 0
        """Records that no reader can make sense of; the views have them among the dead letters."""

    @property
    def ledgers(self) -> Mapping[str, Ledger]:
        """By account."""
        return self._ledgers

    def catch_up(self) -> None:
        """Read on to the end that there is now. Raises LogError."""
        end = self._reader.ends()[self._partition]
        silent_s = 0.0
        while self._reader.positions()[self._partition] < end:
            found = self._reader.poll(1.0)
            silent_s = 0.0 if found else silent_s + 1.0
            if silent_s > SILENT_S:
                raise LogError(f"{self._partition.topic}[{self._partition.number}] brings nothing for {SILENT_S:.0f} s")
            for record in found:
                self.records += 1
                if self.begins_ms is None:
                    self.begins_ms = record.timestamp_ms
                if self._account_id is not None and record.key != self._account_id:
                    continue
                try:
                    event = decoded(record).event
                except Undecodable:
                    self.unreadable += 1
                    continue
                account_id = str(getattr(event, "account_id", ""))
                self._ledgers.setdefault(account_id, Ledger()).apply(event)
            self._tell(self.records)

    def close(self) -> None:
        """Leave."""
        self._reader.close()
