"""One running product for a benchmark: `turnlog up` on free ports, in a data folder of its own."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

REPOSITORY = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 300


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """Where it answers, and what it was started with."""

    url: str
    api_key: str
    data: Path
    options: tuple[str, ...]
    ready_after_s: float

    @property
    def port(self) -> int:
        """Port of the HTTP API on 127.0.0.1."""
        return int(self.url.rpartition(":")[2].strip("/"))

    def parts(self) -> dict[str, dict[str, Any]]:
        """Each part by its name, as `turnlog status --json` says."""
        answer = json.loads(turnlog("status", "--json", "--data", str(self.data)))
        return {part["name"]: part for part in answer["parts"]}

    def pids(self) -> dict[str, int]:
        """The process of each part."""
        return {name: int(part["pid"]) for name, part in self.parts().items() if part["pid"]}


def turnlog(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """What the command prints. Raises RuntimeError with its output when it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "infra", *arguments],
        cwd=REPOSITORY,
        env=os.environ | dict(env or {}),
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"turnlog {' '.join(arguments)} exits {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def start(data: Path, *options: str, env: Mapping[str, str] | None = None) -> Stack:
    """Start it and wait until it is ready."""
    began = time.monotonic()
    lines = turnlog("up", "--detach", "--json", "--data", str(data), "--port", "0", *options, env=env).splitlines()
    ready = next(json.loads(line) for line in reversed(lines) if line.startswith("{"))
    if ready.get("event") != "ready":
        raise RuntimeError(f"not ready: {lines[-5:]}")
    return Stack(
        url=ready["url"],
        api_key=ready["api_key"],
        data=data,
        options=options,
        ready_after_s=time.monotonic() - began,
    )


def stop(stack: Stack) -> None:
    """Stop it; the data stays."""
    turnlog("down", "--data", str(stack.data))


@contextlib.contextmanager
def running(*options: str, env: Mapping[str, str] | None = None) -> Iterator[Stack]:
    """A product with the scripted engine, in a temporary data folder."""
    # What ends a benchmark early must end the stack too, which lives in a session of its own.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="turnlog-bench-") as folder:
        stack = start(Path(folder), "--engine", "scripted", *options, env=env)
        try:
            yield stack
        finally:
            stop(stack)


@contextlib.asynccontextmanager
async def passthrough(port: int):  # type: ignore[no-untyped-def]
    """The peer (`tests.benchmarks.passthrough`) on a port of its own; yields its pid."""
    command = ["-m", "granian", "--interface", "asgi", "--host", "127.0.0.1", "--port", str(port)]
    child = subprocess.Popen(  # noqa: ASYNC220 - starts at once
        [sys.executable, *command, "--no-ws", "--log-level", "warning", "tests.benchmarks.passthrough:app"],
        cwd=REPOSITORY,
    )
    try:
        await answers(port)
        yield child.pid
    finally:
        child.terminate()
        child.wait(20)


async def answers(port: int) -> None:
    """Wait until something listens. Raises OSError after half a minute."""
    deadline = time.monotonic() + 30
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
