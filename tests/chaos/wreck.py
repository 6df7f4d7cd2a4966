"""Kills and pauses of the parts of a running stack, by a seed. A part is killed with SIGKILL, or stopped for 1 to 20 s;
Redis is also flushed."""

import asyncio
import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PAUSE_S = (1.0, 20.0)
FLUSH = "flush"
WEIGHTS = {"kafka": 2, "redis": 3, "clickhouse": 2, "worker": 4, "api": 3, "projections-buffer": 5, "streams-demand": 0}
"""How often parts are struck, by the beginning of their names; others 3."""


class Stack:
    """The parts of a running `turnlog up`, by its snapshot."""

    def __init__(self, data: Path) -> None:
        self._snapshot = data / "run" / "stack.json"

    def parts(self) -> dict[str, dict[str, Any]]:
        """Each part by its name."""
        return {part["name"]: part for part in json.loads(self._snapshot.read_text())["parts"]}

    def addresses(self) -> list[str]:
        """Of the API processes."""
        return [part["address"] for name, part in sorted(self.parts().items()) if name.startswith("api-")]

    def ready(self) -> bool:
        """Whether every part is."""
        return all(part["state"] == "ready" for part in self.parts().values())

    def signal(self, name: str, number: signal.Signals) -> int | None:
        """The pid that got the signal; None where none runs now."""
        pid = self.parts()[name]["pid"]
        if pid is None:
            return None
        try:
            os.kill(int(pid), number)
        except ProcessLookupError:
            return None
        return int(pid)

    def flush_redis(self) -> bool:
        """FLUSHALL; False where Redis does not answer."""
        address = urlsplit(self.parts()["redis"]["address"])
        try:
            with socket.create_connection((address.hostname or "", address.port or 6379), timeout=2) as connection:
                connection.sendall(b"*1\r\n$8\r\nFLUSHALL\r\n")
                return connection.recv(16).startswith(b"+OK")
        except OSError:
            return False


class Wrecker:
    """Strikes at random, and `note` hears of each; `only` parts whose names begin so."""

    def __init__(self, stack: Stack, rng: random.Random, note: Callable[[str], None], only: str = "") -> None:
        self._stack = stack
        self._rng = rng
        self._note = note
        self._only = only
        self._paused: dict[int, float] = {}
        self.struck: dict[str, int] = {}
        self.flushed = False

    async def wreck(self, kills: int, every_s: float) -> None:
        """All of them."""
        done = 0
        while done < kills:
            await self._until(time.monotonic() + self._rng.uniform(0.2, 1.8) * every_s)
            done += self._strike(done + 1)

    def calm(self) -> None:
        """Let everything go on."""
        for pid in list(self._paused):
            self._go_on(pid)

    async def _until(self, when_s: float) -> None:
        while time.monotonic() < when_s:
            for pid, until_s in list(self._paused.items()):
                if time.monotonic() >= until_s:
                    self._go_on(pid)
            await asyncio.sleep(0.1)

    def _go_on(self, pid: int) -> None:
        del self._paused[pid]
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return

    def _strike(self, number: int) -> bool:
        names = [name for name in (*self._stack.parts(), FLUSH) if name.startswith(self._only)]
        weights = [next((w for prefix, w in WEIGHTS.items() if name.startswith(prefix)), 3) for name in names]
        name = self._rng.choices(names, weights)[0]
        if name == FLUSH:
            what, struck = "FLUSHALL", self._stack.flush_redis()
            self.flushed = self.flushed or struck
        elif self._rng.random() < 0.35:
            pause_s = self._rng.uniform(*PAUSE_S)
            pid = self._stack.signal(name, signal.SIGSTOP)
            what, struck = f"stopped for {pause_s:.1f} s", pid is not None
            if pid is not None:
                self._paused[pid] = time.monotonic() + pause_s
        else:
            what, struck = "killed", self._stack.signal(name, signal.SIGKILL) is not None
        if struck:
            self.struck[name] = self.struck.get(name, 0) + 1
            self._note(f"{number}: {name} {what}")
        return struck
