"""The operator's calls: accounts. There only with TURNLOG_OPERATOR_KEY."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from api import pages
from api.admin_bodies import AccountBody, AccountChangeBody, LimitsBody
from api.admin_shapes import AccountPage, AccountView, account_view
from api.bodies import read
from api.context import AsOperator, Service, TheService, TheTrail, answer
from api.openapi import body_of, problems
from api.problems import Problem, bad_request, not_found
from api.routes.conversations import Cursor, Limit
from schemas.account import Account, with_own
from schemas.events import (
    AccountClosed,
    AccountOpened,
    AccountRenamed,
    Event,
    LimitsChanged,
    TierChanged,
    UnknownUsersChosen,
)
from schemas.ids import ACCOUNT_ID
from schemas.limits import PAGE_DEFAULT
from schemas.tiers import LIFTABLE, rules_of, slow_refill

router = APIRouter(prefix="/v1/admin/accounts", tags=["admin"], dependencies=[AsOperator])

AccountId = Annotated[str, Path(pattern=ACCOUNT_ID)]


@router.get("", summary="List accounts", response_model=AccountPage, responses=problems(400, 401, 503))
async def accounts(the: TheService, limit: Limit = PAGE_DEFAULT, cursor: Cursor = None) -> Response:
    """All accounts by id, closed ones too."""
    found = the.accounts.after(pages.read(cursor, str) or "", limit + 1)
    page = found[:limit]
    next_cursor = pages.written(page[-1].id) if len(found) > limit else None
    return answer(AccountPage(data=[account_view(one, the.tiers) for one in page], next_cursor=next_cursor))


@router.put(
    "/{account_id}",
    status_code=201,
    summary="Open an account",
    response_model=AccountView,
    openapi_extra=body_of(AccountBody),
    responses={
        200: {"model": AccountView, "description": "It was opened before, just so."},
        **problems(400, 401, 408, 409, 413, 415, 503),
    },
)
async def create(account_id: AccountId, request: Request, the: TheService, trail: TheTrail) -> Response:
    """Idempotent. Where the account exists and is not as the body says, 409: change it with PATCH."""
    body = await read(request, AccountBody)
    _check_tier(the, body.tier)
    account = the.accounts.account(account_id)
    if account is None:
        opened = AccountOpened(
            account_id=account_id,
            name=body.name,
            tier=body.tier,
            opened_at_ms=the.now_ms(),
            organisation_id=body.organisation_id,
        )
        await the.changes.append([opened], trail.traceparent)
        return _shown(the, account_id, 201)
    _refuse_closed(account)
    if (account.name, account.tier, account.organisation_id) != (body.name, body.tier, body.organisation_id):
        detail = f"There is an account {account_id}, and it is not as given here. PATCH changes its name and tier."
        raise Problem(409, "account_exists", "Conflict", detail)
    return _shown(the, account_id)


@router.get(
    "/{account_id}", summary="Read an account", response_model=AccountView, responses=problems(400, 401, 404, 503)
)
async def get(account_id: AccountId, the: TheService) -> Response:
    """The account as it is now, closed or not."""
    return answer(account_view(the_account(the, account_id), the.tiers))


@router.patch(
    "/{account_id}",
    summary="Change an account",
    response_model=AccountView,
    openapi_extra=body_of(AccountChangeBody),
    responses=problems(400, 401, 404, 408, 409, 413, 415, 503),
)
async def change(account_id: AccountId, request: Request, the: TheService, trail: TheTrail) -> Response:
    """Its name, its tier, or whether users that were never added are let in. Holds for all calls from now on."""
    account = open_account(the, account_id)
    body = await read(request, AccountChangeBody)
    now_ms = the.now_ms()
    events: list[Event] = []
    if body.name is not None and body.name != account.name:
        events.append(AccountRenamed(account_id=account_id, name=body.name, renamed_at_ms=now_ms))
    if body.tier is not None and body.tier != account.tier:
        _check_tier(the, body.tier)
        events.append(TierChanged(account_id=account_id, tier=body.tier, changed_at_ms=now_ms))
    if body.unknown_users is not None and body.unknown_users != account.unknown_users:
        events.append(UnknownUsersChosen(account_id=account_id, unknown_users=body.unknown_users, chosen_at_ms=now_ms))
    return await _changed(the, account_id, events, trail.traceparent)


@router.put(
    "/{account_id}/limits",
    summary="Set an account's own limits",
    response_model=AccountView,
    openapi_extra=body_of(LimitsBody),
    responses=problems(400, 401, 404, 408, 409, 413, 415, 503),
)
async def set_limits(account_id: AccountId, request: Request, the: TheService, trail: TheTrail) -> Response:
    """All of them at once: what the body does not have is as the tier says."""
    account = open_account(the, account_id)
    body = await read(request, LimitsBody)
    if unserved := sorted(set(body.models or ()) - {model.name for model in the.models}):
        raise bad_request([("models", f"{', '.join(unserved)}: not served here")])
    members = body.model_dump(exclude={"models", "lifted"})
    members["models"] = None if body.models is None else tuple(body.models)
    lifted = tuple(name for name in LIFTABLE if name in body.lifted)
    limits = LimitsChanged(account_id=account_id, changed_at_ms=the.now_ms(), lifted=lifted, **members)
    if wrong := slow_refill(with_own(rules_of(the.tiers, account.tier), limits)):
        raise bad_request([("burst_tokens", wrong)])
    before = account.limits
    same = before is not None and replace(limits, changed_at_ms=before.changed_at_ms) == before
    return await _changed(the, account_id, [] if same else [limits], trail.traceparent)


@router.post(
    "/{account_id}/close",
    summary="Close an account",
    response_model=AccountView,
    responses=problems(400, 401, 404, 503),
)
async def close(account_id: AccountId, the: TheService, trail: TheTrail) -> Response:
    """Nothing opens it any more, for good; replies that run end as they do. What it used and owes stays. Idempotent."""
    account = the_account(the, account_id)
    closed = AccountClosed(account_id=account_id, closed_at_ms=the.now_ms())
    return await _changed(the, account_id, [closed] if account.closed_at_ms is None else [], trail.traceparent)


def the_account(the: Service, account_id: str) -> Account:
    """The account of this id. Raises `Problem` 404."""
    account = the.accounts.account(account_id)
    if account is None:
        raise not_found("account")
    return account


def open_account(the: Service, account_id: str) -> Account:
    """The account of this id, which is not closed. Raises `Problem` 404 or 409."""
    account = the_account(the, account_id)
    _refuse_closed(account)
    return account


def _refuse_closed(account: Account) -> None:
    if account.closed_at_ms is not None:
        raise Problem(409, "account_closed", "Conflict", f"The account {account.id} is closed, for good.")


def _check_tier(the: Service, tier: str) -> None:
    if tier not in the.tiers:
        raise bad_request([("tier", f"is not configured (TURNLOG_TIERS); there are {', '.join(sorted(the.tiers))}")])


async def _changed(the: Service, account_id: str, events: Sequence[Event], traceparent: str) -> Response:
    if events:
        await the.changes.append(events, traceparent)
    return _shown(the, account_id)


def _shown(the: Service, account_id: str, status: int = 200) -> Response:
    return answer(account_view(the_account(the, account_id), the.tiers), status)
