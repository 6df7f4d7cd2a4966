"""The outermost layer: each request gets its id and its place in a trace, is measured, and is logged once."""

import time
from collections.abc import Callable

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.context import Trail
from api.metrics import Metrics
from api.sse import PENDING, EventStream
from schemas.ids import instance_id
from streams.log.trace import trace_id

log = structlog.get_logger()

_UNLOGGED = frozenset({"/healthz", "/readyz", "/metrics"})


class Edge:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, metrics: Metrics, make_id: Callable[[], str] = instance_id) -> None:
        self._app = app
        self._metrics = metrics
        self._make_id = make_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()
        named = _headers(scope)
        trail = Trail.of(named.get(b"x-request-id"), named.get(b"traceparent"), self._make_id())
        scope["turnlog.trail"] = trail
        request_id = (b"x-request-id", trail.request_id.encode("latin-1"))
        status = 0
        answered_s = began_s

        async def answer(message: Message) -> None:
            nonlocal status, answered_s
            if message["type"] == "http.response.start":
                status = message["status"]
                answered_s = time.perf_counter()
                message["headers"] = [*message.get("headers", ()), request_id]
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=trail.request_id, trace_id=trace_id(trail.traceparent)):
            try:
                await self._app(scope, receive, answer)
                stream: EventStream | None = scope.get(PENDING)
                if stream is not None:
                    await stream.run(receive, answer)
            finally:
                self._told(scope, status, began_s, answered_s)
                structlog.contextvars.unbind_contextvars("account_id")

    def _told(self, scope: Scope, status: int, began_s: float, answered_s: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if route != "none" else "any"
        self._metrics.requests.labels(method, route, str(status)).inc()
        self._metrics.latency_s.labels(method, route).observe(answered_s - began_s)
        if route not in _UNLOGGED:
            log.info(
                "answered",
                method=scope["method"],
                path=scope["path"],
                status=status,
                began_ms=round((answered_s - began_s) * 1000, 2),
                took_ms=round((time.perf_counter() - began_s) * 1000, 2),
            )


def _headers(scope: Scope) -> dict[bytes, str]:
    return {
        name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"x-request-id", b"traceparent")
    }
