"""Durable Streams, reading: each reply and each conversation's feed as a stream that the published clients follow."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from api.context import Service, TheFollower, TheService, own, own_reply
from api.formats import durable, durable_reading
from api.formats.durable import Slice
from api.formats.durable_reading import Live, Opened, cursor_now, slice_answer
from api.openapi import STREAM, problems
from api.problems import Problem

router = APIRouter(prefix="/durable", tags=["durable streams"])

Offset = Annotated[str | None, Query(description="`-1`, `now`, or a Stream-Next-Offset; absent: the beginning.")]
Mode = Annotated[Literal["long-poll", "sse"] | None, Query(alias="live", description="Absent: what there is.")]
Cursor = Annotated[str | None, Query(max_length=100, description="The Stream-Cursor of the answer before.")]
IfNoneMatch = Annotated[str | None, Header()]

_JSON = "application/json"
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The events behind the offset: a JSON array, or with live=sse server-sent events.", **STREAM},
    204: {"description": "live=long-poll: nothing came in time, or (Stream-Closed) nothing will."},
    304: {"description": "If-None-Match names what there is."},
    **problems(400, 401, 404, 410, 503),
}
_TAILS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Stream-Next-Offset, and Stream-Closed where nothing will follow."},
    **problems(400, 401, 404, 503),
}


@router.get("/messages/{message_id}", summary="Read a reply's stream", response_class=Response, responses=_ANSWERS)
async def reply(
    message_id: str,
    the: TheService,
    caller: TheFollower,
    offset: Offset = None,
    live: Mode = None,
    cursor: Cursor = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The reply's events as JSON: `{"offset", "type", …}`. Closed by `ended`."""
    parsed = own_reply(the, caller, message_id)
    return await _read(
        the,
        (parsed.id, cursor, if_none_match),
        live,
        durable.offset_of(offset),
        lambda: durable_reading.tail_of_reply(the, caller, parsed),
        lambda at: durable_reading.open_reply(the, caller, parsed, at),
    )


@router.get(
    "/conversations/{conversation_id}",
    summary="Read a conversation's feed",
    response_class=Response,
    responses=_ANSWERS,
)
async def feed(
    conversation_id: str,
    the: TheService,
    caller: TheFollower,
    offset: Offset = None,
    live: Mode = None,
    cursor: Cursor = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """What happens in the conversation, as JSON. Closed by `deleted`."""
    parsed = own(the, caller, conversation_id, "conversation", "conv")
    return await _read(
        the,
        (parsed.id, cursor, if_none_match),
        live,
        durable.offset_of(offset),
        lambda: durable_reading.tail_of_feed(the, caller, parsed.id),
        lambda at: durable_reading.open_feed(the, caller, parsed.id, at),
    )


@router.head("/messages/{message_id}", summary="How far a reply's stream is", response_class=Response, responses=_TAILS)
async def reply_tail(message_id: str, the: TheService, caller: TheFollower) -> Response:
    """The offset behind the newest event, and whether the stream is closed."""
    parsed = own_reply(the, caller, message_id)
    return _tail(await durable_reading.tail_of_reply(the, caller, parsed))


@router.head(
    "/conversations/{conversation_id}",
    summary="How far a conversation's feed is",
    response_class=Response,
    responses=_TAILS,
)
async def feed_tail(conversation_id: str, the: TheService, caller: TheFollower) -> Response:
    """The offset behind the newest event."""
    parsed = own(the, caller, conversation_id, "conversation", "conv")
    return _tail(await durable_reading.tail_of_feed(the, caller, parsed.id))


@router.api_route(
    "/{path:path}", methods=["PUT", "POST", "PATCH", "DELETE"], include_in_schema=False, response_class=Response
)
async def write(path: str, request: Request) -> Response:  # noqa: ARG001 - FastAPI's signature
    """Streams are only read here."""
    detail = (
        f"{request.method} is not possible here: these streams are written by the service and only read. "
        "Send with POST /v1/messages."
    )
    raise Problem(405, "method_not_allowed", "Method not allowed", detail, headers={"Allow": "GET, HEAD"})


async def _read(
    the: Service,
    named: tuple[str, str | None, str | None],
    live: str | None,
    at: int | None,
    tail: Callable[[], Awaitable[Slice]],
    open_at: Callable[[int], Awaitable[Opened]],
) -> Response:
    stream_id, cursor, if_none_match = named
    if at is None:
        end = await tail()
        if live is None:
            return Response(b"[]", headers={"Cache-Control": "no-store", **durable.headers(end)}, media_type=_JSON)
        at = end.end
    opened = await open_at(at)
    if live == "sse":
        source = Live(opened, asyncio.get_running_loop().time, lambda: cursor_now(the, cursor))
        return the.streams.stream(source, source.first())
    try:
        found = opened.found
        if live is not None and not found.frames:
            return await _polled(the, opened, stream_id, cursor)
        return slice_answer(stream_id, found, if_none_match, cursor_now(the, cursor) if live else None)
    finally:
        opened.close()


async def _polled(the: Service, opened: Opened, stream_id: str, cursor: str | None) -> Response:
    """The next events, or 204 when there is nothing for a while, or ever."""
    now_s = asyncio.get_running_loop().time
    deadline_s = now_s() + durable_reading.LONG_POLL_S
    with the.streams.waiting(opened):
        found = await opened.next(deadline_s - now_s())
        while found is not None and not found.frames:
            found = await opened.next(deadline_s - now_s())
    if found is not None:
        return slice_answer(stream_id, found, None, cursor_now(the, cursor))
    said = {"Cache-Control": "no-store", **durable.headers(opened.found)}
    if not opened.found.closed:
        said["Stream-Cursor"] = cursor_now(the, cursor)
    return Response(status_code=204, headers=said)


def _tail(end: Slice) -> Response:
    return Response(headers={"Cache-Control": "no-store", **durable.headers(end)}, media_type=_JSON)
