"""A small client for many streams of server-sent events at once, in one process, made to cost little.

Each stream is one HTTP/1.1 request on a connection of its own. Of each read it notes when it came and how many
characters of text are known then, no more: frames are taken apart at the end of a stream, outside the measured time.
"""

import asyncio
import json
import re
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

_FRAME = re.compile(rb"id: (\d+)\r?\nevent: (\w+)\r?\ndata: (.*?)\r?\n\r?\n")
_WORD = b"word"
_STATUS_END = b"\r\n"
_HEAD_END = b"\r\n\r\n"
_TERMINAL = b"event: ended"
_HEAD_BYTES = 512


class Request:
    """Bytes of a request."""

    __slots__ = ("data",)

    def __init__(
        self, method: str, path: str, *, port: int, key: str = "", body: Any = None, headers: Iterable[str] = ()
    ) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Accept: text/event-stream", *headers]
        if key:
            lines.append(f"Authorization: Bearer {key}")
        if content:
            lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        self.data = "\r\n".join([*lines, "", ""]).encode() + content


class Stream(asyncio.Protocol):
    """One stream: `reads` are (seconds since the request, words so far).

    Args:
        request: what to ask.
        words: told of the words in each read.
        keep: keep the bytes and the times of the reads; without them thousands of streams cost little.
    """

    def __init__(self, request: Request, words: Callable[[int], None] | None = None, *, keep: bool = True) -> None:
        self._keep = keep
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.spoken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done with the first word."""
        self.began = 0.0
        self.began_ms = 0.0
        self.first_byte_s: float | None = None
        self.reads: list[tuple[float, int]] = []
        self.words = 0
        self.body = bytearray()
        self._request = request
        self._words = words
        self._tail = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.began, self.began_ms = time.perf_counter(), time.time() * 1000
        self._transport.write(self._request.data)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter() - self.began
        if self.first_byte_s is None:
            self.first_byte_s = now
        if self._keep or len(self.body) < _HEAD_BYTES:
            self.body += data
        seen = self._tail + data
        count = seen.count(_WORD)
        self._tail = seen[-len(_WORD) + 1 :]
        if count:
            self.words += count
            if not self.spoken.done():
                self.spoken.set_result(None)
            if self._keep:
                self.reads.append((now, self.words))
            if self._words is not None:
                self._words(count)
        if self._keep:
            over = _TERMINAL in self.body[-len(data) - len(_TERMINAL) - 1024 :] and self._complete()
        else:
            over = _TERMINAL in data
        if over:
            self._finish()

    def leave(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def stall(self) -> None:
        """Read nothing more."""
        if self._transport is not None:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def _complete(self) -> bool:
        at = self.body.rfind(_TERMINAL)
        return self.body.find(b"\n\n", at) >= 0 or self.body.find(b"\r\n\r\n", at) >= 0

    def _finish(self) -> None:
        if not self.done.done():
            self.whole_s = time.perf_counter() - self.began
            self.done.set_result(None)
        if self._transport is not None:
            self._transport.abort()

    @property
    def status(self) -> int:
        """Status of the answer, 0 when there was none."""
        head = bytes(self.body[: self.body.find(_STATUS_END)])
        return int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/") else 0

    def events(self) -> list[tuple[int, str, dict[str, Any]]]:
        """The stream's events: offset, type, data."""
        return [
            (int(offset), kind.decode(), json.loads(data)) for offset, kind, data in _FRAME.findall(self._content())
        ]

    def _content(self) -> bytes:
        head, _, content = bytes(self.body).partition(_HEAD_END)
        return dechunked(content) if b"chunked" in head.lower() else content


def dechunked(body: bytes) -> bytes:
    """The content of a body in chunked transfer coding (RFC 9112, 7.1), as far as it came."""
    parts: list[bytes] = []
    at = 0
    while (line_end := body.find(b"\r\n", at)) >= 0:
        size = int(body[at:line_end].split(b";")[0] or b"0", 16)
        if not size:
            break
        parts.append(body[line_end + 2 : line_end + 2 + size])
        at = line_end + 2 + size + 2
    return b"".join(parts)


async def opened(
    port: int,
    request: Request,
    words: Callable[[int], None] | None = None,
    *,
    keep: bool = True,
    stalls: bool = False,
) -> Stream:
    """A stream whose request has been written. `stalls`: its client reads nothing, and its kernel takes little."""
    loop = asyncio.get_running_loop()
    connection = socket.socket()
    connection.setblocking(False)
    if stalls:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    await loop.sock_connect(connection, ("127.0.0.1", port))
    _, stream = await loop.create_connection(lambda: Stream(request, words, keep=keep), sock=connection)
    if stalls:
        stream.stall()
    return stream


async def read(port: int, request: Request, *, within_s: float = 60.0) -> Stream:
    """A whole stream. Raises TimeoutError."""
    stream = await opened(port, request)
    await asyncio.wait_for(stream.done, within_s)
    return stream


async def fetch(port: int, path: str, key: str, *, method: str = "GET", body: Any = None) -> tuple[int, Any]:
    """Status and JSON of a plain request."""
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Accept: application/json", "Connection: close"]
    lines.append(f"Authorization: Bearer {key}")
    if content:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join([*lines, "", ""]).encode() + content)
    head, _, answer = (await reader.read()).partition(_HEAD_END)
    writer.close()
    answer = dechunked(answer) if b"chunked" in head.lower() else answer
    return int(head.split(b" ", 2)[1]), json.loads(answer) if answer else None


def send(port: int, key: str, script: dict[str, Any], **body: Any) -> Request:
    """A send whose answer is the reply's stream."""
    return Request("POST", "/v1/messages", port=port, key=key, body={"content": json.dumps(script)} | body)


async def accepted(port: int, key: str, script: dict[str, Any]) -> str:
    """Send a message; the id of its reply."""
    body = {"content": json.dumps(script), "max_output_tokens": 4000}
    status, sent = await fetch(port, "/v1/messages", key, method="POST", body=body)
    if status != 202:
        raise RuntimeError(f"{status}: {sent}")
    return str(sent["reply"]["id"])


def follow(port: int, key: str, reply_id: str, after: int = 0) -> Request:
    """A reader of a reply's stream."""
    return Request("GET", f"/v1/messages/{reply_id}/events?after={after}", port=port, key=key)


def lateness(stream: Stream, rate: float, begin: int = 0) -> list[float]:
    """How much later than its earliest chunk each chunk of a stream came, against its schedule; from one read on."""
    due = [at - (words - 1) / rate for at, words in stream.reads]
    earliest = min(due, default=0.0)
    return [at - earliest for at in due[begin:]]
