"""The outermost layer: each request gets its id and its place in a trace, is measured, and is logged once."""

import time
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.context import Trail
from api.draining import RequestBody
from api.limits_headers import headers_of
from api.metrics import Metrics
from api.pacing import Pacing
from api.sse import PENDING, EventStream
from schemas.ids import instance_id, without_secrets
from streams.log.trace import trace_id

log = structlog.get_logger()

BEGUN_AT_ONCE = 8
"""Requests begun in one iteration of the event loop: each takes about half a millisecond of it."""

_UNLOGGED = frozenset({"/healthz", "/readyz", "/metrics"})


class Edge:
    """An ASGI application around another."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        make_id: Callable[[], str] = instance_id,
        hidden: Callable[[str], str] = without_secrets,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._hidden = hidden
        self._make_id = make_id
        self._pacing = Pacing(BEGUN_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()
        if scope["path"] not in _UNLOGGED:  # a probe of a busy process must not wait in its line
            await self._pacing.turn()
        named = _headers(scope)
        request_id = named.get(b"x-request-id")
        if request_id is not None and self._hidden(request_id) != request_id:
            request_id = None  # a key is no id: this one gets into logs and events
        trail = Trail.of(request_id, named.get(b"traceparent"), self._make_id())
        scope["turnlog.trail"] = trail
        body = RequestBody(receive, scope)
        answer = _Answer(send, body, trail, scope["path"], began_s)
        with structlog.contextvars.bound_contextvars(request_id=trail.request_id, trace_id=trace_id(trail.traceparent)):
            told = _Told("any", "none", "")
            try:
                try:
                    await self._app(scope, body, answer)
                finally:
                    told = _Told.of(scope)
                stream: EventStream | None = scope.get(PENDING)
                if stream is not None:
                    # Thousands of streams wait here: what made the answer is not kept for them.
                    scope.clear()
                    del named, trail, scope
                    await stream.run(receive, answer)
            finally:
                self._tell(told, answer, began_s)
                structlog.contextvars.unbind_contextvars("account_id")

    def _tell(self, told: "_Told", answer: "_Answer", began_s: float) -> None:
        method = told.method if told.route != "none" else "any"
        self._metrics.requests.labels(method, told.route, str(answer.status)).inc()
        self._metrics.latency_s.labels(method, told.route).observe(answer.began_s - began_s)
        if told.route not in _UNLOGGED:
            log.info(
                "answered",
                method=told.method,
                path=self._hidden(told.path),
                status=answer.status,
                began_ms=round((answer.began_s - began_s) * 1000, 2),
                took_ms=round((time.perf_counter() - began_s) * 1000, 2),
            )


class _Told(msgspec.Struct, frozen=True, gc=False):
    """What is said of a request in the end."""

    method: str
    route: str
    path: str

    @classmethod
    def of(cls, scope: Scope) -> "_Told":
        return cls(scope["method"], getattr(scope.get("route"), "path", "none"), scope["path"])


class _Answer:
    """The server's `send`, with the request's id and the caller's limits among the headers; notes the status and when
    the answer began.
    """

    __slots__ = ("_body", "_limits", "_path", "_request_id", "_send", "began_s", "status")

    def __init__(self, send: Send, body: RequestBody, trail: Trail, path: str, began_s: float) -> None:
        self._send = send
        self._body = body
        self._request_id = trail.request_id
        self._limits = trail.limits
        self._path = path
        self.status = 0
        self.began_s = began_s

    def __call__(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.began_s = time.perf_counter()
            request_id = (b"x-request-id", self._request_id.encode("latin-1"))
            limits = headers_of(self._path, self._limits, time.time())
            message["headers"] = [*message.get("headers", ()), request_id, *limits]
            if not self._body.whole:
                return self._early(message)
        return self._send(message)

    async def _early(self, message: Message) -> None:
        closes = any(name.lower() == b"connection" for name, _ in message["headers"])
        if not closes and not await self._body.drained():
            message["headers"].append((b"connection", b"close"))
        await self._send(message)


def _headers(scope: Scope) -> dict[bytes, str]:
    return {
        name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"x-request-id", b"traceparent")
    }
