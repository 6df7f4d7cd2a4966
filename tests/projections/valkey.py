"""A Redis server of a test's own, to be flushed, killed and restarted."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from infra.ports import free_port
from infra.redis_server import binary


class Valkey:
    """One server process on a free port; its data is in `folder`."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = Redis.from_url(self.url)
        self.command = [str(binary()), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)]
        self.command += ["--save", "", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                if self.client.ping():
                    return
            except RedisError:
                time.sleep(0.02)
        raise AssertionError("the server did not start")

    def wait_for(self, holds: Callable[[str], bool]) -> None:
        """Wait until something holds for the cluster's state as this node sees it."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            answer = self.client.execute_command("CLUSTER", "INFO")
            if holds(answer.decode() if isinstance(answer, bytes) else str(answer)):
                return
            time.sleep(0.05)
        raise AssertionError("the cluster did not come together")

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
