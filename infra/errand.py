"""A child process that does one thing and ends: fetching components, provisioning.

In a process of its own because its memory goes when it is done and because, unlike a thread, it
can be stopped at any moment together with whatever it has started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping

from infra.errors import PartFailed
from infra.process_groups import kill_group
from infra.progress import Tell

LAST_LINES = 3
TERM_GRACE_S = 2.0


async def run_errand(arguments: tuple[str, ...], env: Mapping[str, str], tell: Tell, *, timeout_s: float) -> None:
    """Run `turnlog ARGUMENTS` as a child and tell each line that it prints. Raises PartFailed with its last lines.

    Cancelling it ends the child and its children.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "infra.cli", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **env},
        process_group=0,
    )
    lines: list[str] = []
    try:
        async with asyncio.timeout(timeout_s):
            while process.stdout is not None and (raw := await process.stdout.readline()):
                line = raw.decode(errors="replace").rstrip()
                lines.append(line)
                if not line.startswith("Error: "):
                    tell(line)
            await process.wait()
    except TimeoutError:
        raise PartFailed(f"`turnlog {arguments[0]}` took longer than {timeout_s:.0f} s.") from None
    finally:
        if process.returncode is None:
            kill_group(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        said = [line for line in lines if line.startswith("Error: ")] or lines[-LAST_LINES:]
        raise PartFailed(" ".join(said).removeprefix("Error: ") or f"`turnlog {arguments[0]}` failed without a word.")
