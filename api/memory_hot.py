"""The hot store in memory: for trying the API without servers, and for its tests. Same contract as the real one."""

from collections.abc import Callable, Mapping, Sequence

from api.limits import Demand, Looked, Reserved, looked, outcome
from api.limits_twin import LimitsTwin, Settled
from api.stores import Claim, Entry, HotConversation, Live, Page, PageLimit, StoreDown
from api.tails import END_MARK, Tail, split
from schemas.events import Event
from schemas.tiers import Bucket, Holder

TAIL_BYTES_MAX = 65_536


class MemoryHot:
    """`HotStore` and `LiveFrames` in one, with the buffer's side of it (`publish`)."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._limits = LimitsTwin()
        self.whole = True
        """The buckets count; after a loss not before their projection has made them again."""
        self._claims: dict[tuple[str, str], str] = {}
        self._claims_since_ms: int | None = None
        self._deleted: set[str] = set()
        self._keys_used: dict[str, dict[str, int]] = {}
        self._hot: dict[str, list[tuple[int, Event]]] = {}
        self._hot_conversations: dict[str, dict[str, int]] = {}
        self._frames: dict[str, list[bytes]] = {}
        self._heads: dict[str, dict[str, str]] = {}
        self._followers: dict[str, list[MemorySubscription]] = {}
        self._down = False

    @property
    def down(self) -> bool:
        """It cannot be reached. When it is up again, every follower is told to read the list, as after a reconnect."""
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        self._down = down
        for followers in [] if down else list(self._followers.values()):
            for follower in list(followers):
                follower.tail.clear()
                follower.again()

    @property
    def connected(self) -> bool:
        return not self.down

    async def enter(self, demand: Demand, claim: Claim | None) -> Entry:
        self._answer()
        claimed = None
        if claim is not None:
            key = (demand.holder.account_id, claim.client_message_id)
            claimed = self._claims.get(key)
            self._claims.setdefault(key, claim.digest)
        return Entry(
            reserved=await self.reserve(demand),
            claimed=claimed,
            claims_since_ms=self._claims_since_ms,
            deleted=demand.conversation_id in self._deleted,
        )

    async def reserve(self, demand: Demand) -> Reserved:
        self._answer()
        return Reserved(self.whole, outcome(self._limits.reserve(demand, self._now_us()), demand))

    async def release(self, holder: Holder, reply_id: str) -> None:
        self._answer()
        self._limits.release(holder, reply_id)

    async def look(self, holder: Holder, buckets: Sequence[Bucket], running_max: int) -> Looked | None:
        self._answer()
        return looked(self._limits.look(holder, buckets, self._now_us()), buckets, running_max) if self.whole else None

    async def unclaim(self, account_id: str, claim: Claim) -> None:
        self._answer()
        key = (account_id, claim.client_message_id)
        if self._claims.get(key) == claim.digest:
            del self._claims[key]

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
        confirmed: Demand | None = None,
    ) -> None:
        self._answer()
        if confirmed is not None:
            self._limits.confirm(confirmed, self._now_us())
        self._hot.setdefault(conversation_id, []).extend(events)
        self._hot_conversations.setdefault(account_id, {})[conversation_id] = now_ms
        if claim is not None:
            self._claims[account_id, claim.client_message_id] = claim.digest + "+"

    async def recent(self, conversation_id: str) -> HotConversation:
        self._answer()
        events = sorted(self._hot.get(conversation_id, ()), key=lambda item: item[0])
        return HotConversation(deleted=conversation_id in self._deleted, events=tuple(events))

    async def recent_conversations(self, account_id: str) -> dict[str, HotConversation]:
        times = self._hot_conversations.get(account_id, {})
        newest_first = sorted(times, key=lambda conversation_id: -times[conversation_id])
        return {conversation_id: await self.recent(conversation_id) for conversation_id in newest_first}

    async def mark_deleted(self, conversation_id: str, *, deleted: bool) -> None:
        self._answer()
        (self._deleted.add if deleted else self._deleted.discard)(conversation_id)

    async def page(self, reply_id: str, conversation_id: str, after: int, limit: PageLimit) -> Page:
        self._answer()
        held = self._frames.get(reply_id, [])
        found: list[bytes] = []
        for frame in held[after : after + limit.frames]:
            if sum(map(len, found)) >= limit.bytes:
                break
            found.append(frame)
        return Page(
            frames=tuple(found),
            newest=len(held),
            ended=bool(held) and END_MARK in held[-1],
            cut=self._heads.get(reply_id, {}).get("status") == "cut",
            deleted=conversation_id in self._deleted,
            opened=reply_id in self._heads,
        )

    async def live(self, reply_ids: Sequence[str]) -> tuple[Live, ...]:
        self._answer()
        return tuple(Live(self._heads.get(r, {}), tuple(self._frames.get(r, ()))) for r in reply_ids)

    async def note_keys(self, used: Mapping[str, Mapping[str, int]]) -> None:
        self._answer()
        for account_id, keys in used.items():
            self._keys_used.setdefault(account_id, {}).update(keys)

    async def keys_used(self, account_id: str) -> dict[str, int]:
        self._answer()
        return dict(self._keys_used.get(account_id, {}))

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
        for follower in [] if self._down else list(self._followers.get(reply_id, ())):
            follower.tail.add(first, first + len(pieces) - 1, frames)
            follower.wake()

    def settle(self, holder: Holder, end: Settled) -> None:
        """As the limits' projection."""
        self._limits.settle(holder, end, self._now_us())

    def expire(self, reply_id: str) -> None:
        """The buffer's retention is over."""
        self._frames.pop(reply_id, None)
        self._heads.pop(reply_id, None)

    def lose(self) -> None:
        """Everything is gone, as after FLUSHALL."""
        self._keys_used.clear()
        for held in (self._claims, self._hot, self._hot_conversations, self._frames, self._heads):
            held.clear()
        self._limits.clear()
        self.whole = False
        self._deleted.clear()
        self._claims_since_ms = None

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
