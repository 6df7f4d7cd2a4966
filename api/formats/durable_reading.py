"""Reading a reply's stream or a conversation's feed as a Durable Stream: what there is, and what comes."""

import asyncio
import random
from collections.abc import Callable

from starlette.responses import Response

from api.accounts import Caller
from api.context import Service
from api.formats import durable
from api.formats.durable import Slice
from api.reading import HEARTBEAT
from api.sse import Source
from api.tails import split
from schemas.ids import Parsed

LONG_POLL_S = 20.0
SSE_S = 50.0
"""A connection is closed after so long, below the 60 s after which proxies cut silent ones; the client comes back."""


class Opened:
    """A stream at a place: what is behind it now (`found`), and the source of what follows."""

    def __init__(self, found: Slice, source: Source | None) -> None:
        self.found = found
        self._source = source
        self._newest = found

    async def next(self, within_s: float) -> Slice | None:
        """What comes next, or an empty slice as a sign of life; None: nothing within this time, or nothing more."""
        if self._newest.closed or self._source is None:
            return None
        try:
            async with asyncio.timeout(within_s):
                chunk = await self._source.next()
        except TimeoutError:
            return None
        if chunk is None:
            return None
        frames = () if chunk == HEARTBEAT else tuple(split(chunk))
        self._newest = _slice(frames, self._newest.end, up_to_date=True)
        return self._newest

    def beat(self) -> None:
        """Nothing was sent for a while."""
        if self._source is not None:
            self._source.beat()

    def stop(self) -> None:
        """End at the next boundary."""
        if self._source is not None:
            self._source.stop()

    def close(self) -> None:
        """Let go."""
        if self._source is not None:
            self._source.close()


async def open_reply(the: Service, caller: Caller, reply: Parsed, cursor: int) -> Opened:
    """A reply's stream after a cursor. Raises `Problem` 404, 410 or 503."""
    begun = await the.streams.begin(caller, reply, cursor)
    if begun is None:
        return Opened(_end(cursor, closed=True), None)
    return Opened(_slice(begun.frames, cursor, up_to_date=begun.reader.cursor >= begun.complete), begun.reader)


async def open_feed(the: Service, caller: Caller, conversation_id: str, cursor: int) -> Opened:
    """A conversation's feed after a cursor. Raises `Problem` 404 or 503."""
    feed = await the.feeds.open(caller, conversation_id, cursor)
    return Opened(_slice(feed.ready(), cursor, up_to_date=True), feed)


async def tail_of_reply(the: Service, caller: Caller, reply: Parsed) -> Slice:
    """The place behind the newest event. Raises `Problem` 404 or 503."""
    offset, closed = await the.streams.tail(caller, reply)
    return _end(offset, closed=closed)


async def tail_of_feed(the: Service, caller: Caller, conversation_id: str) -> Slice:
    """The place behind the newest event. Raises `Problem` 404 or 503."""
    opened = await open_feed(the, caller, conversation_id, 0)
    opened.close()
    return _end(opened.found.end, closed=opened.found.closed)


class Live:
    """A Durable Stream over server-sent events; see `api.sse.Source`."""

    def __init__(self, opened: Opened, now_s: Callable[[], float], cursor: Callable[[], str]) -> None:
        self._opened = opened
        self._now_s = now_s
        self._cursor = cursor
        self._until_s = now_s() + SSE_S

    def first(self) -> bytes:
        """What there is, and where the client is with it."""
        return self._events(self._opened.found)

    async def next(self) -> bytes | None:
        """The next events, or how far the client is; None: the stream is closed, or the client is to come back."""
        found = await self._opened.next(self._until_s - self._now_s())
        return self._events(found) if found is not None else None

    def beat(self) -> None:
        """Nothing was sent for a while."""
        self._opened.beat()

    def stop(self) -> None:
        """End at the next boundary."""
        self._opened.stop()

    def close(self) -> None:
        """Let go."""
        self._opened.close()

    def _events(self, found: Slice) -> bytes:
        return durable.data_event(found.frames) + durable.control_event(found, self._cursor())


def slice_answer(stream_id: str, found: Slice, if_none_match: str | None, cursor: str | None = None) -> Response:
    """A slice as JSON, or 304 where the client has it."""
    tag = durable.etag(stream_id, found)
    said = {"ETag": tag, "Cache-Control": "private, no-cache", **durable.headers(found)}
    if cursor is not None and not found.closed:
        said["Stream-Cursor"] = cursor
    held = [one.strip().removeprefix("W/") for one in (if_none_match or "").split(",")]
    if tag in held or "*" in held:
        return Response(status_code=304, headers=said)
    return Response(durable.body(found.frames), headers=said, media_type="application/json")


def cursor_now(the: Service, given: str | None) -> str:
    """The cursor of a live answer."""
    return durable.cursor(the.now_ms(), given, random.randint(1, 3600))


def _slice(frames: tuple[bytes, ...], start: int, *, up_to_date: bool) -> Slice:
    end = durable.native_offset(frames[-1]) if frames else start
    closed = bool(frames) and durable.is_last(frames[-1])
    return Slice(frames=frames, start=start, end=end, up_to_date=up_to_date or closed, closed=closed)


def _end(offset: int, *, closed: bool) -> Slice:
    return Slice(frames=(), start=offset, end=offset, up_to_date=True, closed=closed)
