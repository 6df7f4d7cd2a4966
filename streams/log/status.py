"""The status file: what a supervisor outside of the process reads.

It is written while the work makes turns and at no other time, so that a process which hangs grows old there. (A call
into a client library can hold a whole process for most of a minute, so nothing inside could tell.)
"""

import json
import os
import time
from pathlib import Path
from typing import Literal

State = Literal["starting", "ready", "degraded", "stopping"]

EVERY_S = 1.0
STANDSTILL_S = 60.0


class StatusFile:
    """Writes `{"state", "detail", "lag", "at_ms"}` atomically, at most once a second unless the state changes."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._written_s = 0.0
        self._state: State | None = None

    def report(self, state: State, detail: str, lag: int | None, *, now: bool = False) -> None:
        """Say how it goes; cheap when called often."""
        if self._path is None:
            return
        time_s = time.monotonic()
        if not now and state == self._state and time_s - self._written_s < EVERY_S:
            return
        self._written_s, self._state = time_s, state
        text = json.dumps({"state": state, "detail": detail, "lag": lag, "at_ms": time.time_ns() // 1_000_000})
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        beside.write_text(text)
        beside.replace(self._path)


class Standstill:
    """Notices that records wait and nothing is committed: what looks alive and does no work. Times are monotonic."""

    def __init__(self, patience_s: float = STANDSTILL_S) -> None:
        self._patience_s = patience_s
        self._commits = -1
        self._since_s: float | None = None

    def seen(self, lag: int | None, commits: int, now_s: float) -> str:
        """What is wrong, as a sentence; empty while all is well. `lag` None: not known, which is no news."""
        if commits != self._commits or lag == 0:
            self._commits, self._since_s = commits, None
        if lag and self._since_s is None:
            self._since_s = now_s
        if not lag or self._since_s is None or now_s - self._since_s < self._patience_s:
            return ""
        return f"{lag:,} records behind, and nothing was committed for {now_s - self._since_s:.0f} s"
