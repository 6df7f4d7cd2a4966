"""Kills and pauses of the parts of a running stack, by a seed. A part is killed with SIGKILL, or stopped for 1 to 20 s,
or told to drain (SIGTERM), or the engine of a worker falls silent (SIGUSR1); Redis is also flushed."""

import asyncio
import json
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

PAUSE_S = (1.0, 20.0)
FLUSH = "flush"
WEIGHTS = {"kafka": 2, "redis": 3, "clickhouse": 2, "worker": 4, "api": 3, "projections-buffer": 5, "streams-demand": 0}
"""How often parts are struck, by the beginning of their names; others 3."""

How = Literal["killed", "stopped", "drained", "silenced", "flushed"]


@dataclass(frozen=True)
class Strike:
    """What was done to a part, and when: of the monotonic clock, and of the wall clock, as the log has it."""

    name: str
    how: How
    at_s: float
    at_ms: int


@dataclass(frozen=True)
class Arms:
    """Which parts are struck, and which shares of the strikes stop, drain or silence; the others kill."""

    only: str = ""
    """Only parts whose names begin so."""
    stops: float = 0.35
    drains: float = 0.0
    silences: float = 0.0
    """Of workers with the scripted engine: no other can be told."""


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
    """Strikes at random, and `note` hears of each."""

    def __init__(self, stack: Stack, rng: random.Random, note: Callable[[str], None], arms: Arms) -> None:
        self._stack = stack
        self._rng = rng
        self._note = note
        self._arms = arms
        self._paused: dict[int, float] = {}
        self._silent: dict[str, int] = {}
        """Workers whose engine was silenced last, and the pid that each had then."""
        self.strikes: list[Strike] = []

    @property
    def struck(self) -> Counter[str]:
        """How often each part was."""
        return Counter(strike.name for strike in self.strikes)

    @property
    def flushed(self) -> bool:
        """Whether Redis has lost something."""
        return any(strike.how == "flushed" for strike in self.strikes)

    @property
    def silenced(self) -> bool:
        """Whether any engine fell silent."""
        return any(strike.how == "silenced" for strike in self.strikes)

    async def wreck(self, kills: int | None, every_s: float, within_s: float | None = None) -> None:
        """So many strikes, or as many as fit into the time."""
        over_s = time.monotonic() + (float("inf") if within_s is None else within_s)
        while (kills is None or len(self.strikes) < kills) and time.monotonic() < over_s:
            await self._until(min(over_s, time.monotonic() + self._rng.uniform(0.2, 1.8) * every_s))
            self._strike()

    def calm(self) -> None:
        """Let everything go on. A silent engine would be found out only when it has something to do: it is killed."""
        for pid in list(self._paused):
            self._go_on(pid)
        parts = self._stack.parts()
        for name in [name for name, pid in self._silent.items() if parts[name]["pid"] == pid]:
            self._hit(name, self._kill)

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

    def _strike(self) -> None:
        names = [name for name in (*self._stack.parts(), FLUSH) if name.startswith(self._arms.only)]
        weights = [next((w for prefix, w in WEIGHTS.items() if name.startswith(prefix)), 3) for name in names]
        name = self._rng.choices(names, weights)[0]
        self._hit(name, self._do)

    def _hit(self, name: str, do: Callable[[str], tuple[How | None, str]]) -> None:
        at_s, at_ms = time.monotonic(), time.time_ns() // 1_000_000
        how, what = do(name)
        if how is not None:
            self.strikes.append(Strike(name, how, at_s, at_ms))
            self._note(f"{len(self.strikes)}: {name} {what}")

    def _do(self, name: str) -> tuple[How | None, str]:
        """What was done, None where nothing ran that it could be done to; and in words."""
        if name == FLUSH:
            return ("flushed" if self._stack.flush_redis() else None), "FLUSHALL"
        chosen = self._rng.random()
        if chosen < self._arms.stops:
            pause_s = self._rng.uniform(*PAUSE_S)
            pid = self._stack.signal(name, signal.SIGSTOP)
            if pid is not None:
                self._paused[pid] = time.monotonic() + pause_s
            return ("stopped" if pid is not None else None), f"stopped for {pause_s:.1f} s"
        if chosen < self._arms.stops + self._arms.drains:
            return ("drained" if self._stack.signal(name, signal.SIGTERM) else None), "told to drain"
        if chosen < self._arms.stops + self._arms.drains + self._arms.silences:
            return self._silence(name)
        return self._kill(name)

    def _kill(self, name: str) -> tuple[How | None, str]:
        return ("killed" if self._stack.signal(name, signal.SIGKILL) else None), "killed"

    def _silence(self, name: str) -> tuple[How | None, str]:
        """One that is not ready has no engine yet: the signal would kill it."""
        ready = self._stack.parts()[name]["state"] == "ready"
        pid = self._stack.signal(name, signal.SIGUSR1) if ready else None
        if pid is not None:
            self._silent[name] = pid
        return ("silenced" if pid is not None else None), "silenced"
