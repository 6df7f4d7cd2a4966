"""The operator's calls: users and keys of an account. There only with TURNLOG_OPERATOR_KEY."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, TypeVar

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from api import pages
from api.admin_bodies import KeyBody, UserBody
from api.admin_shapes import IssuedKeyView, KeyPage, KeyView, UserPage, UserView, key_view, user_view
from api.bodies import read
from api.context import AsOperator, Service, TheService, TheTrail, answer
from api.openapi import body_of, problems
from api.problems import Problem, bad_request, not_found
from api.routes.admin import AccountId, open_account, the_account
from api.routes.conversations import Cursor, Limit
from api.stores import StoreDown
from schemas.account import revocation
from schemas.events import Event, KeyIssued, UserAdded, UserRemoved
from schemas.ids import USER_ID_CHARS_MAX, is_user_id, key_hash, key_id, key_prefix, new_key
from schemas.limits import PAGE_DEFAULT

router = APIRouter(prefix="/v1/admin/accounts/{account_id}", tags=["admin"], dependencies=[AsOperator])

UserId = Annotated[str, Path(min_length=1, max_length=USER_ID_CHARS_MAX, description="The `sub` of the user's tokens.")]
KeyId = Annotated[str, Path(examples=["key_0a1b2c3d4e5f"])]

F = TypeVar("F")

_YEAR_10000_MS = 253_402_300_800_000


@router.get("/users", summary="List users", response_model=UserPage, responses=problems(400, 401, 404, 503))
async def users(account_id: AccountId, the: TheService, limit: Limit = PAGE_DEFAULT, cursor: Cursor = None) -> Response:
    """The account's users by id."""
    the_account(the, account_id)
    page, next_cursor = _page({user.user_id: user for user in the.accounts.users(account_id)}, limit, cursor)
    return answer(UserPage(data=[user_view(user) for user in page], next_cursor=next_cursor))


@router.put(
    "/users/{user_id:path}",
    status_code=201,
    summary="Add a user",
    response_model=UserView,
    openapi_extra=body_of(UserBody, required=False),
    responses={
        200: {"model": UserView, "description": "The account has this user; its name is the given one now."},
        **problems(400, 401, 404, 408, 409, 413, 415, 503),
    },
)
async def add_user(
    account_id: AccountId, user_id: UserId, request: Request, the: TheService, trail: TheTrail
) -> Response:
    """Keys can belong to it, and its tokens (JWT) open the account. Idempotent."""
    open_account(the, account_id)
    if not is_user_id(user_id):
        raise bad_request([("user_id", f"must be 1 to {USER_ID_CHARS_MAX} printable characters")])
    body = await read(request, UserBody, may_be_empty=True)
    known = the.accounts.user(account_id, user_id)
    if known is not None and known.name == body.name:
        return answer(user_view(known))
    added_at_ms = the.now_ms() if known is None else known.added_at_ms
    added = UserAdded(account_id=account_id, user_id=user_id, name=body.name, added_at_ms=added_at_ms)
    await the.changes.append([added], trail.traceparent)
    return answer(user_view(added), 201 if known is None else 200)


@router.delete(
    "/users/{user_id:path}", status_code=204, summary="Remove a user", responses=problems(400, 401, 404, 503)
)
async def remove_user(account_id: AccountId, user_id: UserId, the: TheService, trail: TheTrail) -> Response:
    """Its keys are revoked and its tokens open nothing, also where the account admits unknown users. Idempotent."""
    the_account(the, account_id)
    if not is_user_id(user_id):
        raise not_found("user")
    if not the.accounts.is_removed(account_id, user_id):
        now_ms = the.now_ms()
        events: list[Event] = [
            revocation(key, now_ms)
            for key in the.accounts.keys(account_id)
            if isinstance(key, KeyIssued) and key.user_id == user_id
        ]
        events.append(UserRemoved(account_id=account_id, user_id=user_id, removed_at_ms=now_ms))
        await the.changes.append(events, trail.traceparent)
    return Response(status_code=204)


@router.get("/keys", summary="List keys", response_model=KeyPage, responses=problems(400, 401, 404, 503))
async def keys(account_id: AccountId, the: TheService, limit: Limit = PAGE_DEFAULT, cursor: Cursor = None) -> Response:
    """The account's keys by id, revoked ones too."""
    the_account(the, account_id)
    page, next_cursor = _page({key.key_id: key for key in the.accounts.keys(account_id)}, limit, cursor)
    used_ms, now_ms = await _used(the, account_id), the.now_ms()
    return answer(KeyPage(data=[key_view(key, used_ms, now_ms) for key in page], next_cursor=next_cursor))


@router.post(
    "/keys",
    status_code=201,
    summary="Issue a key",
    response_model=IssuedKeyView,
    openapi_extra=body_of(KeyBody, required=False),
    responses={
        200: {"model": IssuedKeyView, "description": "There is a live key of this name; it is not shown again."},
        **problems(400, 401, 404, 408, 409, 413, 415, 503),
    },
)
async def issue_key(account_id: AccountId, request: Request, the: TheService, trail: TheTrail) -> Response:
    """The key stands in this answer and nowhere else: only its hash is kept.

    With a `name` the call is idempotent. If the answer that showed the key was lost, revoke it and issue another one.
    """
    open_account(the, account_id)
    body = await read(request, KeyBody, may_be_empty=True)
    now_ms = the.now_ms()
    expires_at_ms = _expiry(body.expires_at, now_ms)
    if body.user_id is not None and the.accounts.user(account_id, body.user_id) is None:
        raise bad_request([("user_id", "is no user of the account; add it first")])
    if body.name and (known := the.accounts.live_key(account_id, body.name, now_ms)) is not None:
        return await _known_key(the, known, body, expires_at_ms)
    key = new_key()
    issued = KeyIssued(
        account_id=account_id,
        key_id=key_id(key),
        key_hash=key_hash(key),
        issued_at_ms=now_ms,
        name=body.name,
        prefix=key_prefix(key),
        user_id=body.user_id,
        expires_at_ms=expires_at_ms,
    )
    await the.changes.append([issued], trail.traceparent)
    first = the.accounts.live_key(account_id, body.name, now_ms) if body.name else None
    if first is not None and first.key_id != issued.key_id:
        # Another process was asked for the same at the same time, and its key came first: there is one key of a name.
        await the.changes.append([revocation(issued, the.now_ms())], trail.traceparent)
        return await _known_key(the, first, body, expires_at_ms)
    return answer(IssuedKeyView(**key_view(issued, {}, now_ms).model_dump(), api_key=key), 201)


@router.delete("/keys/{key_id}", summary="Revoke a key", response_model=KeyView, responses=problems(400, 401, 404, 503))
async def revoke_key(account_id: AccountId, key_id: KeyId, the: TheService, trail: TheTrail) -> Response:
    """It opens nothing from now on, on every API process within a second, and neither do its tickets. Idempotent."""
    the_account(the, account_id)
    key = the.accounts.key(account_id, key_id)
    if key is None:
        raise not_found("key")
    if isinstance(key, KeyIssued):
        key = revocation(key, the.now_ms())
        await the.changes.append([key], trail.traceparent)
    return answer(key_view(key, await _used(the, account_id), the.now_ms()))


async def _known_key(the: Service, key: KeyIssued, body: KeyBody, expires_at_ms: int | None) -> Response:
    if (key.user_id, key.expires_at_ms) != (body.user_id, expires_at_ms):
        detail = f"The live key {key.key_id} of this name has another user or expiry. Revoke it, or take another name."
        raise Problem(409, "key_exists", "Conflict", detail)
    view = key_view(key, await _used(the, key.account_id), the.now_ms())
    return answer(IssuedKeyView(**view.model_dump(), api_key=None))


async def _used(the: Service, account_id: str) -> Mapping[str, int]:
    """When keys were last used, as far as can be known now."""
    try:
        return await the.used.of(account_id)
    except StoreDown:
        return {}


def _expiry(expires_at: datetime | None, now_ms: int) -> int | None:
    if expires_at is None:
        return None
    try:
        expires_at_ms = int(expires_at.timestamp() * 1000)
    except (OverflowError, ValueError):
        expires_at_ms = -1
    if not now_ms < expires_at_ms < _YEAR_10000_MS:
        raise bad_request([("expires_at", "must lie ahead, before the year 10000")])
    return expires_at_ms


def _page(facts: Mapping[str, F], limit: int, cursor: str | None) -> tuple[Sequence[F], str | None]:
    """Those behind the cursor, by id, and the cursor of the next ones."""
    ids = sorted(facts)
    begin = bisect_right(ids, pages.read(cursor, str) or "")
    page = ids[begin : begin + limit]
    more = begin + limit < len(ids)
    return [facts[one] for one in page], pages.written(page[-1]) if more else None
