"""Two thousand readers resume at once: how long until all are served, and what other replies notice of it.

Each reader comes with an offset in the middle of one of twenty replies of 500 chunks. Meanwhile twenty other replies
run at 20 tokens/s. Beside it, on the same Redis server: the npm package `resumable-stream`, one node process, whose
streams are held in it. Direct: the same lists read with the Redis client, one after the other.
"""

import asyncio
import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import redis.asyncio
import uvloop

from tests.benchmarks import peer, report, sse_load
from tests.benchmarks.stack import Stack, running

CHUNKS = 500
REPLIES = 20
OTHERS = 20
RATE = 20.0
OTHERS_S = 12.0
BEFORE_S = 5.0
"""Until the storm: the others have begun, and run evenly after `SETTLE_S`."""
SETTLE_S = 1.0
SERVED_TARGET_S = 5.0
LATE_TARGET_S = 0.25
NAMESPACE = "turnlog"


async def storm(requests: Sequence[tuple[sse_load.Request, int]], port: int) -> tuple[list[float], int]:
    """All at once: when each had its words, in seconds since the first request; how many never had."""
    began = time.perf_counter()
    times: list[float] = []

    async def one(request: sse_load.Request, words: int) -> None:
        seen = 0
        whole = asyncio.get_running_loop().create_future()

        def add(count: int) -> None:
            nonlocal seen
            seen += count
            if seen >= words and not whole.done():
                times.append(time.perf_counter() - began)
                whole.set_result(None)

        try:
            stream = await sse_load.opened(port, request, add, keep=False)
        except OSError:
            return
        await asyncio.wait((whole, stream.done), timeout=60, return_when=asyncio.FIRST_COMPLETED)
        stream.leave()

    await asyncio.gather(*[one(request, words) for request, words in requests])
    return times, len(requests) - len(times)


def watched(port: int, key: str) -> list[float]:
    """Follow other replies: how much later than due their chunks came, but for the first seconds."""
    return uvloop.run(_watched(port, key))


async def _watched(port: int, key: str) -> list[float]:
    script = {"chunks": int(OTHERS_S * RATE), "every_ms": 1000 / RATE}
    opened = [await sse_load.opened(port, sse_load.send(port, key, script)) for _ in range(OTHERS)]
    await asyncio.wait([stream.done for stream in opened], timeout=2 * OTHERS_S)
    late: list[float] = []
    for stream in opened:
        first = sum(at < SETTLE_S for at, _ in stream.reads)
        late += sse_load.lateness(stream, RATE, first)
    return late


async def measure(stack: Stack, readers: int) -> report.Result:
    """The product with others beside it, then the direct reading, then the peer."""
    script = {"chunks": CHUNKS, "every_ms": 5}
    ended = await asyncio.gather(
        *[sse_load.read(stack.port, sse_load.send(stack.port, stack.api_key, script)) for _ in range(REPLIES)]
    )
    resumed = [_middle(each) for each in ended]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        # The reader of the others is a process of its own: it must not wait for the storm's two thousand clients.
        watching = asyncio.get_running_loop().run_in_executor(pool, watched, stack.port, stack.api_key)
        await asyncio.sleep(BEFORE_S)
        asked = [
            (sse_load.follow(stack.port, stack.api_key, reply_id, middle), words) for reply_id, middle, words in resumed
        ]
        times, unserved = await storm([asked[n % REPLIES] for n in range(readers)], stack.port)
        late = await watching
    direct = await _direct(stack, resumed, readers)
    async with peer.resumable_stream(stack) as (port, _):
        for number in range(REPLIES):
            await peer.begin(port, f"r{number}", CHUNKS, 0)
        await asyncio.sleep(1)
        half = sum(len(f'id: {n}\nevent: delta\ndata: {{"text":" word{n}"}}\n\n') for n in range(1, CHUNKS // 2 + 1))
        asked = [(peer.read(port, f"r{number}", half), CHUNKS // 2) for number in range(REPLIES)]
        other_times, other_unserved = await storm([asked[n % REPLIES] for n in range(readers)], port)
    return _result(times, unserved, late, direct, other_times, other_unserved, readers)


def _middle(stream: sse_load.Stream) -> tuple[str, int, int]:
    """A reply's id, the offset in its middle, and the words behind it."""
    events = stream.events()
    reply_id = str(next(data["message_id"] for _, kind, data in events if kind == "started"))
    half = len(events) // 2
    words = sum(data["text"].count("word") for _, kind, data in events[half:] if kind == "delta")
    return reply_id, events[half - 1][0], words


async def _direct(stack: Stack, resumed: Sequence[tuple[str, int, int]], readers: int) -> float:
    client = redis.asyncio.Redis.from_url(peer.redis_url(stack))
    began = time.perf_counter()
    for number in range(readers):
        reply_id, middle, _ = resumed[number % len(resumed)]
        await client.lrange(f"{NAMESPACE}:{{{reply_id}}}:frames", middle, -1)
    took = time.perf_counter() - began
    await client.aclose()
    return took


def _result(
    times: list[float],
    unserved: int,
    late: list[float],
    direct: float,
    other_times: list[float],
    other_unserved: int,
    readers: int,
) -> report.Result:
    p = report.percentile
    rows = (
        ("direct: LRANGE, one after the other", "", f"{direct:.2f} s", ""),
        ("Turnlog", f"{p(times, 0.5):.2f} s", f"{max(times, default=0):.2f} s", str(unserved)),
        (peer.NAME, f"{p(other_times, 0.5):.2f} s", f"{max(other_times, default=0):.2f} s", str(other_unserved)),
    )
    table = report.Table("Until served", ("", "half of them", "all", "never"), rows)
    beside = report.Table(
        "Other replies meanwhile",
        ("", "p50", "p99", "latest"),
        (("chunk later than due", report.ms(p(late, 0.5)), report.ms(p(late, 0.99)), report.ms(max(late, default=0))),),
    )
    figures = {
        "served_s": max(times, default=float("nan")),
        "peer_served_s": max(other_times, default=float("nan")),
        "direct_s": direct,
        "late_max_ms": max(late, default=0.0) * 1000,
    }
    reached = {
        f"all served within {SERVED_TARGET_S:g} s": not unserved and figures["served_s"] <= SERVED_TARGET_S,
        "no other chunk later than 250 ms": max(late, default=0.0) <= LATE_TARGET_S,
    }
    how = f"""{readers:,} readers at once, each from the middle of one of {REPLIES} replies of {CHUNKS} chunks, while
        {OTHERS} other replies run at {RATE:g} tokens/s."""
    return report.result("resume_storm", how, [table, beside], figures, reached)


def main() -> int:
    """Run it; exit code 1 when a target is missed."""
    parser = report.options(__doc__)
    parser.add_argument("--readers", type=int, default=2_000)
    chosen = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with running() as stack:
        return report.finish(uvloop.run(measure(stack, chosen.readers)), chosen)


if __name__ == "__main__":
    sys.exit(main())
