"""The views in memory: for trying the API without servers, and for its tests. Same contract as the real ones."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from api.listing import overlaid
from api.stores import ConversationHead, FirstUse, OwnConversation, Placed, StoreDown, UsageQuery
from schemas.events import (
    Event,
    MessageSubmitted,
    PeriodClosed,
    PeriodEnded,
    RegenerationRequested,
    ReplyStored,
    UsageAdjusted,
    UsageRecorded,
)
from schemas.invoice import Amounts, Bill, Heading, Ledger, Sums, add

_TOKENS = (
    "uncached_input_tokens",
    "cache_read_input_tokens",
    "cache_write_input_tokens",
    "cache_write_long_input_tokens",
    "output_tokens",
    "reasoning_tokens",
)


class MemoryViews:
    """`Views`, filled by `write` as the projection would. `down` makes it unreachable."""

    def __init__(self) -> None:
        self._events: dict[OwnConversation, dict[int, Event]] = {}
        self._partitions: dict[OwnConversation, int] = {}
        self._progress: dict[int, int] = {}
        self._usage: dict[tuple[str, str, str, str], tuple[int, dict[str, Any]]] = {}
        self._ledgers: dict[str, Ledger] = {}
        self.down = False

    def write(self, offset: int, event: Event, partition: int = 0) -> None:
        """An event of `messages` at its place, or one of `usage`."""
        if isinstance(event, UsageRecorded | UsageAdjusted | PeriodEnded | PeriodClosed):
            self._ledgers.setdefault(event.account_id, Ledger()).apply(event)
        if isinstance(event, UsageRecorded | UsageAdjusted):
            key = (event.account_id, event.usage_day, event.reply_id, event.record_kind)
            if key not in self._usage or self._usage[key][0] < event.revision:
                self._usage[key] = event.revision, _row(event)
            return
        conversation = (str(getattr(event, "account_id", "")), event.key())
        self._events.setdefault(conversation, {})[offset] = event
        self._partitions[conversation] = partition
        self.reach(offset + 1, partition)

    def reach(self, next_offset: int, partition: int = 0) -> None:
        """Everything below this offset was written."""
        self._progress[partition] = max(self._progress.get(partition, 0), next_offset)

    async def conversation_events(self, account_id: str, conversation_id: str) -> tuple[tuple[int, Event], ...]:
        self._answer()
        return tuple(sorted(self._events.get((account_id, conversation_id), {}).items(), key=lambda item: item[0]))

    async def stored_reply(self, account_id: str, conversation_id: str, reply_id: str) -> ReplyStored | None:
        self._answer()
        events = self._events.get((account_id, conversation_id), {}).values()
        return next((e for e in events if isinstance(e, ReplyStored) and e.reply_id == reply_id), None)

    async def first_use(self, account_id: str, client_message_id: str) -> FirstUse | None:
        self._answer()
        for (account, _), events in self._events.items():
            for event in events.values() if account == account_id else ():
                if not isinstance(event, MessageSubmitted | RegenerationRequested):
                    continue
                if event.client_message_id == client_message_id:
                    return FirstUse(digest=event.body_digest)
        return None

    async def conversations(
        self, account_id: str, before: tuple[int, str] | None, limit: int
    ) -> tuple[ConversationHead, ...]:
        self._answer()
        heads = sorted(self._heads(account_id), key=lambda head: (head.updated_at_ms, head.id), reverse=True)
        return tuple(h for h in heads if before is None or (h.updated_at_ms, h.id) < before)[:limit]

    async def conversation_heads(
        self, account_id: str, conversation_ids: Sequence[str]
    ) -> tuple[ConversationHead, ...]:
        self._answer()
        return tuple(head for head in self._heads(account_id) if head.id in conversation_ids)

    def _heads(self, account_id: str) -> Iterable[ConversationHead]:
        for (account, _), events in self._events.items():
            head = overlaid(None, (event for _, event in sorted(events.items()))) if account == account_id else None
            if head is not None:
                yield head

    async def progress(self) -> Mapping[int, int]:
        self._answer()
        return dict(self._progress)

    async def events_between(
        self, conversations: Sequence[OwnConversation], ranges: Mapping[int, tuple[int, int]]
    ) -> tuple[Placed, ...]:
        self._answer()
        found: list[Placed] = []
        for conversation in conversations:
            first, behind = ranges.get(self._partitions.get(conversation, -1), (0, 0))
            events = sorted(self._events.get(conversation, {}).items(), key=lambda item: item[0])
            found += [Placed(conversation, offset, event) for offset, event in events if first <= offset < behind]
        return tuple(found)

    async def usage_totals(self, account_id: str, query: UsageQuery) -> tuple[dict[str, Any], ...]:
        self._answer()
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        name = {"day": "usage_day", "model": "model", "conversation": "conversation_id"}.get(query.group_by or "")
        for row in self._selected(account_id, query):
            groups.setdefault((row[name] if name else "", row["currency"]), []).append(row)
        return tuple(
            {
                "group": group,
                "currency": currency,
                "replies": sum(row["record_kind"] == "reply" for row in rows),
                **{column: sum(row[column] for row in rows) for column in _TOKENS},
                "cost": str(sum((Decimal(row["cost"]) for row in rows), Decimal(0))),
            }
            for (group, currency), rows in sorted(groups.items())
        )

    async def bill_sums(self, account_id: str) -> Mapping[Heading, Amounts]:
        self._answer()
        sums: Sums = {}
        for _, held in self._ledger(account_id).records():
            add(sums, held.heading, held.amounts)
        return sums

    async def closed_bills(self, account_id: str) -> tuple[Bill, ...]:
        self._answer()
        return tuple(bill for bill in self._ledger(account_id).bills() if bill.status == "closed")

    async def records_of(self, account_id: str, reply_id: str) -> tuple[dict[str, Any], ...]:
        self._answer()
        return tuple(
            {
                "record_kind": kind,
                "usage_day": day,
                "currency": held.heading.currency,
                "cost": str(held.amounts.amount),
                "reason": held.heading.why,
            }
            for (day, reply, kind), held in self._ledger(account_id).records()
            if reply == reply_id
        )

    def _ledger(self, account_id: str) -> Ledger:
        return self._ledgers.get(account_id) or Ledger()

    async def usage_records(
        self, account_id: str, query: UsageQuery, after: tuple[str, str, str] | None, limit: int
    ) -> tuple[dict[str, Any], ...]:
        self._answer()
        found = [
            row
            for row in self._selected(account_id, query)
            if after is None or (row["usage_day"], row["message_id"], row["record_kind"]) > after
        ]
        return tuple(found[:limit])

    async def ping(self) -> None:
        self._answer()

    async def close(self) -> None:
        return

    def _selected(self, account_id: str, query: UsageQuery) -> Iterable[dict[str, Any]]:
        for (account, day, _, _), (_, row) in sorted(self._usage.items(), key=lambda item: item[0]):
            if account == account_id and query.from_day <= day <= query.to_day:
                yield row

    def _answer(self) -> None:
        if self.down:
            raise StoreDown("clickhouse", "it is down")


def _row(event: UsageRecorded | UsageAdjusted) -> dict[str, Any]:
    """A record as it is listed; of a correction most is empty."""
    own = {
        "usage_day": event.usage_day,
        "message_id": event.reply_id,
        "record_kind": event.record_kind,
        "cost": event.cost,
        "currency": event.currency,
    }
    if isinstance(event, UsageAdjusted):
        none = dict.fromkeys(("conversation_id", "model", "status", "price_version"), "") | dict.fromkeys(_TOKENS, 0)
        return {**none, "counted": True, "charged": True, **own, "ended_at_ms": event.adjusted_at_ms}
    more = ("conversation_id", "model", "status", *_TOKENS, "counted", "charged", "price_version", "ended_at_ms")
    return own | {name: getattr(event, name) for name in more}
