"""Reading partitions up to the ends that they have now."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from streams.log.log import BEGINNING, Log
from streams.log.steps import LogError, Partition, Record

LOGGER = logging.getLogger("turnlog.loop")
STILL_S = 15.0
"""Longer than brokers let a transaction of ours stay open: who gets no further waits for one that nobody will end."""


def read_all(
    log: Log,
    partitions: Sequence[Partition],
    *,
    timeout_s: float,
    on_progress: Callable[[], None] = lambda: None,
    still_s: float = STILL_S,
) -> dict[Partition, list[Record]]:
    """All committed records of these partitions that were there when this was called, or were about to be committed.

    Where it gets no further for `still_s`, a warning says where.

    Raises:
        LogError: not done within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    found: dict[Partition, list[Record]] = {partition: [] for partition in partitions}
    reader = log.reader(partitions, BEGINNING)
    try:
        ends = reader.ends()
        moved_s, before = time.monotonic(), None
        while True:
            positions = reader.positions()
            if all(positions[partition] >= end for partition, end in ends.items()):
                return found
            for record in reader.poll(0.1):
                found[Partition(record.topic, record.partition)].append(record)
            on_progress()
            if positions != before:
                moved_s, before = time.monotonic(), positions
            elif time.monotonic() - moved_s >= still_s:
                moved_s = time.monotonic()
                LOGGER.warning("%s", _stuck(positions, ends))
            if time.monotonic() > deadline:
                raise LogError(f"could not be read up to {ends} within {timeout_s:.0f} s, only to {positions}")
    finally:
        reader.close()


def _stuck(positions: Mapping[Partition, int], ends: Mapping[Partition, int]) -> str:
    short = [partition for partition, end in ends.items() if positions[partition] < end]
    where = ", ".join(f"{at.topic}[{at.number}] at {positions[at]} of {ends[at]}" for at in short)
    return f"no further: {where}. A transaction is open there; see operations.md, 'is restored for ever'"
