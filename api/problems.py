"""Errors as `application/problem+json` (RFC 9457): one shape for every refusal that a client can see.

Members: `type`, `title`, `status`, `detail`, `code` (stable, for programs), and where they say something
`retry_after_s` (with the header `Retry-After`), `errors` (the fields of a bad request, each with its reason) and
`message_url` (where a stored reply can be read instead of its stream).
"""

import math
from collections.abc import Callable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from schemas.codec import to_json
from schemas.values import Failure

MEDIA_TYPE = "application/problem+json"
DO_NOT_RETRY = {"x-should-retry": "false"}


class FieldError(BaseModel):
    """One member of a request that is wrong."""

    model_config = ConfigDict(frozen=True)

    field: str = Field(examples=["content"])
    reason: str = Field(examples=["must not be empty"])


class ProblemView(BaseModel):
    """The body of every refusal."""

    model_config = ConfigDict(frozen=True)

    type: str = Field(examples=["urn:turnlog:problem:not_found"])
    title: str = Field(examples=["Not found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["There is no such message."])
    code: str = Field(examples=["not_found"])
    retry_after_s: float | None = None
    errors: list[FieldError] | None = None
    message_url: str | None = None


class Problem(Exception):
    """A refusal, to be answered as it stands."""

    def __init__(
        self,
        status: int,
        code: str,
        title: str,
        detail: str,
        *,
        retry_after_s: float | None = None,
        errors: Sequence[FieldError] = (),
        message_url: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status = status
        self.code = code
        self.title = title
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.errors = tuple(errors)
        self.message_url = message_url
        self.headers = dict(headers or {})

    def hidden(self, hide: Callable[[str], str]) -> "Problem":
        """The same, with what must not be told taken out of its words."""
        return Problem(
            self.status,
            self.code,
            self.title,
            hide(self.detail),
            retry_after_s=self.retry_after_s,
            errors=[FieldError(field=hide(error.field), reason=hide(error.reason)) for error in self.errors],
            message_url=self.message_url,
            headers=self.headers,
        )

    def response(self) -> Response:
        """The answer."""
        body: dict[str, object] = {
            "type": f"urn:turnlog:problem:{self.code}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }
        if self.retry_after_s is not None:
            body["retry_after_s"] = self.retry_after_s
        if self.errors:
            body["errors"] = [{"field": error.field, "reason": error.reason} for error in self.errors]
        if self.message_url is not None:
            body["message_url"] = self.message_url
        return Response(to_json(body), self.status, self.answer_headers(), MEDIA_TYPE)

    def answer_headers(self) -> dict[str, str]:
        """The headers of the answer, in whatever format."""
        return {**self.headers, **retry_after(self.retry_after_s)}


def retry_after(seconds: float | None) -> dict[str, str]:
    """The header that says when to try again, where there is such a time: whole seconds, rounded up."""
    return {} if seconds is None else {"Retry-After": str(max(math.ceil(seconds), 1))}


def bad_request(errors: Sequence[tuple[str, str]], code: str = "invalid_request") -> Problem:
    """400: which fields are wrong, and why."""
    listed = [FieldError(field=field, reason=reason) for field, reason in errors]
    detail = "; ".join(f"{error.field}: {error.reason}" for error in listed)
    return Problem(400, code, "Bad request", detail, errors=listed)


def unauthorised() -> Problem:
    """401: no key, or one that opens nothing."""
    detail = "Send a valid API key: Authorization: Bearer <key>, or x-api-key: <key>."
    return Problem(401, "unauthorised", "Unauthorised", detail, headers={"WWW-Authenticate": "Bearer"})


def token_refused(reason: str) -> Problem:
    """401: a token (JWT) that opens nothing."""
    headers = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
    return Problem(401, "token_refused", "Unauthorised", f"The token {reason}.", headers=headers)


def operator_unauthorised() -> Problem:
    """401: not the operator's key."""
    detail = "Send the operator's key: Authorization: Bearer <key>."
    return Problem(401, "unauthorised", "Unauthorised", detail, headers={"WWW-Authenticate": "Bearer"})


def ticket_refused() -> Problem:
    """401: a ticket that has expired, is of another stream, or was never one."""
    detail = "This ticket does not open this stream (any more). Ask for a new one: POST /v1/tickets."
    return Problem(401, "ticket_refused", "Unauthorised", detail)


def not_found(what: str) -> Problem:
    """404: absent, deleted, or somebody else's. Nothing in the answer tells which."""
    return Problem(404, "not_found", "Not found", f"There is no such {what}.")


def conflict() -> Problem:
    """409: the client message id was used for another request."""
    detail = (
        "This client_message_id (or Idempotency-Key) was used before, with another body. "
        "Send the same body again, or use a new one."
    )
    return Problem(409, "client_message_id_conflict", "Conflict", detail, headers=DO_NOT_RETRY)


def gone(detail: str, message_url: str) -> Problem:
    """410: a cursor that cannot be served exactly; the message itself can be read."""
    return Problem(410, "cursor_gone", "Gone", detail, message_url=message_url)


def too_large(limit: int) -> Problem:
    """413: a body that is larger than any body may be."""
    return Problem(413, "body_too_large", "Content too large", f"A request body has at most {limit} bytes.")


def too_slow(seconds: float) -> Problem:
    """408: a body that does not come to its end."""
    detail = f"The body did not come within {seconds:g} s. Send it again."
    return Problem(408, "body_timeout", "Request timeout", detail, headers={"Connection": "close"})


def unsupported_media_type(got: str) -> Problem:
    """415: a body that is not declared as JSON."""
    detail = f"Send the body as application/json, not as {got or 'nothing'}."
    return Problem(415, "unsupported_media_type", "Unsupported media type", detail)


def rate_limited(retry_after_s: float) -> Problem:
    """429: the account's requests per minute are used up."""
    detail = f"Too many requests; try again in {retry_after_s:g} s."
    return Problem(429, "rate_limited", "Too many requests", detail, retry_after_s=retry_after_s)


def tokens_limited(bucket: str, retry_after_s: float) -> Problem:
    """429: a bucket of tokens does not hold enough now."""
    detail = f"The tokens of the limit {bucket!r} are used up for now; try again in {retry_after_s:g} s."
    return Problem(429, "tokens_limited", "Too many tokens", detail, retry_after_s=retry_after_s)


def too_many_running(most: int, retry_after_s: float) -> Problem:
    """429: as many replies of the account run as may. When one ends is not known: look again then."""
    detail = f"{most} replies of this account run, which is as many as may; try again when one of them has ended."
    return Problem(429, "too_many_running", "Too many replies at once", detail, retry_after_s=retry_after_s)


def larger_than_limit(bucket: str, tokens: int, capacity: int, output_tokens: int) -> Problem:
    """413: more than a bucket holds when it is full; waiting changes nothing."""
    detail = (
        f"This may take {tokens} tokens, of which {output_tokens} are its longest output; the limit {bucket!r} holds"
        f" {capacity} at most. Send less, or ask for fewer output tokens."
    )
    return Problem(413, "larger_than_limit", "Larger than the limit", detail, headers=DO_NOT_RETRY)


def spend_limited(spent: str, cap: str, retry_after_s: float) -> Problem:
    """402: the account has spent what it may in this month."""
    detail = f"{spent} of {cap} are spent in this calendar month (UTC). It goes on with the next one, or a higher cap."
    title = "Spend limit reached"
    return Problem(402, "spend_limited", title, detail, retry_after_s=retry_after_s, headers=DO_NOT_RETRY)


def no_capacity(failure: Failure) -> Problem:
    """503: there is more to do than workers can, or no worker at all; nothing was accepted."""
    return Problem(503, failure.code, "Service unavailable", failure.detail, retry_after_s=failure.retry_after_s or 1)


def unavailable(what: str, detail: str, retry_after_s: float = 2.0) -> Problem:
    """503: something that is needed is down; `what` names it."""
    return Problem(503, f"{what}_unavailable", "Service unavailable", detail, retry_after_s=retry_after_s)
