"""Conversations: list, read, change, delete."""

from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from api import pages
from api.bodies import ChangeBody, read
from api.context import TheCaller, TheFollower, TheService, TheTrail, answer, own
from api.conversations import shown
from api.following import cursor_of
from api.openapi import FEED, body_of, problems
from api.shapes import ConversationPage, ConversationView, MessagePage
from schemas.limits import PAGE_DEFAULT, PAGE_MAX

router = APIRouter(prefix="/v1/conversations", tags=["conversations"])

Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="Items of a page.")]
Cursor = Annotated[str | None, Query(max_length=1000, description="`next_cursor` of the page before.")]


@router.get("", summary="List conversations", response_model=ConversationPage, responses=problems(400, 401, 503))
async def listing(the: TheService, caller: TheCaller, limit: Limit = PAGE_DEFAULT, cursor: Cursor = None) -> Response:
    """The caller's own, the latest changed first."""
    items, place = await the.conversations.page(caller, pages.read(cursor, pages.Place), limit)
    return answer(ConversationPage(data=items, next_cursor=pages.written(place) if place else None))


@router.get(
    "/{conversation_id}",
    summary="Read a conversation",
    response_model=ConversationView,
    responses=problems(400, 401, 404, 503),
)
async def get(conversation_id: str, the: TheService, caller: TheCaller) -> Response:
    """Its title, its times and its current branch."""
    parsed = own(the, caller, conversation_id, "conversation", "conv")
    return answer(shown(await the.conversations.load(caller, parsed.id)))


@router.patch(
    "/{conversation_id}",
    summary="Rename a conversation or choose its branch",
    response_model=ConversationView,
    openapi_extra=body_of(ChangeBody),
    responses=problems(400, 401, 404, 408, 413, 415, 503),
)
async def change(
    conversation_id: str, request: Request, the: TheService, caller: TheCaller, trail: TheTrail
) -> Response:
    """The conversation after the change."""
    parsed = own(the, caller, conversation_id, "conversation", "conv")
    body = await read(request, ChangeBody)
    changed = await the.conversations.change(caller, parsed.id, body, trail.request_id, trail.traceparent)
    return answer(changed)


@router.delete(
    "/{conversation_id}",
    status_code=204,
    summary="Delete a conversation",
    response_class=Response,
    responses=problems(400, 401, 404, 503),
)
async def delete(conversation_id: str, the: TheService, caller: TheCaller, trail: TheTrail) -> Response:
    """Gone for every reader when this is answered; its replies that run are cancelled."""
    parsed = own(the, caller, conversation_id, "conversation", "conv")
    await the.conversations.delete(caller, parsed.id, trail.traceparent)
    return Response(status_code=204)


@router.get(
    "/{conversation_id}/messages",
    summary="List messages",
    response_model=MessagePage,
    responses=problems(400, 401, 404, 503),
)
async def messages(
    conversation_id: str, the: TheService, caller: TheCaller, limit: Limit = PAGE_DEFAULT, cursor: Cursor = None
) -> Response:
    """All messages by position, of every branch: `parent_id` and `siblings` tell the tree."""
    parsed = own(the, caller, conversation_id, "conversation", "conv")
    after = pages.read(cursor, int) or 0
    views, place = await the.conversations.messages(caller, parsed.id, after, limit)
    return answer(MessagePage(data=views, next_cursor=pages.written(place) if place is not None else None))


@router.get(
    "/{conversation_id}/events",
    summary="Follow a conversation",
    response_class=Response,
    responses={
        200: {"description": "What happened after the cursor, and what happens, until `deleted`.", **FEED},
        **problems(400, 401, 404, 503),
    },
)
async def events(
    conversation_id: str,
    the: TheService,
    caller: TheFollower,
    last_event_id: Annotated[str | None, Header(description="The cursor after which to go on.")] = None,
    after: Annotated[str | None, Query(description="The same, for clients that cannot set headers.")] = None,
) -> Response:
    """Server-sent events for other tabs and devices: `message`, `reply_ended`, `renamed`, `branch`, `deleted`.

    `id` is a cursor: it grows, with gaps. Without one the feed begins at the conversation's beginning.
    """
    parsed = own(the, caller, conversation_id, "conversation", "conv")
    return await the.feeds.answer(caller, parsed.id, cursor_of(last_event_id, after))
