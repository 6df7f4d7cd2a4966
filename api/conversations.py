"""Reading and changing conversations.

A conversation is the fold of its events: those of the views, which are a moment behind the log, and those that were
written lately and are remembered in Redis; for a reply that is not stored yet, what its stream says. So a read sees
every write that was answered before it.

While ClickHouse is away, only what Redis holds can be read: a conversation that began lately, and replies that run.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

import structlog

from api.accounts import Caller
from api.bodies import ChangeBody
from api.listing import overlaid
from api.messages import Running, lone_reply, running, view
from api.pages import Place as PagePlace
from api.problems import Problem, not_found, unavailable
from api.sending import Appender
from api.shapes import ConversationItem, ConversationView, MessageView, timestamp
from api.sharing import Shared
from api.stores import ConversationHead, HotConversation, HotStore, StoreDown, Views
from schemas.conversation import Conversation, Message, branch, fold, open_replies
from schemas.events import BranchChosen, CancellationRequested, ConversationDeleted, ConversationRenamed, Event
from schemas.ids import Identities, Parsed

log = structlog.get_logger()

LOADS_AT_ONCE = 8
"""Conversations read at a time for those who open streams: half of the connections to each store."""

_DELETED = Conversation(id="", account_id="", created_at_ms=0, updated_at_ms=0, deleted=True)
_NOTHING = HotConversation(deleted=False, events=())


class Conversations:
    """See the rules of this module. Every answer is of the caller's own."""

    def __init__(
        self,
        *,
        ids: Identities,
        appender: Appender,
        hot: HotStore,
        views: Views,
        now_ms: Callable[[], int],
    ) -> None:
        self._ids = ids
        self._appender = appender
        self._hot = hot
        self._views = views
        self._now_ms = now_ms
        self._loads: Shared[Conversation | None] = Shared(LOADS_AT_ONCE)

    async def load(self, caller: Caller, conversation_id: str) -> Conversation:
        """The conversation. Raises `Problem` 404 or 503."""
        try:
            conversation = await self._loads.ask(
                (caller.account_id, conversation_id), lambda: self._folded(caller.account_id, conversation_id)
            )
        except StoreDown as down:
            raise views_away() from down
        if conversation is None or conversation.deleted:
            raise not_found("conversation")
        return conversation

    async def lately(self, conversation_id: str) -> Conversation | None:
        """What Redis has of the conversation, if that is its beginning; for while ClickHouse is away."""
        recent = await self._recent(conversation_id) or _NOTHING
        conversation = None if recent.deleted else fold(event for _, event in recent.events)
        return None if conversation is None or conversation.deleted else conversation

    async def message(self, caller: Caller, parsed: Parsed) -> MessageView:
        """A message as it is now. Raises `Problem` 404 or 503."""
        recent = await self._recent(parsed.conversation_id)
        away: StoreDown | None = None
        try:
            conversation = await self._folded(caller.account_id, parsed.conversation_id, recent)
        except StoreDown as down:
            conversation = fold(event for _, event in (recent or _NOTHING).events)
            away = down
        if conversation is not None and conversation.deleted:
            raise not_found("message")
        message = conversation.messages.get(parsed.id) if conversation is not None else None
        if conversation is not None and message is not None and (message.stored or message.role == "user"):
            return view(conversation, message, None)
        live = await self._running(parsed.id) if parsed.kind == "rep" else None
        if conversation is not None and message is not None:
            return view(conversation, message, live)
        if live is not None:
            return lone_reply(parsed.id, parsed.conversation_id, live)
        if away is not None:
            raise views_away() from away
        raise not_found("message")

    async def messages(
        self, caller: Caller, conversation_id: str, after_position: int, limit: int
    ) -> tuple[list[MessageView], int | None]:
        """Messages by position, and the position to go on after."""
        conversation = await self.load(caller, conversation_id)
        listed = [m for m in conversation.messages.values() if m.position > after_position]
        page = listed[:limit]
        views = await self.views(conversation, (message.id for message in page))
        return list(views.values()), page[-1].position if len(listed) > limit else None

    async def views(self, conversation: Conversation, message_ids: Iterable[str]) -> dict[str, MessageView]:
        """Those of these messages that the conversation has."""
        held = [m for m in map(conversation.messages.get, message_ids) if m is not None]
        running_ = await self._running_all(held)
        return {message.id: view(conversation, message, running_.get(message.id)) for message in held}

    async def page(
        self, caller: Caller, before: PagePlace | None, limit: int
    ) -> tuple[list[ConversationItem], PagePlace | None]:
        """Conversations, the latest changed first, and the place to go on behind."""
        try:
            recent = await self._hot.recent_conversations(caller.account_id)
        except StoreDown as down:
            log.warning("listing without what is recent", reason=down.reason)
            recent = {}
        try:
            heads, hot_heads = await asyncio.gather(
                self._views.conversations(caller.account_id, before, limit + len(recent) + 1),
                self._views.conversation_heads(caller.account_id, tuple(recent)),
            )
        except StoreDown as down:
            raise views_away() from down
        by_id = {head.id: head for head in (*heads, *hot_heads)}
        for conversation_id, written in recent.items():
            head = by_id.pop(conversation_id, None)
            after = None if written.deleted else overlaid(head, (event for _, event in written.events))
            if after is not None:
                by_id[conversation_id] = after
        listed = sorted(by_id.values(), key=lambda head: (head.updated_at_ms, head.id), reverse=True)
        listed = [head for head in listed if before is None or (head.updated_at_ms, head.id) < before]
        last = listed[limit - 1] if len(listed) > limit else None
        return [_item(head) for head in listed[:limit]], PagePlace(last.updated_at_ms, last.id) if last else None

    async def change(
        self, caller: Caller, conversation_id: str, body: ChangeBody, request_id: str, traceparent: str
    ) -> ConversationView:
        """Rename it, or choose its branch. Raises `Problem` 404 or 503."""
        conversation = await self.load(caller, conversation_id)
        now_ms = self._now_ms()
        events: list[Event] = []
        if body.title is not None:
            events.append(
                ConversationRenamed(
                    conversation_id=conversation_id,
                    account_id=caller.account_id,
                    title=body.title,
                    renamed_at_ms=now_ms,
                    request_id=request_id,
                )
            )
        if body.branch is not None:
            if body.branch not in conversation.messages:
                raise not_found("message")
            events.append(
                BranchChosen(
                    conversation_id=conversation_id,
                    account_id=caller.account_id,
                    message_id=body.branch,
                    chosen_at_ms=now_ms,
                    request_id=request_id,
                )
            )
        await self._write(caller, conversation_id, events, traceparent)
        return shown(fold(events, conversation) or conversation)

    async def delete(self, caller: Caller, conversation_id: str, traceparent: str) -> None:
        """Delete it: hidden from everybody when this returns. Raises `Problem` 404 or 503."""
        conversation = await self.load(caller, conversation_id)
        now_ms = self._now_ms()
        cancels = [
            CancellationRequested(
                conversation_id=conversation_id,
                reply_id=reply.id,
                account_id=caller.account_id,
                requested_at_ms=now_ms,
            )
            for reply in open_replies(conversation)
        ]
        try:
            await self._hot.mark_deleted(conversation_id, deleted=True)
        except StoreDown as down:
            detail = "Redis is needed to hide a conversation from every reader at once, and does not answer."
            raise unavailable("redis", detail) from down
        deleted = ConversationDeleted(
            conversation_id=conversation_id, account_id=caller.account_id, deleted_at_ms=now_ms
        )
        try:
            await self._appender.append(cancels, traceparent)
            await self._write(caller, conversation_id, [deleted], traceparent)
        except Problem:
            with contextlib.suppress(StoreDown):
                await self._hot.mark_deleted(conversation_id, deleted=False)
            raise

    async def _write(self, caller: Caller, conversation_id: str, events: list[Event], traceparent: str) -> None:
        places = await self._appender.append(events, traceparent)
        placed = [(place.offset, event) for place, event in zip(places, events, strict=True)]
        try:
            await self._hot.remember(caller.account_id, conversation_id, placed, self._now_ms())
        except StoreDown as down:
            log.warning("change not remembered", reason=down.reason)

    async def _folded(
        self, account_id: str, conversation_id: str, recent: HotConversation | None = None
    ) -> Conversation | None:
        if recent is None:
            events, recent = await asyncio.gather(
                self._views.conversation_events(account_id, conversation_id), self._recent(conversation_id)
            )
        else:
            events = await self._views.conversation_events(account_id, conversation_id)
        by_offset = dict(events) | dict((recent or _NOTHING).events)
        if (recent or _NOTHING).deleted or any(isinstance(e, ConversationDeleted) for e in by_offset.values()):
            return _DELETED
        return fold(by_offset[offset] for offset in sorted(by_offset))

    async def _recent(self, conversation_id: str) -> HotConversation | None:
        try:
            return await self._hot.recent(conversation_id)
        except StoreDown as down:
            log.warning("read without what is recent", reason=down.reason)
            return None

    async def _running(self, reply_id: str) -> Running | None:
        try:
            (live,) = await self._hot.live((reply_id,))
        except StoreDown as down:
            detail = "A reply that is not stored yet is read from Redis, which does not answer."
            raise unavailable("redis", detail) from down
        return running(live)

    async def _running_all(self, messages: Iterable[Message]) -> dict[str, Running | None]:
        reply_ids = [m.id for m in messages if m.role == "assistant" and m.stored is None]
        try:
            found = await self._hot.live(reply_ids)
        except StoreDown as down:
            log.warning("listing without what runs", reason=down.reason)
            return {}
        return {reply_id: running(live) for reply_id, live in zip(reply_ids, found, strict=True)}


def views_away() -> Exception:
    """503: what is asked for is in ClickHouse."""
    return unavailable("clickhouse", "Conversations are read from ClickHouse, which does not answer.")


def shown(conversation: Conversation) -> ConversationView:
    """A conversation as clients see it."""
    return ConversationView(
        id=conversation.id,
        title=conversation.title,
        created_at=timestamp(conversation.created_at_ms),
        updated_at=timestamp(conversation.updated_at_ms),
        message_count=len(conversation.messages),
        branch=[message.id for message in branch(conversation)],
    )


def _item(head: ConversationHead) -> ConversationItem:
    return ConversationItem(
        id=head.id,
        title=head.title,
        created_at=timestamp(head.created_at_ms),
        updated_at=timestamp(head.updated_at_ms),
    )
