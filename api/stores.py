"""What the API needs of its stores. Each interface has two implementations: the real server, and one in memory.

All calls raise `StoreDown` when the store cannot be reached or does not answer in time; never anything else.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from api.limits import Demand, Looked, Reserved
from api.tails import Tail
from schemas.events import Event, ReplyStored
from schemas.invoice import Amounts, Bill, Heading
from schemas.tiers import Bucket, Holder


class StoreDown(Exception):
    """A store does not answer. `store` names it for people: `redis` or `clickhouse`."""

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(f"{store}: {reason}")
        self.store = store
        self.reason = reason


class PageLimit(msgspec.Struct, frozen=True):
    """How much is read at once; bytes may be passed by some frames."""

    frames: int
    bytes: int


class Page(msgspec.Struct, frozen=True):
    """Frames of a reply's stream from the buffer."""

    frames: tuple[bytes, ...]
    """The first of those after the cursor, within the limit."""
    newest: int
    """How many the buffer has (its newest offset); 0 when it has nothing of this reply."""
    ended: bool
    """The newest one is `ended`."""
    cut: bool
    """The reply outgrew the buffer: there will be no more frames, though the reply goes on."""
    deleted: bool
    """The conversation was deleted."""
    opened: bool = False
    """The buffer knows the reply, also while it has no frames of it."""


class Claim(msgspec.Struct, frozen=True):
    """What a send claims: the client's id with the digest of the body."""

    client_message_id: str
    digest: str


class Entry(msgspec.Struct, frozen=True):
    """What the hot store says at the door of a send."""

    reserved: Reserved
    claimed: str | None
    """What stood under the client's id before this claim (`<digest>` or `<digest>+`); None: nothing, it is ours now."""
    claims_since_ms: int | None
    """Since when claims are complete; 0: since the first message. None: the store has lost them (or is new)."""
    deleted: bool


class Live(msgspec.Struct, frozen=True):
    """Head and frames of a reply, as the buffer has them."""

    head: Mapping[str, str]
    frames: tuple[bytes, ...]


class HotConversation(msgspec.Struct, frozen=True):
    """What was written to a conversation lately: (offset in its partition of `messages`, event), oldest first."""

    deleted: bool
    events: tuple[tuple[int, Event], ...]


class HotStore(Protocol):
    """What is wanted at once and may be lost: stream buffers, claims, buckets, the newest events."""

    async def enter(self, demand: Demand, claim: Claim | None) -> Entry:
        """Reserve what a send needs, and claim the client's message id."""

    async def reserve(self, demand: Demand) -> Reserved:
        """Reserve what a send needs. Under a reply's id that stands nothing is taken."""

    async def release(self, holder: Holder, reply_id: str) -> None:
        """Give back what was reserved for a send of which nothing came."""

    async def look(self, holder: Holder, buckets: Sequence[Bucket], running_max: int) -> Looked | None:
        """How these buckets stand; None: what is in them does not count, something was lost."""

    async def unclaim(self, account_id: str, claim: Claim) -> None:
        """Give a claim back that was not used.

        One of another body stays, and so does one whose message came into the log meanwhile.
        """

    async def claims_begin(self, since_ms: int) -> None:
        """Note since when claims are complete, unless that is known."""

    async def remember(
        self,
        account_id: str,
        conversation_id: str,
        events: Sequence[tuple[int, Event]],
        now_ms: int,
        claim: Claim | None = None,
        confirmed: Demand | None = None,
    ) -> None:
        """These events are in the log at these offsets: show them to readers until the views have them.

        What was reserved for a send (`confirmed`) stands from now on for as long as its reply may run.
        """

    async def recent(self, conversation_id: str) -> HotConversation:
        """What was remembered of a conversation."""

    async def recent_conversations(self, account_id: str) -> dict[str, HotConversation]:
        """What was remembered of each conversation of the account that was written to lately."""

    async def mark_deleted(self, conversation_id: str, *, deleted: bool) -> None:
        """Hide a conversation from every reader at once (or take that back)."""

    async def page(self, reply_id: str, conversation_id: str, after: int, limit: PageLimit) -> Page:
        """Frames with offset > `after`."""

    async def live(self, reply_ids: Sequence[str]) -> tuple[Live, ...]:
        """Head and all frames of each reply; empty ones where the buffer has none."""

    async def note_keys(self, used: Mapping[str, Mapping[str, int]]) -> None:
        """Account -> key id -> when it was last used, ms."""

    async def keys_used(self, account_id: str) -> dict[str, int]:
        """Key id -> when it was last used, ms, of the account's keys of which it is known."""

    async def ping(self) -> None:
        """Answers, or raises."""

    async def close(self) -> None:
        """Let go of the connections."""


class Subscription(Protocol):
    """A reader's place in the live part of a reply's stream."""

    @property
    def tail(self) -> Tail:
        """What came since the subscription began, shared with other readers."""

    @property
    def confirmed(self) -> bool:
        """Whatever is written from now on comes into the tail, or `again` is called."""

    def close(self) -> None:
        """Leave."""


class LiveFrames(Protocol):
    """The live part of the stream buffer: one connection for all readers of a process."""

    def follow(self, reply_id: str, wake: Callable[[], None], again: Callable[[], None]) -> Subscription:
        """Begin to follow a reply.

        Args:
            reply_id: whose frames.
            wake: called when the tail has more.
            again: called when something may have been missed, so that the stored list has to be read: when the
                subscription is confirmed, and again after each reconnect.
        """

    @property
    def connected(self) -> bool:
        """Whether the connection stands."""


class ConversationHead(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as a listing shows it."""

    id: str
    title: str
    created_at_ms: int
    updated_at_ms: int


class FirstUse(msgspec.Struct, frozen=True, kw_only=True):
    """The message or regeneration that a client message id was first used for."""

    digest: str


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which days (`YYYY-MM-DD`, UTC, both included), and by what the totals are grouped."""

    from_day: str
    to_day: str
    group_by: str | None = None


OwnConversation = tuple[str, str]
"""Ids of an account and of a conversation that is its own."""


class Placed(msgspec.Struct, frozen=True):
    """An event of a conversation, and its offset in the log."""

    conversation: OwnConversation
    offset: int
    event: Event


class Views(Protocol):
    """The views of the log that outlive everything else, a moment behind it."""

    async def conversation_events(self, account_id: str, conversation_id: str) -> tuple[tuple[int, Event], ...]:
        """The conversation's events with their offsets, oldest first."""

    async def stored_reply(self, account_id: str, conversation_id: str, reply_id: str) -> ReplyStored | None:
        """A reply that has ended."""

    async def first_use(self, account_id: str, client_message_id: str) -> FirstUse | None:
        """What a client message id stands for, if it was used."""

    async def conversations(
        self, account_id: str, before: tuple[int, str] | None, limit: int
    ) -> tuple[ConversationHead, ...]:
        """Newest `updated_at` first, those behind the place `before` (`updated_at_ms`, id)."""

    async def conversation_heads(
        self, account_id: str, conversation_ids: Sequence[str]
    ) -> tuple[ConversationHead, ...]:
        """Those of these conversations that are there."""

    async def progress(self) -> Mapping[int, int]:
        """Per partition of `messages` an offset below which everything is in the views; it never falls."""

    async def events_between(
        self, conversations: Sequence[OwnConversation], ranges: Mapping[int, tuple[int, int]]
    ) -> tuple[Placed, ...]:
        """The events of these conversations in these ranges, in the order of the log within each conversation.

        What is in the log, or was written, more than once may come more than once.

        Args:
            conversations: a few hundred at most.
            ranges: partition -> first offset, and the offset behind the last.
        """

    async def usage_totals(self, account_id: str, query: UsageQuery) -> tuple[dict[str, Any], ...]:
        """Sums per group and currency; `group` is None without `group_by`."""

    async def bill_sums(self, account_id: str) -> Mapping[Heading, Amounts]:
        """All that the account's records are, each once, as bills have it."""

    async def closed_bills(self, account_id: str) -> tuple[Bill, ...]:
        """The account's closed bills, by month."""

    async def records_of(self, account_id: str, reply_id: str) -> tuple[dict[str, Any], ...]:
        """`record_kind`, `usage_day`, `currency`, `cost` and `reason` of each record of a reply."""

    async def usage_records(
        self, account_id: str, query: UsageQuery, after: tuple[str, str, str] | None, limit: int
    ) -> tuple[dict[str, Any], ...]:
        """The records, ordered by day, message and kind, those after the place `after`."""

    async def ping(self) -> None:
        """Answers, or raises."""

    async def close(self) -> None:
        """Let go of the connections."""
