"""Resume of a 500-chunk reply from the middle: first byte and whole, beside reading the same frames from Redis.

The reply has ended; a reader comes with `Last-Event-ID` in the middle. Direct: one `LRANGE` of the same frames with
the Redis client, the least that any server in front of Redis could take.
"""

import asyncio
import sys
import time
from urllib.parse import urlsplit

import redis.asyncio

from tests.benchmarks import report, sse_load
from tests.benchmarks.stack import Stack, running

CHUNKS = 500
NAMESPACE = "turnlog"


async def measure(stack: Stack, reads: int) -> report.Result:
    """Read it again and again, alternating with the direct read."""
    script = {"chunks": CHUNKS, "every_ms": 5}
    whole = (await sse_load.read(stack.port, sse_load.send(stack.port, stack.api_key, script))).events()
    reply_id = next(data["message_id"] for _, kind, data in whole if kind == "started")
    middle = whole[len(whole) // 2][0]
    expected = [event for event in whole if event[0] > middle]
    request = sse_load.Request(
        "GET",
        f"/v1/messages/{reply_id}/events",
        port=stack.port,
        key=stack.api_key,
        headers=(f"Last-Event-ID: {middle}",),
    )
    client = redis.asyncio.Redis.from_url(_redis_url(stack))
    first: list[float] = []
    complete: list[float] = []
    direct: list[float] = []
    for number in range(reads + 5):
        began = time.perf_counter()
        frames = await client.lrange(f"{NAMESPACE}:{{{reply_id}}}:frames", middle, -1)
        took = time.perf_counter() - began
        stream = await sse_load.read(stack.port, request)
        if stream.events() != expected or len(frames) != len(expected):
            raise RuntimeError(f"read {len(stream.events())} events and {len(frames)} frames, not {len(expected)}")
        if number >= 5:
            direct.append(took)
            first.append(stream.first_byte_s or float("nan"))
            complete.append(stream.whole_s)
    await client.aclose()
    return _result(first, complete, direct, len(expected), reads)


def _redis_url(stack: Stack) -> str:
    address = stack.parts()["redis"]["address"]
    return address if urlsplit(address).scheme.startswith("redis") else f"redis://{address}"


def _result(first: list[float], complete: list[float], direct: list[float], events: int, reads: int) -> report.Result:
    p = report.percentile
    measured = (("direct: LRANGE, whole", direct), ("Turnlog, first byte", first), ("Turnlog, whole", complete))
    rows = tuple((name, report.ms(p(of, 0.5)), report.ms(p(of, 0.99))) for name, of in measured)
    figures = {
        "first_byte_p50_ms": p(first, 0.5) * 1000,
        "whole_p50_ms": p(complete, 0.5) * 1000,
        "direct_p50_ms": p(direct, 0.5) * 1000,
    }
    reached = {
        "first byte, median at most 5 ms": figures["first_byte_p50_ms"] <= 5,
        "whole, median at most 10 ms": figures["whole_p50_ms"] <= 10,
    }
    how = f"{reads} reads, each on a new connection, of the last {events} events of a reply of {CHUNKS} chunks."
    table = report.Table("Resume from the middle", ("", "p50", "p99"), rows)
    return report.result("resume", how, [table], figures, reached)


def main() -> int:
    """Run it; exit code 1 when a target is missed."""
    parser = report.options(__doc__)
    parser.add_argument("--reads", type=int, default=200)
    chosen = parser.parse_args()
    with running() as stack:
        return report.finish(asyncio.run(measure(stack, chosen.reads)), chosen)


if __name__ == "__main__":
    sys.exit(main())
