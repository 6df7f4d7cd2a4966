"""What a token costs on its way from a record of `tokens` into Redis: in the projection and in the server.

    python tests/benchmarks/buffer_append.py [--streams 250] [--rate 5000] [--gather-ms 4] [--seconds 10]

Replays the records of so many streams through decode, fold, frame and append against the Redis at TURNLOG_REDIS_URL,
at a given rate, in turns as the loop makes them. The log itself is not part of it. Prints one table.
"""

import argparse
import cProfile
import os
import pstats
import time
import uuid

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

PARTITIONS = 8


def main() -> None:  # noqa: PLR0915 - one run, top to bottom
    """Run it and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--streams", type=int, default=250)
    options.add_argument("--rate", type=int, default=5_000)
    options.add_argument("--gather-ms", type=float, default=4.0)
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--profile", action="store_true")
    given = options.parse_args()
    url = os.environ.get("TURNLOG_REDIS_URL", "redis://127.0.0.1:6379/0")
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    load(url)
    server = psutil.Process(int(Redis.from_url(url).info("server")["process_id"]))
    step = BufferStep(
        Store(url), namespace, Lifetimes(open_ms=120_000, retention_ms=1_000, least_ms=1_000), Limits(grace_ms=1_000)
    )
    step.assigned({Partition("tokens", number): 0 for number in range(PARTITIONS)})
    records = _records(given.streams, int(given.rate * given.seconds / given.streams))
    begin = records[: 2 * given.streams]
    rest, ends = records[2 * given.streams : -given.streams], records[-given.streams :]
    _turn(step, begin)
    print(f"{given.streams} streams, {len(rest)} tokens at {given.rate}/s, waiting {given.gather_ms} ms for company")
    before, own = server.cpu_times(), time.process_time()
    profile = cProfile.Profile()
    if given.profile:
        profile.enable()
    started = time.perf_counter()
    done = turns = 0
    delays: list[float] = []
    while done < len(rest):
        due = min(len(rest), int((time.perf_counter() - started) * given.rate))
        if due == done:
            time.sleep(0.0005)
            continue
        batch = rest[done:due]
        _turn(step, batch)
        turns += 1
        delays.append(time.perf_counter() - started - done / given.rate)
        done = due
        time.sleep(given.gather_ms / 1000)
    wall = time.perf_counter() - started
    own = time.process_time() - own
    after = server.cpu_times()
    if given.profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    in_server = after.user + after.system - before.user - before.system
    _turn(step, ends)
    delays.sort()
    print("| what | value |\n|---|---|")
    print(f"| tokens/s | {done / wall:,.0f} |")
    print(f"| turns/s, tokens a turn | {turns / wall:,.0f}, {done / turns:.1f} |")
    print(f"| projection, CPU-s per 1,000 tokens (without the log client) | {own / done * 1000:.4f} |")
    print(f"| server, CPU-s per 1,000 tokens | {in_server / done * 1000:.4f} |")
    print(f"| delay of a turn's oldest token, p50 / p99, ms | {_at(delays, 0.5):.2f} / {_at(delays, 0.99):.2f} |")


def _at(sorted_values: list[float], share: float) -> float:
    return sorted_values[int(len(sorted_values) * share)] * 1000


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
    main()
