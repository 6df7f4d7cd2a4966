"""Looks at a part from outside: does it really answer?"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from infra.parts import Health, Probe

TIMEOUT_S: Final = 3.0
STARTING: Final = Health("starting")


def redis_answers(host: str, port: int) -> Probe:
    """Ready when PING is answered with PONG; starting while the append-only file is loaded."""

    async def probe() -> Health:
        answer = await _ask(host, port, b"PING\r\n", until=b"\r\n")
        # A server that wants a password answers too; whether ours is right is the processes' business.
        if answer.startswith((b"+PONG", b"-NOAUTH")):
            return Health("ready")
        return Health("starting", _text(answer))

    return probe


def http_answers(host: str, port: int, path: str, *, tls: bool = False) -> Probe:
    """Ready when a GET of ``path`` is answered with 200; degraded, with the body as detail, by another status."""

    async def probe() -> Health:
        request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
        answer = await _ask(host, port, request.encode(), until=None, tls=tls)
        if not answer:
            return STARTING
        head, _, body = answer.partition(b"\r\n\r\n")
        return Health("ready") if b" 200 " in head.split(b"\r\n", 1)[0] else Health("degraded", _text(body))

    return probe


def status_file(path: Path, *, fresh_s: float = 10.0, clock: Callable[[], float] = time.time) -> Probe:
    """What a Turnlog process says about itself; degraded when it has said nothing for ``fresh_s`` seconds."""

    async def probe() -> Health:
        status = read_status(path)
        if status is None:
            return STARTING
        age_s = clock() - status.get("at_ms", 0) / 1000
        state = status.get("state")
        if state not in ("starting", "ready", "degraded", "stopping"):
            return STARTING
        lag = status.get("lag")
        if age_s > fresh_s:
            return Health("degraded", f"silent for {age_s:.0f} s", lag)
        return Health(state, str(status.get("detail") or ""), lag)

    return probe


def read_status(path: Path) -> dict[str, Any] | None:
    """The status that a process wrote; None when there is none or it cannot be read."""
    try:
        status = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return status if isinstance(status, dict) else None


def both(first: Probe, second: Probe) -> Probe:
    """Ready when both are; the lag is the first one's."""

    async def probe() -> Health:
        own = await first()
        if own.state != "ready":
            return own
        other = await second()
        return Health(other.state, other.detail or own.detail, own.lag)

    return probe


async def _ask(host: str, port: int, request: bytes, *, until: bytes | None, tls: bool = False) -> bytes:
    """Send and read until ``until`` or the end; empty when nothing answers in time."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls or None)
            writer.write(request)
            return await (reader.readuntil(until) if until else reader.read())
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return b""
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _text(body: bytes) -> str:
    return " ".join(body.decode(errors="replace").split())[:300]
