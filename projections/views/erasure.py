"""Erases what a deleted conversation said, and keeps it from being written again.

Known deletions are those seen by this process and those of the last days in the table; a reply can only be stored
within its deadline, long before they are forgotten. What stays is the row that says that it was deleted, and its bill.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from projections.clickhouse.client import Database
from projections.views.tables import ContentRow, ConversationRow, Row

KNOWN_MAX = 100_000
"""The oldest known deletion is forgotten beyond this many."""

_CONTENT = (("message_rows", "1"), ("reply_rows", "1"), ("conversation_rows", "kind != 'deleted'"))

_RECENT = """
SELECT account_id, conversation_id FROM conversation_rows
WHERE kind = 'deleted' AND at > now() - INTERVAL 2 DAY
ORDER BY at DESC LIMIT %(most)s
"""
_LEFT_OVER = """
SELECT DISTINCT account_id, conversation_id FROM {table}
WHERE {condition} AND (account_id, conversation_id) IN (
    SELECT account_id, conversation_id FROM conversation_rows WHERE kind = 'deleted' AND at > now() - INTERVAL 2 HOUR
)
"""

Pair = tuple[str, str]


class Erasure:
    """The conversations that are deleted, as far as they matter."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: OrderedDict[Pair, None] = OrderedDict()
        self._prepared = False

    def forget(self) -> None:
        """Partitions have changed hands: ask the table again before the next write."""
        self._prepared = False

    def prepare(self) -> None:
        """Learn of recent deletions, and erase what a process that was stopped in the middle left over.

        Raises:
            ClickHouseError: not now.
        """
        if self._prepared:
            return
        for account_id, conversation_id in reversed(self._database.query(_RECENT, {"most": KNOWN_MAX})):
            self._add((account_id, conversation_id))
        for table, condition in _CONTENT:
            statement = _LEFT_OVER.format(table=table, condition=condition)
            left = [(row[0], row[1]) for row in self._database.query(statement)]
            if left:
                self._database.delete(table, left, condition)
        self._prepared = True

    def erase(self, deleted: Sequence[ConversationRow]) -> int:
        """Erase everything of these conversations, how many; their rows of kind `deleted` are to be written next.

        Raises:
            ClickHouseError: some of it may be erased.
        """
        pairs = list(dict.fromkeys((row.account_id, row.conversation_id) for row in deleted))
        if not pairs:
            return 0
        for pair in pairs:
            self._add(pair)
        for table, condition in (*_CONTENT, ("conversation_heads", "1")):
            self._database.delete(table, pairs, condition)
        return len(pairs)

    def kept(self, found: Iterable[Row]) -> list[Row]:
        """The rows that may be written."""
        if not self._known:
            return list(found)
        return [
            row
            for row in found
            if not isinstance(row, ContentRow)
            or (row.account_id, row.conversation_id) not in self._known
            or (isinstance(row, ConversationRow) and row.kind == "deleted")
        ]

    def _add(self, pair: Pair) -> None:
        self._known[pair] = None
        self._known.move_to_end(pair)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
