"""Compacted state topics, read."""

from collections.abc import Iterable

from streams.log.steps import Record


def newest(records: Iterable[Record]) -> dict[str, bytes]:
    """The newest value of each key; a key whose newest record is a tombstone is absent."""
    values: dict[str, bytes] = {}
    for record in records:
        key = record.key or ""
        if record.value is None:
            values.pop(key, None)
        else:
            values[key] = record.value
    return values
