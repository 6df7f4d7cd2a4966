"""What a token costs on its way from a record of `tokens` into Redis: in the projection and in the server.

`python -m tests.benchmarks.buffer_append [--streams 250] [--rate 5000] [--gather-ms 0 2 4 8]`, against the server at
TURNLOG_REDIS_URL. Replays the records of so many streams through decode, fold, frame and append at a given rate, in
turns as the loop makes them, with several waits for company. The log itself is not part of it. Direct: one `RPUSH`
and one `SPUBLISH` per token by redis-py's pipeline, with no fold, no order and no idempotence.
"""

import os
import sys
import time
import uuid
from collections.abc import Callable

import msgspec
import psutil
from redis import Redis

from projections.buffer.commands import Lifetimes
from projections.buffer.replies import Limits
from projections.buffer.step import BufferStep
from projections.redis.client import Store
from projections.redis.functions import load
from schemas.codec import Envelope, decode, encode
from schemas.events import Event, GenerationEnded, GenerationQueued, GenerationStarted, TokensGenerated
from schemas.values import Usage
from streams.log.steps import Arrived, Partition, Record
from tests.benchmarks import report

PARTITIONS = 8


class Cost(msgspec.Struct, frozen=True):
    """Of one run. CPU is in seconds per 1,000 tokens, delays in seconds."""

    rate: float
    turns: float
    own: float
    server: float
    delays: list[float]


class Meter:
    """Feeds records at a rate and measures what that costs here and in the server."""

    def __init__(self, url: str, rate: int, gather_ms: float) -> None:
        self._server = psutil.Process(int(Redis.from_url(url).info("server")["process_id"]))
        self._rate = rate
        self._gather_s = gather_ms / 1000

    def run(self, records: list[Record], turn: Callable[[list[Record]], None]) -> Cost:
        """Feed them."""
        before, own = self._server.cpu_times(), time.process_time()
        began = time.perf_counter()
        done = turns = 0
        delays: list[float] = []
        while done < len(records):
            due = min(len(records), int((time.perf_counter() - began) * self._rate))
            if due == done:
                time.sleep(0.0005)
                continue
            turn(records[done:due])
            turns += 1
            delays.append(time.perf_counter() - began - done / self._rate)
            done = due
            time.sleep(self._gather_s)
        wall, own, after = time.perf_counter() - began, time.process_time() - own, self._server.cpu_times()
        server = after.user + after.system - before.user - before.system
        return Cost(done / wall, turns / wall, own / done * 1000, server / done * 1000, delays)


def main() -> int:
    """Run it and print; exit code 1 when a target was missed."""
    options = report.options(__doc__)
    options.add_argument("--streams", type=int, default=250)
    options.add_argument("--rate", type=int, default=5_000)
    options.add_argument("--gather-ms", type=float, nargs="+", default=[0.0, 2.0, 4.0, 8.0])
    options.add_argument("--seconds", type=float, default=5.0)
    given = options.parse_args()
    url = os.environ.get("TURNLOG_REDIS_URL", "redis://127.0.0.1:6379/0")
    load(url)
    rows: list[tuple[str, ...]] = []
    costs: dict[float, Cost] = {}
    tokens = int(given.rate * given.seconds / given.streams)
    for gather_ms in given.gather_ms:
        costs[gather_ms] = cost = _through_the_step(url, given.streams, tokens, given.rate, gather_ms)
        rows.append(_row(f"the projection, waiting {gather_ms:g} ms", cost))
    rows.append(_row("pipeline of RPUSH and SPUBLISH, waiting 4 ms", _directly(url, given.streams, tokens, given.rate)))
    columns = ("way", "tokens/s", "turns/s", "CPU-s per 1,000, this process", "CPU-s per 1,000, server", "p50", "p99")
    best = min(costs.values(), key=lambda cost: cost.own + cost.server)
    reached = {
        "at most 0.03 CPU-s per 1,000 tokens in the projection": best.own <= 0.03,
        "at most 0.02 CPU-s per 1,000 tokens in the server": best.server <= 0.02,
    }
    figures = {"projection_cpu_s": best.own, "server_cpu_s": best.server}
    table = report.Table("", columns, tuple(rows))
    return report.finish(report.result("buffer_append", __doc__ or "", [table], figures, reached), given)


def _row(way: str, cost: Cost) -> tuple[str, ...]:
    p50, p99 = report.percentile(cost.delays, 0.5), report.percentile(cost.delays, 0.99)
    numbers = (f"{cost.rate:,.0f}", f"{cost.turns:,.0f}", f"{cost.own:.4f}", f"{cost.server:.4f}")
    return (way, *numbers, report.ms(p50), report.ms(p99))


def _through_the_step(url: str, streams: int, tokens: int, rate: int, gather_ms: float) -> Cost:
    lifetimes = Lifetimes(open_ms=120_000, retention_ms=1_000, least_ms=1_000)
    step = BufferStep(Store(url), f"bench-{uuid.uuid4().hex[:8]}", lifetimes, Limits(grace_ms=1_000))
    step.assigned({Partition("tokens", number): 0 for number in range(PARTITIONS)})
    records = _records(streams, tokens)
    _turn(step, records[: 2 * streams])
    cost = Meter(url, rate, gather_ms).run(records[2 * streams : -streams], lambda batch: _turn(step, batch))
    _turn(step, records[-streams:])
    return cost


def _directly(url: str, streams: int, tokens: int, rate: int) -> Cost:
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    redis = Redis.from_url(url)

    def turn(batch: list[Record]) -> None:
        pipeline = redis.pipeline(transaction=False)
        for record in batch:
            key = f"{namespace}:{{{record.key}}}"
            pipeline.rpush(f"{key}:frames", record.value or b"")
            pipeline.execute_command("SPUBLISH", f"{key}:live", record.value or b"")
        pipeline.execute()

    cost = Meter(url, rate, 4.0).run(_records(streams, tokens)[2 * streams : -streams], turn)
    for key in redis.scan_iter(f"{namespace}:*", count=1_000):
        redis.delete(key)
    return cost


def _turn(step: BufferStep, records: list[Record]) -> None:
    now_ms = time.time_ns() // 1_000_000
    batch = [
        Arrived(r, decode(r.value, r.headers, topic=r.topic, partition=r.partition, offset=r.offset)) for r in records
    ]
    step.submit(batch, now_ms)
    step.poll(now_ms)
    step.settled()
    if step.trouble:
        raise SystemExit(step.trouble)


def _records(streams: int, tokens: int) -> list[Record]:
    offsets = [0] * PARTITIONS
    records: list[Record] = []
    now_ms = time.time_ns() // 1_000_000

    def add(stream: int, event: Event) -> None:
        number = stream % PARTITIONS
        value, headers = encode(Envelope(event=event, source="worker/0"))
        records.append(Record("tokens", number, offsets[number], event.key(), value, headers, now_ms))
        offsets[number] += 1

    replies = [f"rep_{uuid.uuid4().hex}{uuid.uuid4().hex[:20]}" for _ in range(streams)]
    common = [{"reply_id": reply, "conversation_id": f"conv_{reply[4:40]}"} for reply in replies]
    for i, ids in enumerate(common):
        add(
            i,
            GenerationQueued(
                **ids, message_id="m", account_id="a", tier="paid", pool="p", model="m", submitted_at_ms=now_ms
            ),
        )
    for i, ids in enumerate(common):
        add(i, GenerationStarted(**ids, generation_id=f"g{i}", attempt=1, model="m", worker="w", started_at_ms=now_ms))
    for seq in range(1, tokens + 1):
        for i, ids in enumerate(common):
            add(i, TokensGenerated(**ids, generation_id=f"g{i}", attempt=1, seq=seq, text=" token", tokens=1))
    usage = Usage(input_tokens=1, output_tokens=tokens)
    for i, ids in enumerate(common):
        add(
            i,
            GenerationEnded(
                **ids,
                generation_id=f"g{i}",
                attempt=1,
                seq=tokens + 1,
                status="completed",
                ended_at_ms=now_ms,
                usage=usage,
            ),
        )
    return records


if __name__ == "__main__":
    sys.exit(main())
