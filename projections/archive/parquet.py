"""Records as Parquet and back, in ClickHouse's own format: it converts what goes with the question, and keeps nothing.

Columns: topic, partition, offset, timestamp_ms, key, header_names, header_values, value. Bytes are as they were.
"""

import base64
from collections.abc import Sequence

import msgspec

from projections.archive.files import ArchiveBroken, Piece
from projections.clickhouse.client import Database
from streams.log.steps import Record

_COLUMNS = (
    ("topic", "String"),
    ("partition", "Int32"),
    ("offset", "Int64"),
    ("timestamp_ms", "Int64"),
    ("key", "Nullable(String)"),
    ("header_names", "Array(String)"),
    ("header_values", "Array(Nullable(String))"),
    ("value", "Nullable(String)"),
)
STRUCTURE = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS)
_PLACE = "topic, partition, offset, timestamp_ms, key, header_names"
TO_PARQUET = f"""
SELECT {_PLACE}, arrayMap(v -> base64Decode(v), header_values) AS header_values, base64Decode(value) AS value
FROM sent ORDER BY offset
"""  # noqa: S608 - constants of this module
FROM_PARQUET = f"""
SELECT {_PLACE}, arrayMap(v -> base64Encode(v), header_values) AS header_values, base64Encode(value) AS value
FROM sent ORDER BY offset
"""  # noqa: S608 - constants of this module

_Text = str | None
_Row = tuple[str, int, int, int, _Text, list[str], list[_Text], _Text]
_ROW = msgspec.json.Decoder(_Row)
_ENCODER = msgspec.json.Encoder()


def packed(database: Database, records: Sequence[Record]) -> bytes:
    """The file of these records, of one partition. Raises `ClickHouseError`."""
    lines = _ENCODER.encode_lines([_row(record) for record in records])
    return database.converted(lines, "JSONCompactEachRow", STRUCTURE, TO_PARQUET, "Parquet")


def unpacked(database: Database, piece: Piece, topic: str, number: int) -> list[Record]:
    """The records of a file, in order.

    Raises:
        ClickHouseError: not now, or the file cannot be read.
        ArchiveBroken: what is in it is not what its name says.
    """
    lines = database.converted(piece.path.read_bytes(), "Parquet", STRUCTURE, FROM_PARQUET, "JSONCompactEachRow")
    records = [_record(_ROW.decode(line)) for line in lines.splitlines() if line]
    before = piece.first - 1
    for record in records:
        if (record.topic, record.partition) != (topic, number) or not before < record.offset < piece.next:
            raise ArchiveBroken(
                f"{piece.path}: {record.topic}[{record.partition}]@{record.offset} does not belong there"
            )
        before = record.offset
    return records


def _row(record: Record) -> _Row:
    return (
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        record.key,
        [name for name, _ in record.headers],
        [_encoded(value) for _, value in record.headers],
        _encoded(record.value),
    )


def _record(row: _Row) -> Record:
    topic, partition, offset, timestamp_ms, key, names, values, value = row
    headers = [(name, _decoded(text)) for name, text in zip(names, values, strict=True)]
    return Record(topic, partition, offset, key, _decoded(value), headers, timestamp_ms)


def _encoded(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
