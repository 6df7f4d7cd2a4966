"""How far a rebuild is: facts in a table beside the new ones, which is also what keeps a second rebuild out.

The table is made by whoever begins (making it is atomic, so one of two that begin at once wins), and whoever finds it
goes on from its facts, unless the one who wrote last still runs.
"""

import os
import socket
from collections.abc import Mapping

import msgspec
import psutil

from projections.clickhouse.client import ClickHouseError, Database
from streams.log.steps import Partition

_MAKE = """
CREATE TABLE {table} (fact String, value String, at DateTime64(9) DEFAULT now64(9))
ENGINE = ReplacingMergeTree(at) ORDER BY fact COMMENT 'How far a rebuild is; made and removed by turnlog rebuild'
"""
LOADING, EXCHANGING = "loading", "exchanging"


class UnderWay(Exception):
    """Another process rebuilds the same tables, or one has begun to; the message says what to do."""


class _Fact(msgspec.Struct, frozen=True, array_like=True):
    fact: str
    value: str


class State:
    """The facts of one rebuild, which this process owns."""

    def __init__(self, database: Database, table: str, facts: dict[str, str]) -> None:
        self._database = database
        self._table = table
        self._facts = facts

    def get(self, fact: str) -> str | None:
        """A fact, as it is known."""
        return self._facts.get(fact)

    def put(self, facts: Mapping[str, str]) -> None:
        """Durable when it returns. Raises `ClickHouseError`."""
        self._database.insert(self._table, [_Fact(fact, value) for fact, value in facts.items()])
        self._facts.update(facts)

    def offsets(self, kind: str) -> dict[Partition, int]:
        """The offsets of a kind (`position`, `end`), by partition."""
        found = {}
        for fact, value in self._facts.items():
            said, _, place = fact.partition(" ")
            if said == kind:
                topic, _, number = place.rpartition("/")
                found[Partition(topic, int(number))] = int(value)
        return found

    def put_offsets(self, kind: str, offsets: Mapping[Partition, int]) -> None:
        """As `put`."""
        if offsets:
            self.put({f"{kind} {p.topic}/{p.number}": str(offset) for p, offset in offsets.items()})


def begun(database: Database, table: str) -> dict[str, str] | None:
    """The facts of a rebuild that was begun; None: none was. Raises `ClickHouseError`."""
    if not database.query(
        "SELECT 1 FROM system.tables WHERE database = currentDatabase() AND name = %(t)s", {"t": table}
    ):
        return None
    return dict(database.query(f"SELECT fact, value FROM {table} FINAL"))  # noqa: S608 - name is ours


def own(database: Database, table: str, *, take_over: bool = False) -> State:
    """Begin, or take up what was begun.

    Raises:
        UnderWay: somebody else is at it, or may be.
        ClickHouseError: not now.
    """
    facts = begun(database, table)
    if facts is None:
        try:
            database.command(_MAKE.format(table=table))
        except ClickHouseError:
            if begun(database, table) is None:
                raise
            raise UnderWay("another process has just begun to rebuild the same tables") from None
    elif (owner := facts.get("owner")) and not take_over:
        _refuse_living(owner)
    state = State(database, table, dict(facts or {}))
    state.put({"owner": _me()})
    return state


def _me() -> str:
    process = psutil.Process()
    return f"{socket.gethostname()} {process.pid} {process.create_time():.2f}"


def _refuse_living(owner: str) -> None:
    host, pid, began = owner.split(" ")
    if host != socket.gethostname():
        raise UnderWay(
            f"process {pid} on {host} has begun to rebuild the same tables: let it end, or, if it is gone, go on in "
            "its place with --take-over, or drop what it made with --take-over --abort"
        )
    if int(pid) == os.getpid():
        return
    try:
        alive = f"{psutil.Process(int(pid)).create_time():.2f}" == began
    except psutil.Error:
        alive = False
    if alive:
        raise UnderWay(f"process {pid} rebuilds the same tables now: let it end, or stop it")
