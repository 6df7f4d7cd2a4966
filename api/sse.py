"""A response of server-sent events: one writer per connection, bytes as they come from a `Reader`.

Why not sse-starlette: docs/decisions/0010-event-streams.md. How connections end and clients come back:
docs/decisions/0014-how-streams-end.md.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.open_streams import OpenStreams
from api.reading import HEARTBEAT, Patience, Reader

__all__ = ["HEADERS", "PENDING", "EventStream", "OpenStreams", "Source"]

HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}

PENDING = "turnlog.stream"
"""Key in the ASGI scope of a stream that the edge has to send."""

RETRY_MS = (500, 1_500)
"""How soon a browser's EventSource comes back after the end of a connection: one value between these for each."""
BEATS_FROM = 0.5
"""A stream's heartbeat is due after a silence between this share of the time and nearly all of it."""


class Source(Protocol):
    """What a stream is made of: a `Reader`, or a feed."""

    async def next(self) -> bytes | None:
        """The next whole events or a heartbeat; None at the end."""

    def beat(self) -> None:
        """Nothing was sent for a while."""

    def stop(self) -> None:
        """End at the next boundary."""

    def close(self) -> None:
        """Let go of what it holds."""


class EventStream(Response):
    """The response. `first` goes out at once, before the source is asked for more.

    Of a `Reader`, whose events are native, the first event of the connection has the line `retry` before its others.
    """

    def __init__(
        self, source: Source, streams: OpenStreams, *, first: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        self.source = source
        self.status_code = 200
        self.background = None
        self.init_headers({**HEADERS, **(headers or {})})
        self._streams = streams
        self._first = first
        self._phase = streams.phase()
        self._sent_s = 0.0
        self._sending = False
        self._cut_off = False
        self._task: asyncio.Task[object] | None = None

    def tick(self, now_s: float, patience: Patience) -> bool:
        """Time has passed: cut off a client that takes nothing, wake one that had nothing for long.

        Streams that fell silent together beat one after the other. True: this one was woken.
        """
        silent_s = now_s - self._sent_s
        if self._sending:
            if silent_s > patience.send_timeout_s and self._task is not None and not self._cut_off:
                self._cut_off = True
                self._task.cancel()
            return False
        due_s = patience.heartbeat_s * (BEATS_FROM + (1 - BEATS_FROM) * self._phase) - 2 * self._streams.lap_s
        if silent_s < due_s:
            return False
        self._sent_s = now_s
        self.source.beat()
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Leave it to the edge to send, once everything that made this answer is off the stack.

        While a stream is open, only the edge and this object are alive for it, not the layers of the framework.
        """
        scope[PENDING] = self

    async def run(self, receive: Receive, send: Send) -> None:
        """Send until the source ends or the client leaves."""
        now_s = asyncio.get_running_loop().time
        self._task = asyncio.current_task()
        self._sent_s = now_s()
        client = Client(receive, self.source.stop)
        self._streams.add(self)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            self.raw_headers = []
            chunk: bytes | None = self._first or await self.source.next()
            # Nothing that was sent may be held while the stream waits: thousands do.
            self._first = b""
            retry = isinstance(self.source, Reader)
            while chunk is not None and not client.left:
                if retry and chunk != HEARTBEAT:
                    retry = False
                    chunk = b"retry: %d\n%b" % (retry_ms(self._phase), chunk)
                self._sent_s = now_s()
                self._sending = True
                sending = send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = None
                await sending
                self._sending = False
                del sending
                chunk = await self.source.next()
            if not client.left:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except asyncio.CancelledError:
            if not self._cut_off:
                raise
            self._streams.cut_off()
        finally:
            self._streams.remove(self)
            self.source.close()
            client.close()


class Client:
    """Learns from `receive` that the client has left, without a task of its own where the server gives futures."""

    __slots__ = ("_gone", "_receive", "_waiting", "left")

    def __init__(self, receive: Receive, gone: Callable[[], None]) -> None:
        self.left = False
        self._receive = receive
        self._gone = gone
        self._waiting: Any = None
        self._listen()

    def close(self) -> None:
        """Do not listen any more."""
        self._waiting.cancel()

    def _listen(self) -> None:
        waiting: Awaitable[Any] = self._receive()
        self._waiting = waiting if hasattr(waiting, "add_done_callback") else asyncio.ensure_future(waiting)
        self._waiting.add_done_callback(self._heard)

    def _heard(self, waiting: Any) -> None:
        if waiting.cancelled():
            return
        if waiting.exception() is None and waiting.result()["type"] != "http.disconnect":
            self._listen()
            return
        self.left = True
        self._gone()


def retry_ms(phase: float) -> int:
    """The value of the line `retry` of a connection with this phase (0 to 1)."""
    least, most = RETRY_MS
    return math.floor(least + (most - least) * phase)
