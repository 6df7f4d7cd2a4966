"""Progress as plain lines: one line when a thing starts, then at most one every two seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Tell = Callable[[str], None]
"""Takes one line for the person who waits."""

LINE_EVERY_S = 2.0
MIB = 1024 * 1024


class Transfer:
    """Counts bytes from any thread and tells how far a download is.

    ``total_bytes`` may be 0 while the size is unknown. Lines go to ``tell``, never more often
    than every two seconds.
    """

    def __init__(self, label: str, tell: Tell, total_bytes: int = 0) -> None:
        self._label = label
        self._tell = tell
        self._total = total_bytes
        self._done = 0
        self._told_at = time.monotonic()
        self._lock = threading.Lock()

    def advance(self, n_bytes: int) -> None:
        """Add ``n_bytes`` to what has come."""
        with self._lock:
            self._done += n_bytes
            self._maybe_tell()

    def reached(self, done_bytes: int) -> None:
        """Set the number of bytes that have come."""
        with self._lock:
            self._done = done_bytes
            self._maybe_tell()

    def _maybe_tell(self) -> None:
        now = time.monotonic()
        if now - self._told_at < LINE_EVERY_S:
            return
        self._told_at = now
        if self._total:
            share = min(99, 100 * self._done // self._total)
            self._tell(f"{self._label}: {self._done / MIB:.0f} of {self._total / MIB:.0f} MB ({share}%)")
        else:
            self._tell(f"{self._label}: {self._done / MIB:.0f} MB")
