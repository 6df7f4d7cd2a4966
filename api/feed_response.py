"""The answer to who asks for a conversation's feed. The only module that sends with sse-starlette.

It has its place here, where events are few: docs/decisions/0010-event-streams.md.
"""

from collections.abc import AsyncIterator
from typing import Any

from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.accounts import Caller
from api.conversations import Conversations, views_away
from api.feed import Feed, Feeds
from api.reading import HEARTBEAT, Patience
from api.sse import HEADERS, OpenStreams, Source
from api.stores import StoreDown


class FeedResponse(EventSourceResponse):
    """A source sent by the library; counted among the process's streams, and ended with them."""

    def __init__(self, source: Source, streams: OpenStreams, patience: Patience) -> None:
        beat: Any = lambda: HEARTBEAT  # noqa: E731 - bytes go out as they are, without the blank line of an event
        super().__init__(
            _chunks(source),
            headers=HEADERS,
            ping=patience.heartbeat_s,
            ping_message_factory=beat,
            send_timeout=patience.send_timeout_s,
        )
        del self.headers["connection"]
        self.source = source
        self._streams = streams

    def tick(self, now_s: float, patience: Patience) -> None:
        """Heartbeats and stalled clients are the library's."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the source ends, the client leaves, or takes nothing for too long."""
        self._streams.add(self)
        try:
            await super().__call__(scope, receive, send)
        except* SendTimeoutError:
            self._streams.cut_off()
        finally:
            self._streams.remove(self)
            self.source.close()


class FeedAnswers:
    """Opens feeds for callers."""

    def __init__(
        self, *, conversations: Conversations, feeds: Feeds, open_streams: OpenStreams, patience: Patience
    ) -> None:
        self._conversations = conversations
        self._feeds = feeds
        self._open = open_streams
        self._patience = patience

    async def answer(self, caller: Caller, conversation_id: str, cursor: int) -> Response:
        """The feed after a cursor. Raises `Problem` 404 or 503."""
        return FeedResponse(await self.open(caller, conversation_id, cursor), self._open, self._patience)

    async def open(self, caller: Caller, conversation_id: str, cursor: int) -> Feed:
        """The feed itself. Raises `Problem` 404 or 503."""
        self._open.admit()
        await self._conversations.load(caller, conversation_id)
        try:
            return await self._feeds.open((caller.account_id, conversation_id), cursor)
        except StoreDown as down:
            raise views_away() from down


async def _chunks(source: Source) -> AsyncIterator[bytes]:
    while (chunk := await source.next()) is not None:
        yield chunk
