"""The only module that knows the Redis client library: prepared commands in, answers out, on one server or a cluster.

Every failure is one of three things to the caller:

    StoreError
    ├── StoreUnavailable   try again later; what was sent may or may not have been done
    ├── FunctionMissing    load the library, then try again
    └── StoreRefused       a command that is wrong; trying again does not help

After a failure the connection is dropped, so answers are never taken for those of other commands.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from redis import Redis
from redis import exceptions as failures
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

_Connection = Any
"""A connection of the library, whose methods are not typed."""

ROUND_BYTES = 1_048_576
"""So much is sent before the answers to it are read."""

_LATER = ("MISCONF", "NOREPLICAS", "BUSY ", "MASTERDOWN", "CLUSTERDOWN", "UNKILLABLE", "LOADING", "READONLY", "OOM")


class StoreError(RuntimeError):
    """Base of what this module raises."""


class StoreUnavailable(StoreError):
    """The server cannot be reached, or cannot write now (loading, read-only, out of memory, no quorum)."""


class FunctionMissing(StoreError):
    """The server has no such function: it was restarted empty, or flushed."""


class StoreRefused(StoreError):
    """The server understood and will never do it."""


class Command(msgspec.Struct, frozen=True):
    """A command as it goes over the wire, and a key that tells the node of a cluster."""

    key: bytes
    packed: bytes


def pack(words: Sequence[bytes]) -> bytes:
    """A command in the Redis protocol."""
    return b"*%d\r\n%b" % (len(words), bulks(words))


def bulks(words: Iterable[bytes]) -> bytes:
    """Words in the Redis protocol, without the count before them."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


class Store:
    """A connection to the server (one per node of a cluster), made when it is first needed. One thread."""

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        self._url = url
        self._options: dict[str, Any] = {
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "socket_keepalive": True,
            "retry": Retry(NoBackoff(), 0),
        }
        self._one: _Connection = None
        self._cluster: Any = None
        self._nodes: dict[str, _Connection] = {}

    @property
    def clustered(self) -> bool:
        """Whether each call may only touch keys of one slot. Connects; raises `StoreUnavailable`."""
        self._ready()
        return self._cluster is not None

    def call(self, commands: Sequence[Command]) -> list[Any]:
        """Send all, in order (per node); the answers, in the same order.

        Raises:
            StoreError: one failed; the others may have been done.
        """
        self._ready()
        try:
            if self._cluster is None:
                return _exchange(self._connection(), [command.packed for command in commands])
            return self._call_nodes(commands)
        except failures.RedisError as failure:
            self.close()
            raise _named(failure) from failure

    def load_library(self, source: str) -> bool:
        """Load a library of functions on every node that can write; whether any did not have it.

        Raises:
            StoreError: as `call`.
        """
        command = pack([b"FUNCTION", b"LOAD", source.encode()])
        self._ready()
        loaded = False
        try:
            for connection in self._writers():
                loaded |= _load(connection, command)
        except failures.RedisError as failure:
            self.close()
            raise _named(failure) from failure
        return loaded

    def close(self) -> None:
        """Drop all connections; the next call connects again."""
        for connection in (self._one, *self._nodes.values()):
            if connection is not None:
                connection.disconnect()
        cluster, self._cluster = self._cluster, None
        self._one = None
        self._nodes.clear()
        if cluster is not None:
            cluster.close()

    def _ready(self) -> None:
        if self._one is not None:
            return
        try:
            connection: _Connection = Redis.from_url(self._url, **self._options).connection_pool.make_connection()
            connection.connect()
            [info] = _exchange(connection, [pack([b"INFO", b"cluster"])])
            if b"cluster_enabled:1" in bytes(info):
                self._cluster = RedisCluster.from_url(self._url, **self._options)
            self._one = connection
        except ValueError as failure:
            raise StoreRefused(f"the address is none, such as redis://127.0.0.1:6379/0: {failure}") from failure
        except failures.RedisError as failure:
            self.close()
            raise _named(failure) from failure

    def _connection(self) -> _Connection:
        if self._one is None:
            raise StoreUnavailable("not connected")
        return self._one

    def _node(self, name: str) -> _Connection:
        connection = self._nodes.get(name)
        if connection is None and self._cluster is not None:
            node = self._cluster.get_node(node_name=name)
            client = self._cluster.get_redis_connection(node)
            connection = client.connection_pool.make_connection()
            connection.connect()
            self._nodes[name] = connection
        if connection is None:
            raise StoreUnavailable(f"node {name} is gone")
        return connection

    def _writers(self) -> list[_Connection]:
        if self._cluster is None:
            return [self._connection()]
        return [self._node(node.name) for node in self._cluster.get_primaries()]

    def _call_nodes(self, commands: Sequence[Command]) -> list[Any]:
        cluster = self._cluster
        if cluster is None:
            raise StoreUnavailable("not connected")
        by_node: dict[str, list[int]] = {}
        for index, command in enumerate(commands):
            node = cluster.get_node_from_key(command.key)
            if node is None:
                raise StoreUnavailable("no node serves the slot")
            by_node.setdefault(node.name, []).append(index)
        answers: list[Any] = [None] * len(commands)
        for name, indexes in by_node.items():
            found = _exchange(self._node(name), [commands[index].packed for index in indexes])
            for index, answer in zip(indexes, found, strict=True):
                answers[index] = answer
        return answers


def _exchange(connection: _Connection, commands: Sequence[bytes]) -> list[Any]:
    answers: list[Any] = []
    pending: list[bytes] = []
    size = 0
    for command in commands:
        pending.append(command)
        size += len(command)
        if size >= ROUND_BYTES:
            answers += _round(connection, pending)
            pending, size = [], 0
    return answers + _round(connection, pending) if pending else answers


def _round(connection: _Connection, commands: Sequence[bytes]) -> list[Any]:
    connection.send_packed_command([b"".join(commands)], check_health=False)
    return [connection.read_response(disable_decoding=True) for _ in commands]


def _load(connection: _Connection, command: bytes) -> bool:
    try:
        _exchange(connection, [command])
    except failures.ResponseError as failure:
        if "already exists" in str(failure):
            return False
        raise
    return True


def _named(failure: failures.RedisError) -> StoreError:
    text = f"{type(failure).__name__}: {failure}"
    if isinstance(failure, failures.ResponseError):
        if "Function not found" in text:
            return FunctionMissing(text)
        later = (
            failures.ReadOnlyError,
            failures.OutOfMemoryError,
            failures.ClusterDownError,
            failures.AskError,
            failures.MovedError,
            failures.TryAgainError,
        )
        if not isinstance(failure, later) and not any(word in text for word in _LATER):
            return StoreRefused(text)
    return StoreUnavailable(text)
