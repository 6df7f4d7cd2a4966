"""The HTTP server: granian on a socket of ours. The only module that imports granian.

What is set, and why (docs/decisions/0014-how-streams-end.md has the measurements):

- HTTP/1.1 alone. A connection that could become HTTP/2 costs 12 KB more; proxies speak HTTP/1.1 to what is behind them.
- The buffers of a connection are bounded, so that a client that does not read costs little: granian's, by what it
  may hold back, and the kernel's, which would grow to megabytes otherwise.
- A client that answers nothing for `CLIENT_LOST_S` is given up by the kernel.
- Several processes listen on one port (SO_REUSEPORT); the kernel spreads connections among those that listen.
"""

import socket
from typing import Any

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server
from starlette.types import ASGIApp

BACKLOG = 4_096
WRITE_BUFFER_BYTES = 16_384
KERNEL_BUFFER_BYTES = 65_536
CLIENT_LOST_S = 60


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; its options go over to the connections. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, CLIENT_LOST_S * 1000)
        listener.bind(address)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


class HttpServer(Server):  # type: ignore[misc]  # the library has no types
    """Serves an application on a listening socket, which it takes over, until `stop`."""

    def __init__(self, app: ASGIApp, listener: socket.socket, connections_max: int) -> None:
        host, port = listener.getsockname()[:2]
        super().__init__(
            app,
            address=host,
            port=port,
            interface=Interfaces.ASGINL,
            http=HTTPModes.http1,
            http1_settings=HTTP1Settings(max_buffer_size=WRITE_BUFFER_BYTES),
            websockets=False,
            backlog=BACKLOG,
            backpressure=connections_max,
            log_enabled=False,
        )
        self._listener = listener

    def _init_shared_socket(self) -> None:
        holder: Any = SocketHolder
        self._shd = holder(self._listener.detach(), False, BACKLOG)
