"""Parts of an earlier run on the same data folder that still run: found by a mark in their environment."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

MARK = "TURNLOG_STACK"
GRACE_S = 8.0


def mark(data: Path) -> dict[str, str]:
    """Environment of every part of the stack on this data folder."""
    return {MARK: str(data.resolve())}


def find(data: Path) -> list[psutil.Process]:
    """Processes of a stack on this data folder, other than this process."""
    wanted = str(data.resolve())
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == wanted:
                found.append(process)
    return found


def end(data: Path, grace_s: float = GRACE_S) -> int:
    """Stop what an earlier supervisor left behind; the number of processes found."""
    found = find(data)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=grace_s)
    return len(found)
