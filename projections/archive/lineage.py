"""Is the log the one that the views were made from?

A topic that was lost and made anew begins at 0 again, so it looks whole. What the views have beyond it would then be
taken for rows that no record gives, and erased. Two signs tell such a log:

1. It ends before what the views have read of it (`progress`).
2. It has grown past that since: two rows of the views stand at one place, while a record gives one row.
"""

from collections.abc import Iterable, Mapping

from projections.clickhouse.client import Database
from schemas.topics import MESSAGES, USAGE
from streams.log.log import BEGINNING, Log
from streams.log.steps import Partition

LOOKED_AT = 1_000
"""Offsets of each partition, from 0 on, that the second sign is looked for in."""
TOLD_FROM = 10
"""Places with two rows, from which on it is the log: fewer may be rows that somebody has changed by hand."""

_TWICE: Mapping[str, str] = {
    USAGE.name: (
        "usage_records WHERE log_offset < %(offsets)s GROUP BY log_partition, log_offset "
        "HAVING uniqExact(account_id, usage_day, message_id, record_kind) > 1"
    ),
    MESSAGES.name: (
        "message_rows WHERE log_offset < %(offsets)s GROUP BY log_partition, log_offset, sub "
        "HAVING uniqExact(account_id, conversation_id, message_id) > 1"
    ),
}


class OtherLog(Exception):
    """The views were not made from this log; the message says what shows it and what to do."""


def refuse_other(log: Log, database: Database, topics: Iterable[str]) -> None:
    """Nothing may be taken from the views by what this log says when it is another one than theirs.

    Raises:
        OtherLog: see there.
        LogError, ClickHouseError: not now.
    """
    for topic in topics:
        read = _read(database, topic)  # before the ends: those only grow
        reader = log.reader([Partition(topic, number) for number in range(log.partitions(topic))], BEGINNING)
        try:
            ends = {partition.number: end for partition, end in reader.ends().items()}
        finally:
            reader.close()
        if beyond := _beyond(topic, read, ends):
            raise OtherLog(f"{beyond}{_WHAT_NOW}")
        twice = database.query(
            f"SELECT count() FROM (SELECT log_partition, log_offset FROM {_TWICE[topic]})",  # noqa: S608 - ours
            {"offsets": LOOKED_AT},
        )[0][0]
        if twice >= TOLD_FROM:
            raise OtherLog(
                f"the views have two rows each at {twice} places of topic {topic}, where a record gives one{_WHAT_NOW}"
            )


_WHAT_NOW = (
    ": the topic was lost and made anew, or this is another deployment's. Nothing was changed. Restore the topic, or "
    "write what the views have into the new one (`turnlog usage export`, then `turnlog usage import`); "
    "--log-made-anew takes the log as it is, and erases what only the views have"
)


def _read(database: Database, topic: str) -> dict[int, int]:
    found = database.query(
        "SELECT log_partition, toInt64(max(next_offset)) FROM progress WHERE topic = %(topic)s GROUP BY log_partition",
        {"topic": topic},
    )
    return {int(number): int(offset) for number, offset in found}


def _beyond(topic: str, read: Mapping[int, int], ends: Mapping[int, int]) -> str:
    """The first partition of which more was read than there is, as a sentence; empty: none."""
    for number, offset in sorted(read.items()):
        end = ends.get(number, 0)
        if offset > end:
            return f"the views have read {topic}[{number}] up to offset {offset}, and the log ends at {end}"
    return ""
