"""A ClickHouse server of a test's own, to be killed, restarted, or run under another time zone."""

import os
import signal
import subprocess
import time
from pathlib import Path

from infra.clickhouse_server import ClickHouseServer
from infra.ports import free_port
from projections.clickhouse.client import ClickHouseUnavailable, Database


class ClickHouse:
    """One server process on free ports; its data is in `folder`."""

    def __init__(self, folder: Path, zone: str = "UTC", memory_mb: int = 1_024) -> None:
        self._server = ClickHouseServer(folder, free_port(), free_port(), memory_mb)
        self._environment = {**os.environ, "TZ": zone}
        self._process: subprocess.Popen[bytes] | None = None
        self.url = self._server.url

    def start(self) -> None:
        """Start, and wait until it answers."""
        command = self._server.command(lambda *_, **__: None)
        self._process = subprocess.Popen(
            command, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        database = Database(self.url, "system", timeout_s=5)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                database.query("SELECT 1")
            except ClickHouseUnavailable:
                time.sleep(0.1)
            else:
                database.close()
                return
        raise AssertionError("the server did not start")

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
