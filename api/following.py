"""From a request for a reply's stream to the answer: live, from the buffer, from the stored reply, or why not.

Rules:

1. What the buffer holds is served from the buffer, at any cursor.
2. A valid id was issued with an accepted message, so a stream that no store knows yet is waited for.
3. At or behind the end: 204, which makes a browser's EventSource stop. Beyond it, or where only the stored reply is
   left and the cursor is in its middle, or the reply outgrew the buffer: 410 with the message's URL.
4. While Redis is away, a stored reply is served from ClickHouse and everything else waits, a cursor in the middle of
   one too: its events may well be there when Redis is back.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import msgspec
import structlog
from starlette.responses import Response

from api.accounts import Caller
from api.problems import bad_request, gone, not_found, unavailable
from api.reading import HEARTBEAT, Lookups, Patience, Reader
from api.replay import Unserved, stored_frames
from api.sse import EventStream, OpenStreams, Source
from api.stores import HotStore, LiveFrames, Page, PageLimit, StoreDown, Views
from api.tails import END_MARK, split
from schemas.events import ConversationDeleted, Event, MessageSubmitted, RegenerationRequested, ReplyStored
from schemas.ids import Parsed

log = structlog.get_logger()

CURSOR_DIGITS_MAX = 18
OFFSET_MAX = 2**53
JUST_SENT_MS = 10_000
"""For so long after its send a reply without events is waited for, without a look at the stored ones."""


def events_url(reply_id: str) -> str:
    """Where a reply's events are."""
    return f"/v1/messages/{reply_id}/events"


def cursor_of(header: str | None, query: str | None) -> int:
    """The offset after which to go on: the header wins, since a browser's URL is older than its last event.

    Raises `Problem` 400.
    """
    field, text = ("Last-Event-ID", header) if header else ("after", query)
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= CURSOR_DIGITS_MAX):
        raise bad_request([(field, "must be an offset: a whole number from 0")], "invalid_cursor")
    return int(text)


class Begun(msgspec.Struct, frozen=True):
    """A stream as it begins: its first frames, which go out at once, and the reader of what follows them."""

    reader: Reader
    frames: tuple[bytes, ...] = ()
    complete: int = 0
    """The buffer had everything up to this offset, which may be more than the frames."""
    stored: bool = False
    """From the stored reply: the whole text is one `delta`."""
    unread: bool = False
    """The buffer could not be read, and may have more than the stored reply."""
    cut: bool = False
    """The reply outgrew the buffer: there is nothing behind the frames but the stored reply, once it has ended."""


class Awaited(Protocol):
    """What a request waits for."""

    def beat(self) -> None:
        """Nothing came for a while: look again."""

    def stop(self) -> None:
        """End the waiting."""


class Waiting:
    """A request that waits: among the process's open streams, and stopped with them."""

    def __init__(self, source: Awaited, now_s: float) -> None:
        self.source = source
        self._beat_s = now_s

    def tick(self, now_s: float, patience: Patience) -> bool:
        """Time has passed: what may have been missed is read."""
        due = now_s - self._beat_s >= patience.heartbeat_s
        if due:
            self._beat_s = now_s
            self.source.beat()
        return due


class Streams:
    """See the rules of this module."""

    def __init__(
        self,
        *,
        hot: HotStore,
        live: LiveFrames,
        views: Views,
        open_streams: OpenStreams,
        patience: Patience,
        now_s: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self._hot = hot
        self._live = live
        self._views = views
        self._open = open_streams
        self._patience = patience
        self._now_s = now_s
        self._now_ms = now_ms
        self._lookups = Lookups()

    def reader(self, caller: Caller, reply: Parsed, cursor: int) -> Reader:
        """A reader of the stream. Raises `Problem` 503 when this process has too many."""
        self._open.admit()
        return Reader(
            reply.id,
            reply.conversation_id,
            cursor,
            hot=self._hot,
            live=self._live,
            find_stored=lambda: self._views.stored_reply(caller.account_id, reply.conversation_id, reply.id),
            patience=self._patience,
            now_s=self._now_s,
            lookups=self._lookups,
        )

    def stream(self, reader: Source, first: bytes = b"", headers: Mapping[str, str] | None = None) -> Response:
        """The answer that a reader fills."""
        return EventStream(reader, self._open, first=first, headers=headers)

    async def answer(
        self, caller: Caller, reply: Parsed, cursor: int, headers: Mapping[str, str] | None = None
    ) -> Response:
        """The stream after a cursor, or 204. Raises `Problem` 404, 410 or 503."""
        begun = await self.begin(caller, reply, cursor)
        if begun is None:
            return Response(status_code=204)
        return self.stream(begun.reader, b"".join(begun.frames), headers)

    async def begin(self, caller: Caller, reply: Parsed, cursor: int) -> Begun | None:
        """The stream after a cursor, as it begins; None: there is nothing behind it. Raises `Problem` 404, 410, 503."""
        reader = self.reader(caller, reply, cursor)
        try:
            page: Page | None = await self._hot.page(reply.id, reply.conversation_id, cursor, self._patience.page)
        except StoreDown as down:
            log.warning("stream opened without redis", reason=down.reason)
            page = None
        if page is not None and page.deleted:
            raise not_found("message")
        if page is not None and page.frames:
            given = _given(reader, page.frames, cursor + len(page.frames), complete=page.newest)
            return msgspec.structs.replace(given, cut=page.cut)
        if page is not None and (page.cut or page.ended):
            _check_end(page, reply, cursor)
            return None
        if page is not None and (page.newest > 0 or page.opened):
            return Begun(reader, complete=cursor)
        stored = await self._stored(caller, reply)
        served = None if stored is None else stored_frames(stored, cursor)
        if stored is None or served is None or (page is None and served == Unserved("expired")):
            return Begun(reader, complete=cursor)
        if isinstance(served, Unserved):
            why = (
                f"The stream ended at offset {stored.final_offset}."
                if served.why == "beyond"
                else "The events after this offset are not kept any more; the message itself is."
            )
            raise gone(why, f"/v1/messages/{reply.id}")
        if not served:
            return None
        given = _given(reader, served, stored.final_offset, complete=stored.final_offset, stored=True)
        return msgspec.structs.replace(given, unread=page is None)

    async def whole(self, caller: Caller, reply: Parsed) -> Begun:
        """All that there is of the stream, and a reader that goes on behind it. Raises `Problem` 404, 410 or 503."""
        begun = await self.begin(caller, reply, 0)
        if begun is None:
            raise AssertionError("every stream has its end behind offset 0")
        frames, reader, complete, cut = list(begun.frames), begun.reader, begun.complete, begun.cut
        while reader.cursor < complete:
            try:
                page = await self._hot.page(reply.id, reply.conversation_id, reader.cursor, self._patience.page)
            except StoreDown:
                break  # the reader waits for it
            if not page.frames:
                break
            frames += page.frames
            reader.given(b"".join(page.frames), reader.cursor + len(page.frames))
            complete, cut = page.newest, page.cut
        return msgspec.structs.replace(begun, frames=tuple(frames), complete=complete, cut=cut)

    async def gathered(self, begun: Begun) -> tuple[bytes, ...] | None:
        """All frames, once the reply has ended; None when that cannot be waited for (shutdown, an outage)."""
        frames, reader = list(begun.frames), begun.reader
        try:
            with self.waiting(reader):
                while (chunk := await reader.next()) is not None:
                    if chunk != HEARTBEAT:
                        frames += split(chunk)
        finally:
            reader.close()
        return tuple(frames) if frames and END_MARK in frames[-1] else None

    @contextmanager
    def waiting(self, awaited: Awaited) -> Iterator[None]:
        """A request waits in here, until the process stops."""
        one = Waiting(awaited, self._now_s())
        self._open.add(one)
        try:
            yield
        finally:
            self._open.remove(one)

    async def tail(self, caller: Caller, reply: Parsed) -> tuple[int, bool]:
        """The newest offset of the stream, and whether it is the end. Raises `Problem` 404 or 503."""
        try:
            page = await self._hot.page(reply.id, reply.conversation_id, OFFSET_MAX, PageLimit(1, 1))
        except StoreDown as down:
            raise unavailable("redis", "The stream buffers (Redis) cannot be read now.") from down
        if page.deleted:
            raise not_found("message")
        if page.newest > 0:
            return page.newest, page.ended
        stored = await self._stored(caller, reply)
        return (stored.final_offset, True) if stored is not None else (0, False)

    async def _stored(self, caller: Caller, reply: Parsed) -> ReplyStored | None:
        """The stored reply, unless it was sent just now. Raises `Problem` 404 for a deleted conversation."""
        try:
            recent = await self._hot.recent(reply.conversation_id)
            if any(self._just_sent(event, reply.id) for _, event in recent.events):
                return None
        except StoreDown as down:
            log.warning("stream without what is recent", reason=down.reason)
        try:
            stored = await self._views.stored_reply(caller.account_id, reply.conversation_id, reply.id)
            if stored is None:
                events = await self._views.conversation_events(caller.account_id, reply.conversation_id)
                if any(isinstance(event, ConversationDeleted) for _, event in events):
                    raise not_found("message")
        except StoreDown as down:
            log.warning("stream without the views", reason=down.reason)
            return None
        return stored

    def _just_sent(self, event: Event, reply_id: str) -> bool:
        if not isinstance(event, MessageSubmitted | RegenerationRequested) or event.reply_id != reply_id:
            return False
        return self._now_ms() - event.submitted_at_ms < JUST_SENT_MS


def _given(reader: Reader, frames: tuple[bytes, ...], cursor: int, *, complete: int, stored: bool = False) -> Begun:
    reader.given(b"".join(frames), cursor)
    return Begun(reader, frames, complete, stored)


def _check_end(page: Page, reply: Parsed, cursor: int) -> None:
    if page.cut:
        why = f"The stream has no more than {page.newest} events of this reply; the message will have all of it."
        raise gone(why, f"/v1/messages/{reply.id}")
    if cursor > page.newest:
        raise gone(f"The stream ended at offset {page.newest}.", f"/v1/messages/{reply.id}")
