"""The only module that knows ClickHouse's client library: rows in, tables out.

    ClickHouseError
    ├── ClickHouseUnavailable   try again later (not reachable, overloaded, not provisioned yet)
    └── ClickHouseRefused       what was sent is wrong; trying again does not help

Every setting that the result depends on is given, whatever the server's defaults are.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import clickhouse_connect
import msgspec
from clickhouse_connect.driver.exceptions import ClickHouseError as DriverError
from clickhouse_connect.driver.external import ExternalData
from urllib3.exceptions import HTTPError

INSERT_SETTINGS: Mapping[str, str] = {
    "async_insert": "0",  # the rows come in batches, and are durable when the answer comes
    "insert_deduplicate": "0",  # identity is in the sort key, not in the block
    "deduplicate_blocks_in_dependent_materialized_views": "0",
    "date_time_input_format": "basic",
    "input_format_parallel_parsing": "0",
    "input_format_json_read_bools_as_numbers": "1",
    "input_format_null_as_default": "0",
    "materialized_views_ignore_errors": "0",
    "max_insert_threads": "1",
    "max_partitions_per_insert_block": "0",  # a backlog of a year is many months, and right
    "session_timezone": "UTC",
}
READ_SETTINGS: Mapping[str, str] = {
    "session_timezone": "UTC",
    "do_not_merge_across_partitions_select_final": "0",
    "optimize_move_to_prewhere_if_final": "0",
}
STREAM_BYTES = 1_048_576
DELETE_SETTINGS: Mapping[str, str] = {"lightweight_deletes_sync": "2", "mutations_sync": "2"}

_REFUSALS = frozenset({6, 26, 27, 33, 38, 41, 53, 62, 69, 70, 72, 117, 131, 321, 407})
"""Codes of values that cannot be parsed or stored, and of statements that make no sense."""

_ENCODER = msgspec.json.Encoder()

for _noisy in ("urllib3", "clickhouse_connect"):
    # They warn at each attempt; the caller says once what is wrong, and when it is over.
    logging.getLogger(_noisy).setLevel(logging.ERROR)


class ClickHouseError(RuntimeError):
    """Base of what this module raises."""


class ClickHouseUnavailable(ClickHouseError):
    """Not now; the statement may or may not have been done."""


class ClickHouseRefused(ClickHouseError):
    """Never, as it stands."""


class Block(NamedTuple):
    """Rows as they are sent."""

    columns: list[str]
    lines: bytes


def block_of(rows: Sequence[msgspec.Struct]) -> Block:
    """Rows of one kind, at least one, encoded."""
    return Block([field.encode_name for field in msgspec.structs.fields(rows[0])], _ENCODER.encode_lines(rows))


class Database:
    """A database (by its HTTP address), connected to when it is first used. One thread."""

    def __init__(self, url: str, database: str, *, timeout_s: float = 20.0) -> None:
        self._url = url
        self._database = database
        self._timeout_s = timeout_s
        self._client: Any = None

    def insert(self, table: str, rows: Sequence[msgspec.Struct]) -> None:
        """Insert rows (structs written as arrays, members named as the columns); durable when this returns.

        Raises:
            ClickHouseError: the rows may or may not be there.
        """
        if rows:
            self.insert_block(table, block_of(rows))

    def insert_block(self, table: str, block: "Block") -> None:
        """As `insert`, of rows that are encoded already."""
        self._do(
            lambda client: client.raw_insert(
                table, block.columns, block.lines, settings=dict(INSERT_SETTINGS), fmt="JSONCompactEachRow"
            )
        )

    def command(
        self, statement: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        """A statement without a result. Raises `ClickHouseError`."""
        self._do(lambda client: client.command(statement, parameters=parameters, settings=dict(settings or {})))

    def query(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """The rows of a result. Raises `ClickHouseError`."""
        result = self._do(lambda client: client.query(statement, parameters=parameters, settings=dict(READ_SETTINGS)))
        return [tuple(row) for row in result.result_rows]

    def raw(
        self, statement: str, parameters: Mapping[str, Any], form: str, settings: Mapping[str, str] | None = None
    ) -> bytes:
        """A result as bytes of one of ClickHouse's formats. Raises `ClickHouseError`."""
        chosen = {**READ_SETTINGS, **(settings or {})}
        found: bytes = self._do(
            lambda client: client.raw_query(statement, parameters=dict(parameters), settings=chosen, fmt=form)
        )
        return found

    def stream(
        self, statement: str, parameters: Mapping[str, Any], form: str, settings: Mapping[str, str] | None = None
    ) -> Iterator[bytes]:
        """As `raw`, piece by piece. It may break off without an error: the format has to show its end."""
        chosen = {**READ_SETTINGS, **(settings or {})}
        source = self._do(
            lambda client: client.raw_stream(statement, parameters=dict(parameters), settings=chosen, fmt=form)
        )
        try:
            while piece := source.read(STREAM_BYTES):
                yield piece
        except (DriverError, HTTPError, OSError) as failure:
            raise _named(failure) from failure
        finally:
            source.close()

    def delete(self, table: str, pairs: Iterable[tuple[str, str]], condition: str = "1") -> None:
        """Erase the rows of these (account_id, conversation_id). Raises `ClickHouseError`."""
        statement = (
            f"DELETE FROM {table} WHERE (account_id, conversation_id) "  # noqa: S608 - names are ours
            f"IN %(pairs)s AND {condition}"
        )
        self.command(statement, {"pairs": list(pairs)}, DELETE_SETTINGS)

    def erase(self, table: str, condition: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Erase the rows of a condition. Raises `ClickHouseError`."""
        self.command(f"DELETE FROM {table} WHERE {condition}", parameters, DELETE_SETTINGS)  # noqa: S608 - ours

    def converted(self, data: bytes, sent_as: str, structure: str, query: str, wanted: str) -> bytes:
        """The result of a query over the table `sent`, which goes along with it; formats by ClickHouse's names.

        Raises:
            ClickHouseError: not now, or the data is not in that format.
        """
        sent = ExternalData(file_name="sent", data=data, fmt=sent_as, structure=structure)
        found = self._do(
            lambda client: client.raw_query(query, settings=dict(READ_SETTINGS), fmt=wanted, external_data=sent)
        )
        return bytes(found)

    def close(self) -> None:
        """Drop the connection; the next call connects again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _do(self, use: Any) -> Any:
        try:
            if self._client is None:
                self._client = _connect(self._url, self._database, self._timeout_s)
            return use(self._client)
        except (DriverError, OSError) as failure:
            self.close()
            raise _named(failure) from failure


def _connect(url: str, database: str, timeout_s: float) -> Any:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    return clickhouse_connect.get_client(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or (8443 if secure else 8123),
        username=unquote(parts.username) if parts.username else "default",
        password=unquote(parts.password or ""),
        secure=secure,
        database=database,
        connect_timeout=min(5.0, timeout_s),
        send_receive_timeout=timeout_s,
        autogenerate_session_id=False,
        compress=False,
    )


def _named(failure: Exception) -> ClickHouseError:
    text = str(failure)[:1_000]
    code = getattr(failure, "code", None)
    if isinstance(code, int) and code in _REFUSALS:
        return ClickHouseRefused(text)
    return ClickHouseUnavailable(text)
