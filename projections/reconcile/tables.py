"""The live tables of a topic against those beside them: digests by day first, then the rows of days that differ.

A repair writes what the log says: a wrong row is erased (that very row, by its hash), then the right one is inserted if
it is not there. Then all is compared again, so what a repair could not mend is told.
"""

from collections.abc import Callable, Mapping, Sequence

from projections.clickhouse.beside import listed
from projections.clickhouse.client import Database
from projections.clickhouse.compare import Pair, Part, Shape, digests, pairs, parts, row_hash, shape_of
from projections.reconcile.beside import Beside
from projections.reconcile.findings import Finding, Outcome, Tell
from projections.reconcile.places import verdict

USAGE_GROUPS: Mapping[str, str] = {"usage_records": "usage_day", "invoice_rows": "period"}
MESSAGE_GROUPS: Mapping[str, str] = {
    "message_rows": "toDate(submitted_at, 'UTC')",
    "reply_rows": "toDate(ended_at, 'UTC')",
    "generation_rows": "toDate(ended_at, 'UTC')",
    "conversation_rows": "toDate(at, 'UTC')",
}
GROUPS: Mapping[str, str] = {**USAGE_GROUPS, **MESSAGE_GROUPS}
AT_ONCE = 500
"""Rows of one statement of a repair."""
ROUNDS = 3

Spared = Callable[[Sequence[Pair]], Sequence[bool]]
"""Of rows that were looked at: which are not to be judged."""


def _judge_all(found: Sequence[Pair]) -> Sequence[bool]:
    return [False] * len(found)


class Comparing:
    """Compares, tells, and repairs where that is asked for."""

    def __init__(
        self,
        database: Database,
        beside: Beside,
        outcome: Outcome,
        tell: Tell,
        *,
        repair: bool,
        day: str = "",
    ) -> None:
        self._database = database
        self._beside = beside
        self._outcome = outcome
        self._tell = tell
        self._repairing = repair
        self._day = day

    def table(self, name: str, spared: Spared = _judge_all, repaired: Callable[[], None] = lambda: None) -> None:
        """One table; `repaired` is called after each repair. Raises `ClickHouseError`, `LogError`."""
        shape = shape_of(self._beside.live[name], GROUPS[name])
        where = f"{shape.group} >= '{self._day}'" if self._day else "1"
        right = digests(self._database, self._beside.names[name], shape, where)
        for tried in range(ROUNDS if self._repairing else 1):
            live = digests(self._database, name, shape, where)
            if not tried:
                self._outcome.rows += sum(digest.rows for digest in live.values())
            left = 0
            for part in parts(live, right):
                wrong = self._wrong(name, shape, part, spared)
                left += len(wrong)
                for kind, pair in wrong if not tried else ():
                    self._tell(Finding(table=name, kind=kind, key=pair.key, changes=pair.changes))
                if self._repairing and wrong:
                    self._repair(name, shape, part.group, [pair for _, pair in wrong])
                    repaired()
            self._outcome.found += 0 if tried else left
            if not left:
                break
        self._outcome.left += left

    def _wrong(self, name: str, shape: Shape, part: Part, spared: Spared) -> list[tuple[str, Pair]]:
        found = pairs(self._database, name, self._beside.names[name], shape, part)
        read = self._beside.read()
        judged = [(kind, pair) for pair in found if (kind := verdict(pair, read)) is not None and not _only_older(pair)]
        left_out = spared([pair for _, pair in judged])
        return [one for one, is_spared in zip(judged, left_out, strict=True) if not is_spared]

    def _repair(self, name: str, shape: Shape, group: str, wrong: Sequence[Pair]) -> None:
        key = ", ".join(f"`{column}`" for column in shape.key)
        columns = listed(shape.columns)
        within = f"{shape.group} = %(group)s AND ({key}) IN %(keys)s"
        for first in range(0, len(wrong), AT_ONCE):
            some = wrong[first : first + AT_ONCE]
            hashes = [pair.live_hash for pair in some if pair.live_here]
            if hashes:
                parameters = {"group": group, "keys": [pair.key for pair in some], "hashes": hashes}
                self._database.erase(name, f"{within} AND {row_hash(shape.columns)} IN %(hashes)s", parameters)
            given = [pair.key for pair in some if pair.right_here]
            if given:
                right = self._beside.names[name]
                self._database.command(
                    f"INSERT INTO {name} ({columns}) SELECT {columns} FROM {right} FINAL WHERE {within}",  # noqa: S608
                    {"group": group, "keys": given},
                )


def _only_older(pair: Pair) -> bool:
    """The event alone differs, and was written as an earlier version of its type: readers take either."""
    if len(pair.changes) != 1 or pair.changes[0].column != "event":
        return False
    (live, before), (right, now) = (_version(said) for said in (pair.changes[0].live, pair.changes[0].right))
    return live == right and 0 <= before < now


def _version(said: str) -> tuple[str, int]:
    """Name and version of an event, by what is told of its column."""
    name, _, number = said.partition(" ")[0].rpartition(".v")
    return name, int(number) if number.isdecimal() else -1
