"""What topic `messages` says behind the place up to which it was read.

A conversation that is deleted meanwhile is erased from the live tables, while the tables beside them still have it. A
repair must not bring back what it said:

1. Rows are looked at first, then the log is read to its end: whatever the projection has erased by then is in it.
   Conversations that are deleted there are not judged.
2. After a repair it is read to its end again. A deletion that the projection came to before the repair wrote is in it
   now, and what the repair wrote of that conversation is erased, as the projection does it. One that it comes to later
   it erases itself.
"""

from collections.abc import Mapping, Sequence

from projections.clickhouse.client import Database
from projections.clickhouse.compare import Pair
from projections.views.columns import Unstorable
from projections.views.erasure import Erasure
from projections.views.rows import rows
from projections.views.tables import TABLES, ContentRow, ConversationRow
from schemas.codec import Undecodable
from streams.log.encoding import decoded
from streams.log.log import BEGINNING, Log
from streams.log.steps import Partition, Record

POLL_S = 0.2
Conversation = tuple[str, str]
"""Account and id."""


class Tail:
    """The topic from these ends on."""

    def __init__(self, log: Log, ends: Mapping[Partition, int], database: Database) -> None:
        self._reader = log.reader(list(ends), BEGINNING)
        self._reader.seek(ends)
        self._database = database
        self._deleted: dict[Conversation, ConversationRow] = {}
        self._active: set[Conversation] = set()

    def deleted(self, found: Sequence[Pair], key: Sequence[str]) -> list[bool]:
        """Which of these rows, by the columns of their key, are of a conversation that is deleted by now."""
        if found:
            self._read()
        return [self._conversation(pair, key) in self._deleted for pair in found]

    def active(self, found: Sequence[Conversation]) -> list[bool]:
        """In which of these conversations something was said or done meanwhile."""
        if found:
            self._read()
        return [one in self._active for one in found]

    def erase_deleted(self) -> None:
        """Rule 2. Raises `ClickHouseError`, `LogError`."""
        self._read()
        gone = list(self._deleted.values())
        if gone:
            Erasure(self._database).erase(gone)
            self._database.insert(TABLES[ConversationRow], gone)

    def close(self) -> None:
        """Leave the log."""
        self._reader.close()

    @staticmethod
    def _conversation(pair: Pair, key: Sequence[str]) -> Conversation:
        named = dict(zip(key, pair.key, strict=True))
        return named["account_id"], named["conversation_id"]

    def _read(self) -> None:
        ends = self._reader.ends()
        while any(self._reader.positions()[partition] < end for partition, end in ends.items()):
            for record in self._reader.poll(POLL_S):
                self._take(record)

    def _take(self, record: Record) -> None:
        try:
            made = rows(decoded(record), record.partition, record.offset)
        except (Undecodable, Unstorable):
            return
        for row in made:
            if isinstance(row, ContentRow):
                conversation = row.account_id, row.conversation_id
                self._active.add(conversation)
                if isinstance(row, ConversationRow) and row.kind == "deleted":
                    self._deleted[conversation] = row
