"""A response of server-sent events: one writer per connection, bytes as they come from a `Reader`.

Why not sse-starlette: docs/decisions/0010-event-streams.md.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.metrics import Metrics
from api.problems import unavailable
from api.reading import Patience

HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}


PENDING = "turnlog.stream"
"""Key in the ASGI scope of a stream that the edge has to send."""


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


class Open(Protocol):
    """A stream that is being sent: an `EventStream`, or a feed's response."""

    source: Source

    def tick(self, now_s: float, patience: Patience) -> None:
        """Time has passed."""


class OpenStreams:
    """All streams of a process: their heartbeats, their send timeouts and their end at shutdown."""

    def __init__(self, patience: Patience, metrics: Metrics, streams_max: int) -> None:
        self._patience = patience
        self._metrics = metrics
        self._streams_max = streams_max
        self._open: set[Open] = set()
        self._none_open = asyncio.Event()
        self._stopping = False

    def admit(self) -> None:
        """Raises `Problem` 503 when this process takes no more streams."""
        full = len(self._open) >= self._streams_max
        if full or self._stopping:
            detail = "This process takes no more streams now." if full else "This process is stopping."
            raise unavailable("streams", detail, 1.0)

    def add(self, stream: Open) -> None:
        """A stream begins."""
        self._open.add(stream)
        self._none_open.clear()
        self._metrics.streams_open.inc()
        if self._stopping:
            stream.source.stop()

    def remove(self, stream: Open) -> None:
        """A stream is over."""
        self._open.discard(stream)
        if not self._open:
            self._none_open.set()
        self._metrics.streams_open.dec()

    def cut_off(self) -> None:
        """A stream's client took nothing for too long."""
        self._metrics.streams_cut_off.inc()

    async def keep(self) -> None:
        """Look after the streams, until cancelled."""
        period_s = min(self._patience.heartbeat_s, self._patience.send_timeout_s) / 8
        while True:
            await asyncio.sleep(min(period_s, 1.0))
            now_s = asyncio.get_running_loop().time()
            for stream in list(self._open):
                stream.tick(now_s, self._patience)

    async def stop(self, timeout_s: float) -> None:
        """End all streams at a boundary of events; those that do not end in time are dropped with the process."""
        self._stopping = True
        for stream in list(self._open):
            stream.source.stop()
        if self._open:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._none_open.wait(), timeout_s)


class EventStream(Response):
    """The response. `first` goes out at once, before the source is asked for more."""

    def __init__(
        self, source: Source, streams: OpenStreams, *, first: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        self.source = source
        self.status_code = 200
        self.background = None
        self.init_headers({**HEADERS, **(headers or {})})
        self._streams = streams
        self._first = first
        self._sent_s = 0.0
        self._sending = False
        self._cut_off = False
        self._task: asyncio.Task[object] | None = None

    def tick(self, now_s: float, patience: Patience) -> None:
        """Time has passed: cut off a client that takes nothing, wake one that had nothing for long."""
        silent_s = now_s - self._sent_s
        if self._sending:
            if silent_s > patience.send_timeout_s and self._task is not None and not self._cut_off:
                self._cut_off = True
                self._task.cancel()
        elif silent_s >= patience.heartbeat_s:
            self._sent_s = now_s
            self.source.beat()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Leave it to the edge to send, once everything that made this answer is off the stack.

        While a stream is open, only the edge and this object are alive for it, not the layers of the framework:
        38 KB a stream instead of 51, the server's part included.
        """
        scope[PENDING] = self

    async def run(self, receive: Receive, send: Send) -> None:
        """Send until the source ends or the client leaves."""
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._sent_s = loop.time()
        gone = loop.create_task(_gone(receive))
        gone.add_done_callback(lambda _: self.source.stop())
        self._streams.add(self)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            chunk: bytes | None = self._first or await self.source.next()
            while chunk is not None and not gone.done():
                self._sent_s = loop.time()
                self._sending = True
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                self._sending = False
                chunk = await self.source.next()
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except asyncio.CancelledError:
            if not self._cut_off:
                raise
            self._streams.cut_off()
        finally:
            self._streams.remove(self)
            self.source.close()
            gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
