"""The files of an archive: `<folder>/<topic>/<partition>/<first>-<next>.parquet`. What each holds stands in its name.

1. A file holds all records of its partition from offset `first` to below `next`. Offsets without a record (marks of
   transactions, what compaction took) are in the range too.
2. A file gets its name when all of it is on the disk. What a process that was killed left has another name.
3. Ranges of a partition follow each other without a gap and without an overlap; a folder where they do not is refused.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from streams.log.steps import Partition

_NAME = re.compile(r"(\d{20})-(\d{20})\.parquet")


class ArchiveBroken(Exception):
    """The folder is not an archive that can be read or continued; the message says why and what to do."""


class Piece(msgspec.Struct, frozen=True):
    """One file."""

    path: Path
    first: int
    next: int


def folder_of(archive: Path, partition: Partition) -> Path:
    """Where the files of a partition are."""
    return archive / partition.topic / f"{partition.number:05}"


def name_of(first: int, following: int) -> str:
    """The name of a file."""
    return f"{first:020}-{following:020}.parquet"


def pieces(archive: Path, partition: Partition) -> tuple[Piece, ...]:
    """The files of a partition in order, none where it was never archived. Raises `ArchiveBroken`."""
    found: list[Piece] = []
    folder = folder_of(archive, partition)
    for path in sorted(folder.glob("*.parquet")) if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match is None or int(match[1]) >= int(match[2]):
            raise ArchiveBroken(f"{path} is not named like a file of an archive: <first>-<next>.parquet")
        piece = Piece(path, int(match[1]), int(match[2]))
        if found and found[-1].next != piece.first:
            wrong = "gap" if found[-1].next < piece.first else "overlap"
            first, following = sorted((found[-1].next, piece.first))
            raise ArchiveBroken(
                f"{partition.topic}[{partition.number}]: {wrong} of offsets {first} to {following - 1} between "
                f"{found[-1].path.name} and {path.name} in {folder}: restore or remove a file"
            )
        found.append(piece)
    return tuple(found)


def keep(archive: Path, partition: Partition, first: int, following: int, content: bytes) -> Piece:
    """Write a file; it is complete and on the disk when this returns."""
    folder = folder_of(archive, partition)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name_of(first, following)
    beside = path.with_suffix(".unfinished")
    with beside.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    beside.replace(path)
    at = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(at)
    finally:
        os.close(at)
    return Piece(path, first, following)


@contextlib.contextmanager
def alone(archive: Path, topic: str) -> Iterator[None]:
    """Hold a topic's folder. Raises `ArchiveBroken` when another process does."""
    folder = archive / topic
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            raise ArchiveBroken(f"another process archives into {folder} now") from taken
        yield
