"""Ten thousand open streams in one API process: memory, and what they cost the few that have something to say.

1 % of the streams are replies that run at 20 tokens/s; the others follow replies that say a word in 20 seconds. First
the active ones alone, which is the direct run that the others are compared with; then with all idle ones open, over
more than a heartbeat; then with a thousand readers more that take nothing of a large reply.
"""

import asyncio
import resource
import sys

import psutil
import uvloop

from tests.benchmarks import processes, report, sse_load
from tests.benchmarks.stack import Stack, running

RATE = 20.0
IDLE_EVERY_MS = 20_000
"""An idle reply says a word after more than a heartbeat; one that said nothing would be ended as stalled."""
ACTIVE_S = 20.0
"""Longer than a heartbeat."""
MEMORY_TARGET_MB = 400
CONNECTIONS_TARGET = 32
LATE_TARGET_S = 0.05
LARGE_CHUNKS = 500
LARGE_TEXT = "word " + "x" * 240_000


class Phase(report.msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of the active ones in a phase, and the process after it."""

    streams: int
    late_p50_s: float
    late_p99_s: float
    resident_mb: float
    cpu_share: float


async def active(stack: Stack, count: int, streams: int) -> Phase:
    """Run so many active streams to their end."""
    pid = stack.pids()["api-0"]
    script = {"chunks": int(ACTIVE_S * RATE), "every_ms": 1000 / RATE}
    before = processes.cost([pid])
    opened = []
    for _ in range(count):
        opened.append(await sse_load.opened(stack.port, sse_load.send(stack.port, stack.api_key, script)))
        await asyncio.sleep(0.01)
    await asyncio.gather(*[asyncio.wait_for(stream.done, 4 * ACTIVE_S) for stream in opened])
    after = processes.cost([pid])
    late = [each for stream in opened for each in sse_load.lateness(stream, RATE)]
    return Phase(
        streams=streams + count,
        late_p50_s=report.percentile(late, 0.5),
        late_p99_s=report.percentile(late, 0.99),
        resident_mb=after.resident_bytes / 1e6,
        cpu_share=(after.cpu_s - before.cpu_s) / max(ACTIVE_S, *(stream.whole_s for stream in opened)),
    )


async def idle(stack: Stack, count: int, replies: int) -> list[sse_load.Stream]:
    """Open so many streams that have nothing to say, over so many replies."""
    script = {"chunks": 100, "every_ms": IDLE_EVERY_MS}
    ids = [await sse_load.accepted(stack.port, stack.api_key, script) for _ in range(replies)]
    opened: list[sse_load.Stream] = []
    for first in range(0, count, 20):
        requests = [
            sse_load.follow(stack.port, stack.api_key, ids[number % replies])
            for number in range(first, min(count, first + 20))
        ]
        opened += await asyncio.gather(*[sse_load.opened(stack.port, each, keep=False) for each in requests])
    for stream in opened:
        await asyncio.wait_for(stream.spoken, 60)
    return opened


async def stalled(stack: Stack, count: int) -> list[sse_load.Stream]:
    """Readers that take the first bytes of a large reply and nothing more."""
    script = {"chunks": LARGE_CHUNKS, "text": LARGE_TEXT}
    reply_id = await sse_load.accepted(stack.port, stack.api_key, script)
    opened = []
    for _ in range(count):
        stream = await sse_load.opened(
            stack.port, sse_load.follow(stack.port, stack.api_key, reply_id), keep=False, stalls=True
        )
        opened.append(stream)
    return opened


async def measure(stack: Stack, streams: int, replies: int, stalls: int) -> report.Result:
    """The three phases, one after the other."""
    count = streams // 100
    phases = {"active alone": await active(stack, count, 0)}
    waiting = await idle(stack, streams - count, replies)
    phases["with idle ones"] = await active(stack, count, len(waiting))
    connections = await _redis_connections(stack)
    held = await stalled(stack, stalls)
    phases["with stalled ones too"] = await active(stack, count, len(waiting) + len(held))
    lost = sum(stream.done.done() for stream in waiting)
    for stream in (*waiting, *held):
        stream.leave()
    return _result(phases, connections, lost, streams, replies, stalls)


async def _redis_connections(stack: Stack) -> int:
    """How many connections the API process has to Redis."""
    pid = stack.pids()["api-0"]
    port = int(str(stack.parts()["redis"]["address"]).rpartition(":")[2].partition("/")[0])
    found = [link for link in psutil.Process(pid).net_connections("tcp") if link.raddr]
    return sum(link.raddr.port == port for link in found)


def _result(
    phases: dict[str, Phase], connections: int, lost: int, streams: int, replies: int, stalls: int
) -> report.Result:
    columns = ("", "open streams", "chunk later than due p50 / p99", "resident", "CPU, of one core")
    rows = tuple(
        (
            name,
            f"{phase.streams:,}",
            f"{report.ms(phase.late_p50_s)} / {report.ms(phase.late_p99_s)}",
            f"{phase.resident_mb:.0f} MB",
            f"{phase.cpu_share:.0%}",
        )
        for name, phase in phases.items()
    )
    alone, among, beside = phases.values()
    figures = {
        "resident_mb": among.resident_mb,
        "bytes_per_stream": (among.resident_mb - alone.resident_mb) * 1e6 / max(among.streams - alone.streams, 1),
        "added_p99_ms": (among.late_p99_s - alone.late_p99_s) * 1000,
        "stalled_added_p99_ms": (beside.late_p99_s - alone.late_p99_s) * 1000,
        "stalled_mb": beside.resident_mb - among.resident_mb,
        "redis_connections": float(connections),
    }
    reached = {
        f"{streams:,} streams within {MEMORY_TARGET_MB} MB": among.resident_mb <= MEMORY_TARGET_MB,
        f"at most {CONNECTIONS_TARGET} connections to Redis": connections <= CONNECTIONS_TARGET,
        "added time per chunk, p99 at most 50 ms": among.late_p99_s - alone.late_p99_s <= LATE_TARGET_S,
        "the same beside stalled readers": beside.late_p99_s - alone.late_p99_s <= LATE_TARGET_S,
        "no idle stream broke": lost == 0,
    }
    how = f"""{streams:,} streams, 1 % of them active; the idle ones follow {replies:,} replies; then {stalls:,} that
        take nothing of a reply of {len(LARGE_TEXT) / 1e3:.0f} KB."""
    return report.result("open_streams", how, [report.Table("Open streams", columns, rows)], figures, reached)


def main() -> int:
    """Run it; exit code 1 when a target is missed."""
    parser = report.options(__doc__)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--replies", type=int, default=1_000, help="that the idle streams follow")
    parser.add_argument("--stalled", type=int, default=1_000)
    chosen = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    slots = chosen.replies + chosen.streams // 100 + 1
    with running(env={"TURNLOG_SLOTS": str(slots)}) as stack:
        made = uvloop.run(measure(stack, chosen.streams, chosen.replies, chosen.stalled))
        return report.finish(made, chosen)


if __name__ == "__main__":
    sys.exit(main())
