"""The HTTP application: routes, and one shape for everything that goes wrong."""

from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from api import openapi
from api.context import Service, service, trail
from api.formats import errors
from api.problems import Problem, bad_request
from api.routes import (
    account,
    admin,
    admin_billing,
    admin_keys,
    ai_sdk,
    anthropic,
    conversations,
    durable,
    invoices,
    messages,
    openai,
    probes,
    tickets,
)

log = structlog.get_logger()

VERSION = "0.1.0"
DESCRIPTION = """
Chat with models on your own hardware: an accepted message is never lost, a reply's stream can be resumed from any
offset, and every token is billed once.

Every refusal is `application/problem+json`; under the prefixes of other clients' formats it is what they expect.
Every answer carries `X-Request-Id`; send your own to find it in the logs.
"""


def create_app(service: Service) -> FastAPI:
    """The application around a wired service."""
    parts = [messages, tickets, conversations, account, invoices, probes, durable, anthropic, ai_sdk, openai]
    if service.operator is not None:
        parts += [admin, admin_keys, admin_billing]
    app = FastAPI(
        # The routes themselves: each inclusion of a router would analyse all of them again.
        routes=[route for part in parts for route in part.router.routes],
        title="Turnlog",
        version=VERSION,
        description=DESCRIPTION.strip(),
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _broken)
    app.openapi = lambda: openapi.document(app)  # type: ignore[method-assign]
    return app


async def _problem(request: Request, error: Any) -> Response:
    return _refused(request, error)


async def _http(request: Request, error: Any) -> Response:
    status: int = error.status_code
    detail = str(error.detail)
    if status == 404:
        detail = "There is nothing at this address."
    elif status == 405:
        allowed = (error.headers or {}).get("Allow", "")
        detail = f"{request.method} is not possible here{f'; {allowed} is' if allowed else ''}."
    code = {404: "no_such_address", 405: "method_not_allowed", 400: "invalid_request"}.get(status, f"http_{status}")
    title = {404: "Not found", 405: "Method not allowed", 400: "Bad request"}.get(status, detail)
    return _refused(request, Problem(status, code, title, detail, headers=error.headers))


async def _invalid(request: Request, error: Any) -> Response:
    invalid: RequestValidationError = error
    told = [(str(detail["loc"][-1]), str(detail["msg"])) for detail in invalid.errors()]
    problem = bad_request([(field, reason[:1].lower() + reason[1:]) for field, reason in told])
    return _refused(request, problem)


async def _broken(request: Request, error: Exception) -> Response:
    log.error("request failed", path=service(request).hidden(request.url.path), exc_info=error)
    problem = Problem(500, "internal", "Internal error", "This is a fault of the service, and it is logged.")
    return _refused(request, problem)


def _refused(request: Request, problem: Problem) -> Response:
    anthropic = "anthropic-version" in request.headers
    told = problem.hidden(service(request).hidden)
    return errors.response(request.url.path, told, trail(request).request_id, anthropic=anthropic)
