"""A TCP connection between a client and the service that a test can cut, stall and count.

Rules:

1. Bytes go through as they come, in both directions; nothing is changed and nothing is held back.
2. A cut is planned before it happens: `cut_at(marker)` or `cut_after(count)`. Each planned cut happens once, on the
   first connection whose answer gets there: the client gets everything up to and including that byte, nothing after
   it, and the connection is reset.
3. While it is stalled nothing flows and nothing is closed; while it is unplugged every connection is closed at once.
4. `asked` has the head of each request that came by, in order.
"""

import contextlib
import re
import select
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_HEAD = re.compile(rb"(GET|POST|PUT|PATCH|DELETE|HEAD|OPTIONS) (\S+) (HTTP/1\.[01])\r\n(.*?)\r\n\r\n", re.DOTALL)
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Asked:
    """The head of one request. Names of headers are in lower case."""

    method: str
    target: str
    version: str
    headers: dict[str, str]


Reaches = Callable[[bytes], int]
"""The number of bytes of an answer, so far, after which to cut; -1: not yet."""


class Cable:
    """See the rules of this module. A context manager."""

    def __init__(self, to: str) -> None:
        parts = urlsplit(to)
        self._to = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._flows = threading.Event()
        self._flows.set()
        self._plugged = True
        self._cuts: list[Reaches] = []
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        """How many were made so far."""
        self.cuts = 0
        """How many of the planned cuts have happened."""
        self.asked: list[Asked] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def asked_for(self, path: str) -> list[Asked]:
        """The requests for a path, with any query, in order."""
        return [asked for asked in self.asked if asked.target.partition("?")[0] == path]

    @property
    def open(self) -> int:
        """How many connections are open now."""
        with self._lock:
            return len(self._open) // 2

    def cut_at(self, marker: bytes) -> None:
        """Cut a connection right behind the first place where its answer has these bytes: in the middle of an event."""
        self._cuts.append(lambda seen: seen.find(marker) + len(marker) if marker in seen else -1)

    def cut_after(self, count: int) -> None:
        """Cut a connection after so many bytes of its answer, the head included."""
        self._cuts.append(lambda seen: count if len(seen) >= count else -1)

    def stall(self) -> None:
        """Nothing flows until `restore`."""
        self._flows.clear()

    def restore(self) -> None:
        """Go on after `stall` or `unplug`."""
        self._plugged = True
        self._flows.set()

    def unplug(self) -> None:
        """Reset every connection, and each new one at once, until `restore`."""
        self._plugged = False
        self._flows.set()
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Reset what is open and take no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.unplug()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            if not self._plugged:
                _end(client, abruptly=True)
                continue
            try:
                service = socket.create_connection(self._to, timeout=10)
            except OSError:
                _end(client, abruptly=True)
                continue
            service.settimeout(None)
            for end in (client, service):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, service}
            threading.Thread(target=self._carry, args=(client, service), daemon=True).start()

    def _carry(self, client: socket.socket, service: socket.socket) -> None:
        """One thread a connection: what each side says goes to the other, until one of them ends or a cut is due."""
        answer, question = b"", b""
        cut = False
        try:
            while True:
                ready, _, _ = select.select((client, service), (), (), 1.0)
                self._flows.wait()
                for end in ready:
                    chunk = end.recv(65536)
                    if not chunk:
                        return
                    if end is client:
                        question = self._note(question + chunk)
                        service.sendall(chunk)
                        continue
                    answer += chunk
                    reached = self._reached(answer)
                    if reached >= 0:
                        client.sendall(chunk[: max(0, len(chunk) - (len(answer) - reached))])
                        cut = True
                        return
                    client.sendall(chunk)
        except (OSError, ValueError):
            pass
        finally:
            with self._lock:
                self._open -= {client, service}
            for end in (client, service):
                _end(end, abruptly=cut or not self._plugged)

    def _reached(self, answer: bytes) -> int:
        with self._lock:
            for cut in self._cuts:
                reached = cut(answer)
                if reached >= 0:
                    self._cuts.remove(cut)
                    self.cuts += 1
                    return reached
        return -1

    def _note(self, question: bytes) -> bytes:
        """Take note of the requests whose heads are whole; what is left of the bytes."""
        for found in _HEAD.finditer(question):
            lines = found[4].decode("latin-1").split("\r\n")
            headers = dict(line.split(":", 1) for line in lines if ":" in line)
            told = {name.lower(): value.strip() for name, value in headers.items()}
            self.asked.append(Asked(found[1].decode(), found[2].decode("latin-1"), found[3].decode(), told))
        last = question.rfind(b"\r\n\r\n")
        return question[last + 4 :] if last >= 0 else question


def _end(end: socket.socket, *, abruptly: bool) -> None:
    """Close a connection; abruptly is as a lost network does it: with a reset, behind what was sent."""
    with contextlib.suppress(OSError):
        if abruptly:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        else:
            end.shutdown(socket.SHUT_RDWR)
    end.close()
