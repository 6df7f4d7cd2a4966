"""Children as process groups: signalling them, waiting for their end, and what they said last."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time

GONE_POLL_S = 0.02
TAIL_BYTES = 16384


def last_lines(content: bytes, start: int, lines: int) -> list[str]:
    """The last lines of a log that were written after ``start``; of all of it when it was emptied meanwhile."""
    own = content[start if start <= len(content) else 0 :]
    return own[-TAIL_BYTES:].decode(errors="replace").rstrip().splitlines()[-lines:]


def how_it_ended(code: int) -> str:
    """An exit code in words; negative codes are signals."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


async def exit_code(process: subprocess.Popen[bytes]) -> int:
    """Wait for a child without a thread; returns within milliseconds of its end."""
    if not hasattr(os, "pidfd_open"):
        return await asyncio.to_thread(process.wait)
    if process.returncode is not None:
        return process.returncode  # somebody else has waited for it; its pid may be another's by now
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return process.wait()
    try:
        loop.add_reader(descriptor, _resolve, ended)
        await ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return process.wait()


def _resolve(waited: asyncio.Future[None]) -> None:
    if not waited.done():
        waited.set_result(None)


def kill_group(group: int, number: signal.Signals) -> None:
    """Signal a process group; one that is gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


async def group_gone(group: int, within_s: float) -> bool:
    """Wait until no process of the group is left; False when some still are after ``within_s``."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        await asyncio.sleep(GONE_POLL_S)
    return False
