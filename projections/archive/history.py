"""All records of a topic up to an end: from the archive what the log has no more, from the log the rest.

At the seam an offset is in one of the two, never in both and never in neither: where both have it, the log is read.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from projections.archive.files import Piece, pieces
from projections.archive.parquet import unpacked
from projections.clickhouse.client import Database
from streams.log.log import BEGINNING, Log
from streams.log.steps import Partition, Record

POLL_S = 0.2


class Missing(Exception):
    """Records are neither in the log nor in the archive; the message names them and says what to do."""


class History:
    """Of some partitions, as they are now."""

    def __init__(self, log: Log, partitions: Sequence[Partition], archive: Path | None, database: Database) -> None:
        self._database = database
        self._reader = log.reader(partitions, BEGINNING)
        self.begins = self._reader.positions()
        """The first offset that the log still has of each."""
        self.pieces: dict[Partition, tuple[Piece, ...]] = {
            partition: pieces(archive, partition) if archive else () for partition in partitions
        }
        self._archive = archive

    def ends(self) -> dict[Partition, int]:
        """The offset that the next record of each will get, asked now."""
        return self._reader.ends()

    def first(self, partition: Partition) -> int:
        """The first offset that can be read of it without a gap up to the log's."""
        begin, known = self.begins[partition], self.pieces[partition]
        return known[0].first if known and known[-1].next >= begin else begin

    def missing(self, positions: Mapping[Partition, int]) -> str:
        """What cannot be read from these offsets on, as a sentence; empty when all can."""
        for partition, position in positions.items():
            begin, known = self.begins[partition], self.pieces[partition]
            if position >= begin:
                continue
            if known and known[0].first <= position and known[-1].next >= begin:
                continue
            until, at = (known[0].first, position) if known and position < known[0].first else (begin, position)
            if known and known[0].first <= position:
                at = max(position, known[-1].next)
            where = f"the archive {self._archive}" if self._archive else "an archive (--archive)"
            return (
                f"{partition.topic}[{partition.number}]: offsets {at} to {min(until, begin) - 1} are not in the log any"
                f" more, which begins at {begin}, and not in {where}"
            )
        return ""

    def read(
        self, positions: Mapping[Partition, int], ends: Mapping[Partition, int], idle: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[list[Record], dict[Partition, int]]]:
        """Batches of records from these offsets to below those, with how far each partition has been read after it.

        Raises:
            Missing: see there; nothing was read.
            OffsetExpired: the log lost records while it was read.
            ArchiveBroken: see there.
        """
        if sentence := self.missing(positions):
            raise Missing(sentence)
        reached = dict(positions)
        for partition, position in positions.items():
            begin = min(self.begins[partition], ends[partition])
            for piece in self.pieces[partition]:
                if piece.next <= position or max(piece.first, position) >= begin:
                    continue
                records = unpacked(self._database, piece, partition.topic, partition.number)
                reached[partition] = min(piece.next, begin)
                yield [r for r in records if position <= r.offset < begin], {partition: reached[partition]}
        yield from self._from_log(reached, ends, idle)

    def _from_log(
        self, reached: dict[Partition, int], ends: Mapping[Partition, int], idle: Callable[[], None]
    ) -> Iterator[tuple[list[Record], dict[Partition, int]]]:
        self._reader.seek(reached)
        while any(reached[partition] < end for partition, end in ends.items()):
            records = self._reader.poll(POLL_S)
            read = self._reader.positions()
            if any(at > ends[p] for p, at in read.items()):
                records = [r for r in records if r.offset < ends[Partition(r.topic, r.partition)]]
            now = {p: min(at, ends[p]) for p, at in read.items()}
            moved = {p: at for p, at in now.items() if at > reached[p]}
            reached.update(moved)
            if moved:
                yield records, moved
            else:
                idle()

    def close(self) -> None:
        """Leave the log."""
        self._reader.close()
