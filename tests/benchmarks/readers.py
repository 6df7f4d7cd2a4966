"""Many readers of one reply: how many events a second one API process gives out, and what an event costs.

The reply runs while a thousand readers follow it; counted is what they read in a window. Beside it, on the same Redis
server and with the same readers: the npm package `resumable-stream`, one node process. Direct: the engine's own rate
times the readers, the most that could be given. CPU is that of the process that serves (the load generator's is not
in it, though it shares the machine).
"""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping

import uvloop

from tests.benchmarks import peer, processes, report, sse_load
from tests.benchmarks.stack import Stack, running

EVENTS_TARGET_PER_S = 200_000
WINDOW_S = 5.0


class Fanned(report.msgspec.Struct, frozen=True, kw_only=True):
    """What was given out in the window."""

    events_per_s: float
    cpu_per_1000: float
    per_read: float


async def fanned(requests: list[sse_load.Request], port: int, roots: Mapping[str, int], settle_s: float) -> Fanned:
    """Open the readers, let them catch up, and count."""
    seen = [0, 0]

    def add(words: int) -> None:
        seen[0] += words
        seen[1] += 1

    opened: list[sse_load.Stream] = []
    for start in range(0, len(requests), 50):
        opened += await asyncio.gather(
            *[sse_load.opened(port, request, add, keep=False) for request in requests[start : start + 50]]
        )
    await asyncio.sleep(settle_s)
    before, words, reads, began = processes.costs(roots), seen[0], seen[1], time.perf_counter()
    await asyncio.sleep(WINDOW_S)
    took, words, reads = time.perf_counter() - began, seen[0] - words, seen[1] - reads
    cpu_s = sum(processes.spent(before, processes.costs(roots)).values())
    for stream in opened:
        stream.leave()
    return Fanned(events_per_s=words / took, cpu_per_1000=cpu_s / max(words, 1) * 1000, per_read=words / max(reads, 1))


async def measure(stack: Stack, readers: int, rate: float) -> report.Result:
    """The product, then the peer."""
    settle_s = 3.0
    chunks = int(rate * (settle_s + WINDOW_S + 20))
    reply_id = await sse_load.accepted(stack.port, stack.api_key, {"chunks": chunks, "every_ms": 1000 / rate})
    path = f"/v1/messages/{reply_id}/events"
    request = sse_load.Request("GET", path, port=stack.port, key=stack.api_key)
    own = await fanned([request] * readers, stack.port, {"api": stack.pids()["api-0"]}, settle_s)
    await sse_load.fetch(stack.port, f"/v1/messages/{reply_id}/cancel", stack.api_key, method="POST", body={})
    async with peer.resumable_stream(stack) as (port, pid):
        await peer.begin(port, "one", chunks, 1000 / rate)
        other = await fanned([peer.read(port, "one")] * readers, port, {"peer": pid}, settle_s)
    return _result(own, other, readers, rate)


def _result(own: Fanned, other: Fanned, readers: int, rate: float) -> report.Result:
    offered = readers * rate
    show: Callable[[str, Fanned], tuple[str, ...]] = lambda name, run: (  # noqa: E731
        name,
        f"{run.events_per_s:,.0f}",
        f"{run.events_per_s / offered:.0%}",
        f"{run.cpu_per_1000:.4f}",
        f"{run.per_read:.1f}",
    )
    columns = ("", "events/s", "of what the engine gives", "CPU-s per 1,000 events", "events a read")
    table = report.Table("Given out", columns, (show("Turnlog, one API process", own), show(peer.NAME, other)))
    figures = {
        "events_per_s": own.events_per_s,
        "cpu_s_per_1000": own.cpu_per_1000,
        "peer_events_per_s": other.events_per_s,
        "peer_cpu_s_per_1000": other.cpu_per_1000,
        "ratio": own.events_per_s / max(other.events_per_s, 1.0),
    }
    reached = {f"at least {EVENTS_TARGET_PER_S:,} events/s": own.events_per_s >= EVENTS_TARGET_PER_S}
    how = f"{readers} readers of one reply of {rate:g} tokens/s, measured for {WINDOW_S:g} s."
    return report.result("readers", how, [table], figures, reached)


def main() -> int:
    """Run it; exit code 1 when a target is missed."""
    parser = report.options(__doc__)
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=300.0, help="tokens a second of the reply")
    chosen = parser.parse_args()
    with running() as stack:
        return report.finish(uvloop.run(measure(stack, chosen.readers, chosen.rate)), chosen)


if __name__ == "__main__":
    sys.exit(main())
