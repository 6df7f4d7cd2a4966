"""The stores in memory: for trying the API without servers, and for its tests. Same contracts as the real ones."""

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

from api import rate as rates
from api.stores import (
    BucketState,
    Claim,
    ConversationHead,
    Entry,
    FirstUse,
    HotConversation,
    Live,
    Page,
    Rate,
    StoreDown,
    UsageQuery,
)
from api.tails import END_MARK, Tail, split
from schemas.conversation import fold
from schemas.events import Event, MessageSubmitted, RegenerationRequested, ReplyStored, UsageRecorded

TAIL_BYTES_MAX = 131_072


class MemoryHot:
    """`HotStore` and `LiveFrames` in one, with the buffer's side of it (`publish`). `down` makes it unreachable."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._buckets: dict[str, int] = {}
        self._claims: dict[tuple[str, str], str] = {}
        self._claims_since_ms: int | None = None
        self._deleted: set[str] = set()
        self._hot: dict[str, list[tuple[int, Event]]] = {}
        self._hot_conversations: dict[str, dict[str, int]] = {}
        self._frames: dict[str, list[bytes]] = {}
        self._heads: dict[str, dict[str, str]] = {}
        self._followers: dict[str, list[MemorySubscription]] = {}
        self.down = False

    @property
    def connected(self) -> bool:
        return not self.down

    async def enter(self, account_id: str, conversation_id: str, rate: Rate, claim: Claim | None) -> Entry:
        self._answer()
        claimed = None
        if claim is not None:
            key = (account_id, claim.client_message_id)
            claimed = self._claims.get(key)
            self._claims.setdefault(key, claim.digest)
        return Entry(
            bucket=self._take(account_id, rate, 1),
            claimed=claimed,
            claims_since_ms=self._claims_since_ms,
            deleted=conversation_id in self._deleted,
        )

    async def take(self, account_id: str, rate: Rate, cost: int) -> BucketState:
        self._answer()
        return self._take(account_id, rate, cost)

    async def unclaim(self, account_id: str, claim: Claim) -> None:
        self._answer()
        self._claims.pop((account_id, claim.client_message_id), None)

    async def claims_begin(self, since_ms: int) -> None:
        self._answer()
        if self._claims_since_ms is None:
            self._claims_since_ms = since_ms

    async def remember(
        self,
        account_id: str,
        conversation_id: str,
        events: Sequence[tuple[int, Event]],
        now_ms: int,
        claim: Claim | None = None,
    ) -> None:
        self._answer()
        self._hot.setdefault(conversation_id, []).extend(events)
        self._hot_conversations.setdefault(account_id, {})[conversation_id] = now_ms
        if claim is not None:
            self._claims[account_id, claim.client_message_id] = claim.digest + "+"

    async def recent(self, conversation_id: str) -> HotConversation:
        self._answer()
        events = sorted(self._hot.get(conversation_id, ()), key=lambda item: item[0])
        return HotConversation(deleted=conversation_id in self._deleted, events=tuple(events))

    async def recent_conversations(self, account_id: str) -> tuple[str, ...]:
        self._answer()
        times = self._hot_conversations.get(account_id, {})
        return tuple(sorted(times, key=lambda conversation_id: -times[conversation_id]))

    async def mark_deleted(self, conversation_id: str, *, deleted: bool) -> None:
        self._answer()
        (self._deleted.add if deleted else self._deleted.discard)(conversation_id)

    async def page(self, reply_id: str, conversation_id: str, after: int, limit: int) -> Page:
        self._answer()
        frames = self._frames.get(reply_id, [])
        return Page(
            frames=tuple(frames[after : after + limit]),
            newest=len(frames),
            ended=bool(frames) and END_MARK in frames[-1],
            deleted=conversation_id in self._deleted,
        )

    async def live(self, reply_ids: Sequence[str]) -> tuple[Live, ...]:
        self._answer()
        return tuple(Live(self._heads.get(r, {}), tuple(self._frames.get(r, ()))) for r in reply_ids)

    async def ping(self) -> None:
        self._answer()

    async def close(self) -> None:
        return

    def follow(self, reply_id: str, wake: Callable[[], None], again: Callable[[], None]) -> "MemorySubscription":
        return MemorySubscription(self, reply_id, wake, again)

    def publish(self, reply_id: str, first: int, frames: bytes, head: dict[str, str] | None = None) -> None:
        """As the buffer's projection: append by offset and tell the followers."""
        held = self._frames.setdefault(reply_id, [])
        pieces = split(frames)
        held.extend(pieces[len(held) + 1 - first :])
        self._heads.setdefault(reply_id, {}).update(head or {})
        for follower in list(self._followers.get(reply_id, ())):
            follower.tail.add(first, first + len(pieces) - 1, frames)
            follower.wake()

    def expire(self, reply_id: str) -> None:
        """The buffer's retention is over."""
        self._frames.pop(reply_id, None)
        self._heads.pop(reply_id, None)

    def lose(self) -> None:
        """Everything is gone, as after FLUSHALL."""
        self.__init__(self._now_us)  # type: ignore[misc]

    def subscribed(self, subscription: "MemorySubscription") -> None:
        """A reader follows."""
        self._followers.setdefault(subscription.reply_id, []).append(subscription)

    def left(self, subscription: "MemorySubscription") -> None:
        """A reader leaves."""
        followers = self._followers.get(subscription.reply_id, [])
        if subscription in followers:
            followers.remove(subscription)

    @property
    def followed(self) -> tuple[str, ...]:
        """Replies with followers."""
        return tuple(reply_id for reply_id, followers in self._followers.items() if followers)

    def _take(self, account_id: str, rate: Rate, cost: int) -> BucketState:
        after, state = rates.take(self._buckets.get(account_id, 0), rate, cost, self._now_us())
        self._buckets[account_id] = after
        return state

    def _answer(self) -> None:
        if self.down:
            raise StoreDown("redis", "it is down")


class MemorySubscription:
    """A place of its own in a reply's stream, confirmed at once."""

    def __init__(self, store: MemoryHot, reply_id: str, wake: Callable[[], None], again: Callable[[], None]) -> None:
        self._store = store
        self.reply_id = reply_id
        self.wake = wake
        self.again = again
        self.tail = Tail(TAIL_BYTES_MAX)
        store.subscribed(self)

    @property
    def confirmed(self) -> bool:
        return not self._store.down

    def close(self) -> None:
        self._store.left(self)


class MemoryViews:
    """`Views`, filled by `write` as the projection would. `down` makes it unreachable."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, str], dict[int, Event]] = {}
        self._usage: dict[tuple[str, str, str], UsageRecorded] = {}
        self.down = False

    def write(self, offset: int, event: Event) -> None:
        """An event of `messages` at its offset, or a usage record."""
        if isinstance(event, UsageRecorded):
            key = (event.usage_day, event.reply_id, event.record_kind)
            if key not in self._usage or self._usage[key].revision < event.revision:
                self._usage[key] = event
            return
        conversation = (str(getattr(event, "account_id", "")), event.key())
        self._events.setdefault(conversation, {})[offset] = event

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
        heads: list[ConversationHead] = []
        for (account, conversation_id), events in self._events.items():
            folded = fold(event for _, event in sorted(events.items())) if account == account_id else None
            if folded is not None and not folded.deleted:
                heads.append(
                    ConversationHead(
                        id=conversation_id,
                        title=folded.title,
                        created_at_ms=folded.created_at_ms,
                        updated_at_ms=folded.updated_at_ms,
                        message_count=len(folded.messages),
                    )
                )
        heads.sort(key=lambda head: (head.updated_at_ms, head.id), reverse=True)
        return tuple(h for h in heads if before is None or (h.updated_at_ms, h.id) < before)[:limit]

    async def usage_totals(self, account_id: str, query: UsageQuery) -> tuple[dict[str, Any], ...]:
        self._answer()
        groups: dict[tuple[str, str], list[UsageRecorded]] = {}
        name = {"day": "usage_day", "model": "model", "conversation": "conversation_id"}.get(query.group_by or "")
        for record in self._selected(account_id, query):
            group = str(getattr(record, name)) if name else ""
            groups.setdefault((group, record.currency), []).append(record)
        return tuple(
            {
                "group": group,
                "currency": currency,
                "replies": len({record.reply_id for record in records}),
                "uncached_input_tokens": sum(r.uncached_input_tokens for r in records),
                "cache_read_input_tokens": sum(r.cache_read_input_tokens for r in records),
                "cache_write_input_tokens": sum(r.cache_write_input_tokens for r in records),
                "output_tokens": sum(r.output_tokens for r in records),
                "cost": str(sum((Decimal(r.cost) for r in records), Decimal(0))),
            }
            for (group, currency), records in sorted(groups.items())
        )

    async def usage_records(
        self, account_id: str, query: UsageQuery, after: tuple[str, str, str] | None, limit: int
    ) -> tuple[dict[str, Any], ...]:
        self._answer()
        found = [
            {
                "usage_day": r.usage_day,
                "message_id": r.reply_id,
                "record_kind": r.record_kind,
                "conversation_id": r.conversation_id,
                "model": r.model,
                "status": r.status,
                "uncached_input_tokens": r.uncached_input_tokens,
                "cache_read_input_tokens": r.cache_read_input_tokens,
                "cache_write_input_tokens": r.cache_write_input_tokens,
                "output_tokens": r.output_tokens,
                "counted": r.counted,
                "cost": r.cost,
                "currency": r.currency,
                "price_version": r.price_version,
                "ended_at_ms": r.ended_at_ms,
            }
            for r in self._selected(account_id, query)
            if after is None or (r.usage_day, r.reply_id, r.record_kind) > after
        ]
        return tuple(found[:limit])

    async def ping(self) -> None:
        self._answer()

    async def close(self) -> None:
        return

    def _selected(self, account_id: str, query: UsageQuery) -> Iterable[UsageRecorded]:
        for _, record in sorted(self._usage.items()):
            if record.account_id == account_id and query.from_day <= record.usage_day <= query.to_day:
                yield record

    def _answer(self) -> None:
        if self.down:
            raise StoreDown("clickhouse", "it is down")
