"""Refusals as the clients of each format expect them. The status and what it says are the same as natively, but for
Anthropic's clients, to whom no capacity is 529.

Sources: https://platform.openai.com/docs/guides/error-codes, https://docs.anthropic.com/en/api/errors
"""

from collections.abc import Mapping

from starlette.responses import Response

from api.problems import Problem
from schemas.codec import to_json

ANTHROPIC_REQUEST_ID = "request-id"
"""The header in which Anthropic's clients look for a request's id."""

_OPENAI_TYPES = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    410: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}

NO_CAPACITY = frozenset({"high_demand", "no_worker", "queue_full", "pool_unknown"})
"""Codes of what is refused for want of workers, at the door or as a reply's end."""
OVERLOADED = 529
"""What Anthropic answers then; 503 is a part that is down."""

_OPENAI_AT_HOME = ("/v1/chat/", "/v1/responses", "/v1/completions", "/v1/embeddings")
"""Where OpenAI's clients look whose base URL is ours without `/openai`: nothing native is there."""


def response(path: str, problem: Problem, request_id: str, *, anthropic: bool = False) -> Response:
    """The answer to a refused request of this path. `anthropic`: it has the headers of Anthropic's clients."""
    if path.startswith(_OPENAI_AT_HOME):
        return _answer(problem, openai_error(problem, " OpenAI's API is at /openai/v1 here: use that as the base URL."))
    if path.startswith("/openai/"):
        return _answer(problem, openai_error(problem))
    if path.startswith("/v1/") and anthropic:
        hint = " Anthropic's API is at /anthropic here: add that to the base URL."
        return _answer(problem, anthropic_error(problem.status, problem.detail + hint))
    if path.startswith("/anthropic/"):
        status = OVERLOADED if problem.code in NO_CAPACITY else problem.status
        refused = _answer(problem, anthropic_error(status, problem.detail), status)
        refused.headers[ANTHROPIC_REQUEST_ID] = request_id
        return refused
    return problem.response()


def openai_error(problem: Problem, hint: str = "") -> dict[str, dict[str, object]]:
    """`{"error": {"message", "type", "param", "code"}}`."""
    kind = _OPENAI_TYPES.get(problem.status, "invalid_request_error" if problem.status < 500 else "server_error")
    param = problem.errors[0].field if problem.errors else None
    return {"error": {"message": problem.detail + hint, "type": kind, "param": param, "code": problem.code}}


def openai_stream_error(problem: Problem) -> dict[str, dict[str, object]]:
    """The same inside of a stream, where no header can say when to try again: `retry_after_s`, if there is a time."""
    body = openai_error(problem)
    if problem.retry_after_s is not None:
        body["error"]["retry_after_s"] = problem.retry_after_s
    return body


def anthropic_error(status: int, message: str) -> dict[str, object]:
    """`{"type": "error", "error": {"type", "message"}}`."""
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def _answer(problem: Problem, body: Mapping[str, object], status: int | None = None) -> Response:
    return Response(to_json(body), status or problem.status, problem.answer_headers(), "application/json")
