"""The Redis protocol (RESP2) over one connection of asyncio: no task and no await per message.

The only module that imports hiredis.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

import hiredis
import msgspec
import structlog

log = structlog.get_logger()

ReplyError: type[Exception] = hiredis.ReplyError
"""An answer that is an error."""
CONNECT_S = 5.0


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a Redis is, from its URL (`redis://[user:password@]host:port/db`, `rediss://` for TLS)."""

    host: str
    port: int
    username: str | None = None
    password: str | None = None
    tls: bool = False
    database: int = 0

    @classmethod
    def of(cls, url: str) -> "Address":
        """The address in a URL. Raises `ValueError` when it is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss") or not parts.hostname:
            raise ValueError(f"not a Redis URL: {parts.scheme}://…")
        return cls(
            host=parts.hostname,
            port=parts.port or 6379,
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            tls=parts.scheme == "rediss",
            database=int(parts.path.strip("/") or 0),
        )


class Connection(asyncio.Protocol):
    """A connection. Each message goes to `heard`; `lost` is done when the connection is gone."""

    def __init__(self, heard: Callable[[Any], None]) -> None:
        self._heard = heard
        self._reader = hiredis.Reader()
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self.heard_s = self._loop.time()
        """When the server was last heard, in the loop's seconds."""
        self.lost: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard_s = self._loop.time()
        reader = self._reader
        reader.feed(data)
        try:
            while (message := reader.gets()) is not False:
                self._heard(message)
        except hiredis.ProtocolError as error:
            log.warning("redis connection broken", reason=str(error))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if not self.lost.done():
            self.lost.set_result(None)

    @property
    def address(self) -> tuple[str, int]:
        """Our end of it, as the server lists its clients."""
        host, port = self._transport.get_extra_info("sockname")[:2]
        return str(host), int(port)

    def send(self, *words: bytes) -> None:
        """Send a command."""
        self.write(packed(*words))

    def write(self, commands: bytes) -> None:
        """Send packed commands."""
        self._transport.write(commands)

    def close(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


def packed(*words: bytes) -> bytes:
    """A command as it goes over the wire."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


async def connect(address: Address, heard: Callable[[Any], None]) -> tuple[Connection, int]:
    """A connection that has sent its password and its database, and how many answers to that are to come.

    Raises `OSError`, also when there is no answer in time.
    """
    context = ssl.create_default_context() if address.tls else None
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_S):
        _, connection = await loop.create_connection(lambda: Connection(heard), address.host, address.port, ssl=context)
    greetings = []
    if address.password is not None:
        names = [address.username.encode()] if address.username else []
        greetings.append((b"AUTH", *names, address.password.encode()))
    if address.database:
        greetings.append((b"SELECT", b"%d" % address.database))
    for words in greetings:
        connection.send(*words)
    return connection, len(greetings)
