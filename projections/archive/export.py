"""Exporting a topic: what the log has and the archive has not yet. Stopped anywhere, it goes on where its files end."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from projections.archive.files import ArchiveBroken, alone, keep, pieces
from projections.archive.history import Missing
from projections.archive.parquet import packed
from projections.clickhouse.client import Database
from streams.log.log import BEGINNING, Log
from streams.log.steps import Partition, Record

RECORDS_MAX = 50_000
BYTES_MAX = 32_000_000
"""Of the values in a file, about."""
POLL_S = 0.2


class Exported(msgspec.Struct, kw_only=True):
    """What was done."""

    topic: str
    records: int = 0
    files: int = 0
    partitions: int = 0


class _Chunk(msgspec.Struct):
    first: int
    records: list[Record] = []
    size: int = 0

    @property
    def full(self) -> bool:
        return len(self.records) >= RECORDS_MAX or self.size >= BYTES_MAX


def export(
    log: Log, topic: str, archive: Path, database: Database, tell: Callable[[Exported], None] = lambda _: None
) -> Exported:
    """Export all that the log has now and the archive has not.

    Raises:
        ArchiveBroken: the folder cannot be continued.
        Missing: retention has removed what the archive does not have.
        LogError, ClickHouseError: not now; run it again.
    """
    partitions = [Partition(topic, number) for number in range(log.partitions(topic))]
    done = Exported(topic=topic, partitions=len(partitions))
    with alone(archive, topic):
        for partition in partitions:
            _export(log, partition, archive, database, done, tell)
    return done


def _export(
    log: Log, partition: Partition, archive: Path, database: Database, done: Exported, tell: Callable[[Exported], None]
) -> None:
    reader = log.reader([partition], BEGINNING)
    try:
        end = reader.ends()[partition]
        chunk = _Chunk(_start(archive, partition, reader.positions()[partition], end))
        reader.seek({partition: chunk.first})
        while chunk.first < end:
            for record in reader.poll(POLL_S):
                if record.offset < end:
                    chunk.records.append(record)
                    chunk.size += len(record.value or b"")
                if chunk.full:
                    _keep(archive, partition, chunk, record.offset + 1, database, done)
                    tell(done)
            if chunk.first < end <= reader.positions()[partition]:
                _keep(archive, partition, chunk, end, database, done)
                tell(done)
    finally:
        reader.close()


def _start(archive: Path, partition: Partition, begin: int, end: int) -> int:
    known = pieces(archive, partition)
    if not known:
        return begin
    if known[-1].next > end:
        raise ArchiveBroken(
            f"{partition.topic}[{partition.number}]: the archive has offsets up to {known[-1].next - 1}, and the log "
            f"ends at {end}: the topic was lost and made anew, so export into another folder and keep this one"
        )
    if known[-1].next < begin:
        raise Missing(
            f"{partition.topic}[{partition.number}]: offsets {known[-1].next} to {begin - 1} were removed from the log "
            f"before they were archived; export into another folder to keep what is left"
        )
    return known[-1].next


def _keep(
    archive: Path, partition: Partition, chunk: _Chunk, following: int, database: Database, done: Exported
) -> None:
    keep(archive, partition, chunk.first, following, packed(database, chunk.records))
    done.records += len(chunk.records)
    done.files += 1
    chunk.first, chunk.records, chunk.size = following, [], 0
