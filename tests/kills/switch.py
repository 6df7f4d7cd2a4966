"""An address that leads to one server, and from some moment on to another: a failover as its clients see it."""

import contextlib
import socket
import threading
from typing import Self


class Switch:
    """Connections to `port` lead to the server that was named last. A context manager."""

    def __init__(self, to_port: int) -> None:
        self._to_port: int | None = to_port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._open: set[socket.socket] = set()
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.lead_to(None)

    def lead_to(self, port: int | None) -> None:
        """Break all connections; new ones lead there (None: nowhere)."""
        self._to_port = port
        for end in tuple(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._server()
            if server is None:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open |= {client, server}
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _server(self) -> socket.socket | None:
        if self._to_port is None:
            return None
        try:
            server = socket.create_connection(("127.0.0.1", self._to_port), timeout=5)
        except OSError:
            return None
        server.settimeout(None)
        return server

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := one.recv(65536):
                other.sendall(chunk)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        one.close()
        self._open.discard(one)
