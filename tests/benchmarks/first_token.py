"""Added time to the first token, and to each later chunk, idle: through the whole product, beside the engine alone.

- direct: the scripted engine called in this process;
- pass-through: the same engine behind FastAPI in one process (`tests.benchmarks.passthrough`);
- Turnlog: a send whose answer is the stream: API, Kafka, turns, dispatch, worker, Kafka, projection, Redis, API.

First token: from writing the request to reading the first delta. A later chunk's time is from the moment at which
the engine's schedule has it due to reading it; the schedule's origin is the reply's own `first_token_ms` (a wall
clock's millisecond, on average half a millisecond before the moment, which is taken into account).
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import datetime

from inference_workers.engine import GenerationRequest
from inference_workers.engines.scripted import ScriptedEngine
from infra.ports import free_port
from schemas.values import PromptMessage
from tests.benchmarks import report, sse_load
from tests.benchmarks.stack import Stack, passthrough, running

CHUNKS = 20
EVERY_MS = 20.0
FLOOR_MS = 0.5
SCRIPT = {"chunks": CHUNKS, "every_ms": EVERY_MS}

Sample = tuple[float, list[float]]
"""Seconds to the first token, and of each later chunk the seconds after it was due."""


async def direct(engine: ScriptedEngine) -> Sample:
    """The engine in this process."""
    content = json.dumps(SCRIPT)
    request = GenerationRequest(id="r", messages=(PromptMessage(role="user", content=content),), max_tokens=1000)
    began = time.perf_counter()
    arrivals = [time.perf_counter() async for chunk in engine.generate(request) if chunk.tokens]
    late = [at - arrivals[0] - number * EVERY_MS / 1000 for number, at in enumerate(arrivals)]
    return arrivals[0] - began, late[1:]


async def through(port: int, key: str, *, submitted_at_ms: Callable[[str], Awaitable[float]]) -> Sample:
    """One send whose answer is the stream."""
    stream = await sse_load.read(port, sse_load.send(port, key, SCRIPT))
    events = stream.events()
    if stream.status != 200 or not events or events[-1][2].get("status") != "completed":
        raise RuntimeError(f"status {stream.status}: {bytes(stream.body[-300:])!r}")
    reply_id = next(data["message_id"] for _, kind, data in events if kind == "started")
    origin_ms = await submitted_at_ms(reply_id) + events[-1][2]["timings"]["first_token_ms"] + FLOOR_MS
    late = []
    for number in range(1, CHUNKS):
        at = next(at for at, words in stream.reads if words > number)
        late.append((stream.began_ms + at * 1000 - origin_ms - number * EVERY_MS) / 1000)
    return stream.reads[0][0], late


async def measure(stack: Stack, sends: int) -> report.Result:
    """All three, taking turns, so that they see the same machine."""

    async def submitted_at_ms(reply_id: str) -> float:
        status, message = await sse_load.fetch(stack.port, f"/v1/messages/{reply_id}", stack.api_key)
        if status != 200:
            raise RuntimeError(f"GET of {reply_id}: {status} {message}")
        return datetime.fromisoformat(message["created_at"]).timestamp() * 1000

    async def at_zero(_: str) -> float:
        return 0.0

    port = free_port()
    engine = ScriptedEngine(model="m", slots=64, context_tokens=8192)
    await engine.start()
    names = ("engine, direct", "pass-through", "Turnlog")
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    async with passthrough(port):
        for number in range(sends + 5):
            round_ = (
                await direct(engine),
                await through(port, "", submitted_at_ms=at_zero),
                await through(stack.port, stack.api_key, submitted_at_ms=submitted_at_ms),
            )
            if number >= 5:
                for name, sample in zip(names, round_, strict=True):
                    samples[name].append(sample)
    await engine.shutdown(0)
    return _result(samples, sends)


def _result(samples: dict[str, list[Sample]], sends: int) -> report.Result:
    firsts = {name: [first for first, _ in made] for name, made in samples.items()}
    laters = {name: [late for _, all_late in made for late in all_late] for name, made in samples.items()}
    p = report.percentile
    figures: dict[str, float] = {}
    tables = []
    for title, key, values in (("First token", "first", firsts), ("Each later chunk", "later", laters)):
        base = {share: p(values["engine, direct"], share) for share in (0.5, 0.99)}
        rows = [(name, report.ms(p(of, 0.5)), report.ms(p(of, 0.99))) for name, of in values.items()]
        for share, label in ((0.5, "p50"), (0.99, "p99")):
            figures[f"{key}_added_{label}_ms"] = (p(values["Turnlog"], share) - base[share]) * 1000
        added = tuple(f"{figures[f'{key}_added_{label}_ms']:.1f} ms" for label in ("p50", "p99"))
        tables.append(report.Table(title, ("", "p50", "p99"), (*rows, ("added by Turnlog", *added))))
    limits = {
        "first_added_p50_ms": ("added time to first token, p50 at most 20 ms", 20),
        "first_added_p99_ms": ("added time to first token, p99 at most 80 ms", 80),
        "later_added_p50_ms": ("added time per later chunk, p50 at most 8 ms", 8),
        "later_added_p99_ms": ("added time per later chunk, p99 at most 40 ms", 40),
    }
    reached = {target: figures[key] <= limit for key, (target, limit) in limits.items()}
    how = f"{sends} sends one after the other, {CHUNKS} chunks each, one every {EVERY_MS:.0f} ms; nothing else runs."
    return report.result("first_token", how, tables, figures, reached)


def main() -> int:
    """Run it; exit code 1 when a target is missed."""
    parser = report.options(__doc__)
    parser.add_argument("--sends", type=int, default=200)
    chosen = parser.parse_args()
    with running() as stack:
        return report.finish(asyncio.run(measure(stack, chosen.sends)), chosen)


if __name__ == "__main__":
    sys.exit(main())
