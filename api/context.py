"""What a request carries through the process: its id, its trace, its caller; and what the process gives to requests."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import structlog
from fastapi import Depends, Header, Query, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from api import tickets
from api.account_changes import AccountChanges
from api.accounts import Caller, caller_of, caller_of_user
from api.conversations import Conversations
from api.feed_response import FeedAnswers
from api.following import Streams
from api.health import Health
from api.issuer_keys import REFETCH_S, KeysAway
from api.issuers import Refused, Tokens
from api.last_used import LastUsed
from api.limits import Told
from api.limits_spend import Spending
from api.metrics import Metrics
from api.operator import OperatorKey
from api.problems import (
    bad_request,
    not_found,
    operator_unauthorised,
    ticket_refused,
    token_refused,
    unauthorised,
    unavailable,
)
from api.sending import Sender
from api.stores import HotStore, Views
from schemas.account import Accounts
from schemas.events import KeyIssued
from schemas.ids import Identities, Kind, Parsed, has_secret, key_hash, without_secrets
from schemas.limits import CLIENT_MESSAGE_ID_CHARS_MAX
from schemas.models import Model
from schemas.prices import PriceEntry
from schemas.tiers import Tiers
from streams.log.trace import child

REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

_BEARER = HTTPBearer(auto_error=False, description="An API key, or a token (JWT) of an issuer that is trusted here.")
_API_KEY = APIKeyHeader(name="x-api-key", auto_error=False, description="The same, as Anthropic's clients send it.")


@dataclass(frozen=True, slots=True)
class Service:
    """All that the routes use, wired by `__main__`."""

    ids: Identities
    models: tuple[Model, ...]
    tiers: Tiers
    accounts: Accounts
    sender: Sender
    conversations: Conversations
    streams: Streams
    feeds: FeedAnswers
    hot: HotStore
    views: Views
    spending: Spending
    health: Health
    metrics: Metrics
    ticket_ms: int
    """How long a ticket opens its stream."""
    now_ms: Callable[[], int]
    used: LastUsed
    tokens: Tokens
    changes: AccountChanges
    operator: OperatorKey | None = None
    """None: there are no calls for the operator."""
    prices: tuple[PriceEntry, ...] = ()

    def hidden(self, text: str) -> str:
        """The text without keys and tokens, for answers and logs that repeat what a client sent."""
        return without_secrets(text if self.operator is None else self.operator.hidden(text))


@dataclass(frozen=True, slots=True)
class Trail:
    """A request's id, and its place in a W3C trace."""

    request_id: str
    traceparent: str
    limits: Told = field(default_factory=Told)
    """How the caller's limits stand; filled in by who decides a send."""

    @classmethod
    def of(cls, request_id: str | None, traceparent: str | None, made_id: str) -> "Trail":
        """Taken from the caller's headers where they are good, made otherwise."""
        good = request_id is not None and REQUEST_ID.fullmatch(request_id) is not None
        return cls(request_id if good and request_id else made_id, child(traceparent))


def service(request: Request) -> Service:
    """The process's service."""
    found: Service = request.app.state.service
    return found


def trail(request: Request) -> Trail:
    """The request's trail, made at the edge."""
    found: Trail = request.scope["turnlog.trail"]
    return found


async def _service(request: Request) -> Service:
    return service(request)


async def _trail(request: Request) -> Trail:
    return trail(request)


def check_query(request: Request) -> None:
    """Raises `Problem` 400 for query parameters that the call does not have."""
    whole = request.scope["route"].dependant
    known = {field.alias for part in (whole, *whole.dependencies) for field in part.query_params}
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        those = f"known {'is' if len(known) == 1 else 'are'} {', '.join(sorted(known))}" if known else "nothing is"
        told = f"is not known here; {those}"
        raise bad_request([(name, told) for name in unknown])


async def _credential(
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
    api_key: Annotated[str | None, Security(_API_KEY)],
) -> str | None:
    return bearer.credentials if bearer is not None else api_key


Credential = Annotated[str | None, Depends(_credential)]


async def _caller(request: Request, credential: Credential) -> Caller:
    if not credential:
        raise unauthorised()
    the = service(request)
    now_ms = the.now_ms()
    issued = the.accounts.opened_by(key_hash(credential), now_ms)
    caller: Caller | None = None
    if issued is not None:
        caller = caller_of(the.accounts, the.tiers, issued, now_ms)
        the.used.note(issued.account_id, issued.key_id)
    elif the.tokens.is_one(credential):
        caller = await _user(the, credential, now_ms)
    return _admitted(request, the, caller)


async def _user(the: Service, token: str, now_ms: int) -> Caller | None:
    """Who has this token. Raises `Problem` 401, or 503 while it cannot be checked."""
    read = await the.tokens.read(token, now_ms / 1000)
    if isinstance(read, KeysAway):
        detail = "The keys of the token's issuer cannot be fetched, so it cannot be checked. API keys go on to work."
        raise unavailable("issuer", detail, REFETCH_S)
    if isinstance(read, Refused):
        raise token_refused(read.reason)
    caller = caller_of_user(the.accounts, the.tiers, read.account_id, read.user_id, read.expires_at_ms)
    _check_accounts(the)
    if caller is None:
        raise token_refused("is good, but opens no account: it does not exist, is closed, or does not let this user in")
    return caller


async def _follower(
    request: Request,
    credential: Credential,
    ticket: Annotated[str | None, Query(description="From `POST /v1/tickets`, instead of a key.")] = None,
) -> Caller:
    if ticket is None:
        return await _caller(request, credential)
    the = service(request)
    now_ms = the.now_ms()
    found = tickets.read(ticket, the.ids.secret, now_ms)
    if found is None or found.stream_id not in request.path_params.values():
        raise ticket_refused()
    issued = the.accounts.key(found.account_id, found.key_id)
    caller: Caller | None = None
    if isinstance(issued, KeyIssued):
        caller = caller_of(the.accounts, the.tiers, issued, now_ms)
    elif not found.key_id and found.user_id is not None:
        caller = caller_of_user(the.accounts, the.tiers, found.account_id, found.user_id)
    return _admitted(request, the, caller)


def _check_accounts(the: Service) -> None:
    if not the.health.accounts_complete:
        raise unavailable("accounts", "The accounts are still being read from the log (Kafka).", 1.0)


def _admitted(request: Request, the: Service, caller: Caller | None) -> Caller:
    _check_accounts(the)  # before: a key that is revoked further on in the log would open its account
    if caller is None:
        raise unauthorised()
    structlog.contextvars.bind_contextvars(account_id=caller.account_id)
    check_query(request)
    return caller


async def _operator(request: Request, credential: Credential) -> None:
    the = service(request)
    if the.operator is None or not credential or not the.operator.opens(credential):
        raise operator_unauthorised()
    check_query(request)
    _check_accounts(the)


AsOperator = Depends(_operator)
"""For the `dependencies` of a router that is the operator's alone; include it where `Service.operator` is not None."""


def _idempotency_key(
    key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            description="Makes the call idempotent, per account: repeated, it gives the same reply.",
        ),
    ] = None,
) -> str | None:
    if key is not None and not 1 <= len(key) <= CLIENT_MESSAGE_ID_CHARS_MAX:
        raise bad_request([("Idempotency-Key", f"must have 1 to {CLIENT_MESSAGE_ID_CHARS_MAX} characters")])
    if key is not None and has_secret(key):
        raise bad_request([("Idempotency-Key", "is a key or a token; take any other text")])
    return key


TheIdempotencyKey = Annotated[str | None, Depends(_idempotency_key)]


TheService = Annotated[Service, Depends(_service)]
TheTrail = Annotated[Trail, Depends(_trail)]
TheCaller = Annotated[Caller, Depends(_caller)]
TheFollower = Annotated[Caller, Depends(_follower)]
"""The caller of a stream: by key, or by a ticket for it."""


def own(the: Service, caller: Caller, text: str, what: str, *kinds: Kind) -> Parsed:
    """The caller's own id. Raises `Problem` 404, the same for all others."""
    parsed = the.ids.parse(caller.account_id, text)
    if parsed is None or parsed.kind not in kinds:
        raise not_found(what)
    return parsed


def own_reply(the: Service, caller: Caller, text: str) -> Parsed:
    """The caller's own reply. Raises `Problem` 404, or 400 for a user's message."""
    parsed = own(the, caller, text, "message", "msg", "rep")
    if parsed.kind != "rep":
        raise bad_request([("message_id", "is a user's message; use the id of its reply")], "not_a_reply")
    return parsed


def answer(view: BaseModel, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(view.model_dump_json(), status, media_type="application/json")
