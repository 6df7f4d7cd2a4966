"""The peer `resumable-stream` (npm) on the product's own Redis server; see `peers/resumable_stream.mjs`."""

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from infra.ports import free_port
from tests.benchmarks import sse_load
from tests.benchmarks.stack import REPOSITORY, Stack, answers
from tests.node import NODE

PROGRAM = Path(__file__).parent / "peers" / "resumable_stream.mjs"
NAME = "resumable-stream"


def redis_url(stack: Stack) -> str:
    """The stack's Redis."""
    address = str(stack.parts()["redis"]["address"])
    return address if "://" in address else f"redis://{address}"


@contextlib.asynccontextmanager
async def resumable_stream(stack: Stack) -> AsyncIterator[tuple[int, int]]:
    """Its port and its pid."""
    port = free_port()
    child = subprocess.Popen(  # noqa: ASYNC220 - starts at once
        [NODE, PROGRAM, str(port), redis_url(stack)], cwd=REPOSITORY
    )
    try:
        await answers(port)
        yield port, child.pid
    finally:
        child.kill()
        child.wait(20)


async def begin(port: int, stream_id: str, chunks: int, every_ms: float) -> None:
    """Begin a stream of the peer's."""
    path = f"/{stream_id}?chunks={chunks}&every_ms={every_ms:g}"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    head = await reader.read(100)
    writer.close()
    if b" 201 " not in head:
        raise RuntimeError(f"the peer answers {head!r}")


def read(port: int, stream_id: str, skip: int = 0) -> sse_load.Request:
    """A reader of a stream of the peer's."""
    return sse_load.Request("GET", f"/{stream_id}?skip={skip}", port=port)
