"""Reading partitions up to the ends that they have now."""

import time
from collections.abc import Callable, Sequence

from streams.log.log import BEGINNING, Log
from streams.log.steps import LogError, Partition, Record


def read_all(
    log: Log,
    partitions: Sequence[Partition],
    *,
    timeout_s: float,
    on_progress: Callable[[], None] = lambda: None,
) -> dict[Partition, list[Record]]:
    """All committed records of these partitions that were there when this was called, or were about to be committed.

    Raises:
        LogError: not done within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    found: dict[Partition, list[Record]] = {partition: [] for partition in partitions}
    reader = log.reader(partitions, BEGINNING)
    try:
        ends = reader.ends()
        while True:
            positions = reader.positions()
            if all(positions[partition] >= end for partition, end in ends.items()):
                return found
            for record in reader.poll(0.1):
                found[Partition(record.topic, record.partition)].append(record)
            on_progress()
            if time.monotonic() > deadline:
                raise LogError(f"could not be read up to {ends} within {timeout_s:.0f} s, only to {positions}")
    finally:
        reader.close()
