"""The views: the step over `messages` and `usage` that writes their rows into ClickHouse.

1. Rows wait until the batch is full or `pace` allows an insert; then all of them are inserted, table by table, and
   only after that their offsets are settled. A crash or a failure in between inserts them again, which changes
   nothing: identities are in the sort keys.
2. While ClickHouse cannot take them, rows are kept and tried again with growing pauses, for ever; when too many wait,
   the step is busy. `trouble` says why.
3. A deleted conversation's content is erased before its deletion is recorded, and nothing of it is written after
   that, also when its reply is stored later, by this process or the next one.
4. A value that no column can hold makes its record a dead letter.
5. After the rows and before their offsets are settled, `progress` is told how far each partition is in the tables, also
   once after each assignment. It only says what is durable already, so it is true after any crash, and who writes it
   (a process that is replaced, or its successor) does not matter: the highest counts.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import structlog

from projections.clickhouse.client import ClickHouseError, ClickHouseRefused, Database
from projections.views.columns import Unstorable
from projections.views.erasure import Erasure
from projections.views.pace import Pace
from projections.views.rows import rows
from projections.views.tables import PROGRESS, TABLES, ConversationRow, Progress, Row
from schemas.codec import Undecodable
from streams.log.steps import Arrived, Busy, Partition

log = structlog.get_logger()

RETRY_MS = 200
RETRY_MAX_MS = 10_000


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """When a batch is full, and how much may wait."""

    rows: int = 10_000
    bytes: int = 16_777_216
    waiting_rows_max: int = 50_000
    waiting_bytes_max: int = 67_108_864


class Counts(msgspec.Struct):
    """What the step has done, for metrics."""

    rows: int = 0
    inserts: int = 0
    failures: int = 0
    erased: int = 0


class _Waiting(msgspec.Struct):
    """Of a partition: rows that are not durable, and the offsets before and after them."""

    durable: int
    taken: int
    rows: list[Row] = []
    bytes: int = 0
    told: int = -1
    """What `progress` has of it, at least."""


class ViewsStep:
    """A `Step` over `messages` and `usage`."""

    def __init__(self, database: Database, batch: Batch, pace: Pace) -> None:
        self._database = database
        self._batch = batch
        self._pace = pace
        self._waiting: dict[Partition, _Waiting] = {}
        self._erasure = Erasure(database)
        self._not_before_ms = 0
        self._failures = 0
        self.trouble = ""
        """Why nothing can be written at the moment; empty when all is well."""
        self.counts = Counts()

    def assigned(self, starts: Mapping[Partition, int]) -> None:
        for partition, start in starts.items():
            self._waiting[partition] = _Waiting(start, start)
        self._erasure.forget()

    def revoked(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._waiting.pop(partition, None)

    def submit(self, batch: Sequence[Arrived], now_ms: int) -> None:
        del now_ms
        count, size = self._held()
        if count >= self._batch.waiting_rows_max or size >= self._batch.waiting_bytes_max:
            raise Busy
        made = [(arrived, _rows(arrived)) for arrived in batch]
        for arrived, found in made:
            record = arrived.record
            waiting = self._waiting.get(Partition(record.topic, record.partition))
            if waiting is not None:
                waiting.rows += found
                waiting.bytes += len(record.value or b"") if found else 0
                waiting.taken = record.offset + 1

    def poll(self, now_ms: int) -> None:
        if now_ms < self._not_before_ms <= now_ms + RETRY_MAX_MS:
            return
        self._pace = self._pace.passed(now_ms)
        count, size = self._held()
        full = count >= self._batch.rows or size >= self._batch.bytes
        if full or ((count or self._untold()) and self._pace.allows):
            self._flush(now_ms)
        elif not count:
            for waiting in self._waiting.values():
                waiting.durable = waiting.taken

    def settled(self) -> Mapping[Partition, int]:
        return {partition: waiting.durable for partition, waiting in self._waiting.items()}

    def drain(self, deadline_s: float) -> None:
        until = time.monotonic() + deadline_s
        while self._held()[0] and time.monotonic() < until:
            self._flush(time.time_ns() // 1_000_000)
            if self.trouble:
                time.sleep(min(0.5, max(0.0, until - time.monotonic())))

    def _held(self) -> tuple[int, int]:
        waiting = self._waiting.values()
        return sum([len(w.rows) for w in waiting]), sum([w.bytes for w in waiting])

    def _untold(self) -> list[Progress]:
        return [
            Progress(topic=partition.topic, log_partition=partition.number, next_offset=waiting.taken)
            for partition, waiting in self._waiting.items()
            if waiting.told < waiting.taken
        ]

    def _flush(self, now_ms: int) -> None:
        tables: OrderedDict[type[Row], list[Row]] = OrderedDict((table, []) for table in TABLES)
        for waiting in self._waiting.values():
            for row in waiting.rows:
                tables[type(row)].append(row)
        try:
            self._erasure.prepare()
            deleted = [r for r in tables[ConversationRow] if isinstance(r, ConversationRow) and r.kind == "deleted"]
            self.counts.erased += self._erasure.erase(deleted)
            for table, found in tables.items():
                kept = self._erasure.kept(found)
                if kept:
                    self._database.insert(TABLES[table], kept)
                    self.counts.rows += len(kept)
                    self.counts.inserts += 1
            self._database.insert(PROGRESS, self._untold())
        except ClickHouseError as failure:
            self._put_off(now_ms, failure)
            return
        if self.trouble:
            log.info("views_available")
        self.trouble = ""
        self._failures = 0
        self._pace = self._pace.spent()
        for waiting in self._waiting.values():
            waiting.durable = waiting.told = waiting.taken
            waiting.rows, waiting.bytes = [], 0

    def _put_off(self, now_ms: int, failure: ClickHouseError) -> None:
        reason = str(failure)
        if isinstance(failure, ClickHouseRefused):
            log.error("views_refused", reason=reason)
        elif not self.trouble:
            log.warning("views_unavailable", reason=reason)
        self.trouble = reason
        self._not_before_ms = now_ms + min(RETRY_MAX_MS, RETRY_MS << min(self._failures, 10))
        self._failures += 1
        self.counts.failures += 1


def _rows(arrived: Arrived) -> tuple[Row, ...]:
    record = arrived.record
    try:
        return rows(arrived.envelope, record.partition, record.offset)
    except Unstorable as error:
        raise Undecodable(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            field=error.field,
            reason=error.reason,
        ) from error
