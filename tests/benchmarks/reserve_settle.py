"""Reservations of one API process and their settlement by one projection, on one Redis-compatible server of its own.

`python -m tests.benchmarks.reserve_settle [--pairs 60000] [--rates 2000 10000] [--accounts 200]`. A process reserves
through the API's own store (`RedisStore.enter`, with the look at the conversation that a send has) and confirms, as a
send does when the log has it; a second process settles what was reserved through the projection's own step, in turns
as the loop makes them. First flat out, 256 at a time, then at given rates, where each reservation is timed from its
call to its answer, and each settlement from its record to the answer of its turn. Beside it, through the same client
and the same connections, a rate limiter as gateways have it: one GCRA script a request (what redis-cell computes) and
one INCRBY at its end.
"""

import asyncio
import contextlib
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import psutil
import uvloop
from msgspec.structs import replace

from api.limits import Demand, Granted, Leases, confirm_words
from api.metrics import Metrics
from api.redis_store import RedisStore
from api.redis_wire import packed
from projections.limits.commands import Owners
from projections.limits.step import LimitsStep, Span
from projections.redis import functions
from projections.redis.client import Command, Store, pack
from schemas.account import Accounts
from schemas.codec import Envelope
from schemas.events import UsageRecorded
from schemas.examples import EXAMPLES
from schemas.tiers import DEFAULT_TIERS, Holder, buckets_of, keep_ms
from schemas.tiers.library import CONFIRM
from streams.log.steps import Arrived, Partition, Record, Rewind
from tests.benchmarks import report
from tests.projections.valkey import Valkey

PARTITION = Partition("usage", 0)
RULES = replace(
    DEFAULT_TIERS["paid"], requests_per_minute=60_000_000, tokens_per_minute=1_000_000_000, running_max=1_000_000
)
LEASES = Leases(door_ms=20_000, reply_ms=1_860_000)
AT_ONCE = 256
GCRA = b"""
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
local after = tat + ARGV[1] * ARGV[3]
if after - ARGV[2] * ARGV[1] > now then return {0, after - now} end
redis.call('SET', KEYS[1], string.format('%.0f', after), 'PX', 60000)
return {1, 0}
"""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run's figures. Times in seconds."""

    pairs_per_s: float
    reserves: list[float]
    settles: list[float]
    server_cpu_s: float
    """Of the server, per 1,000 pairs."""
    api_cpu_s: float
    projection_cpu_s: float


def main() -> int:
    """Run it and print; exit code 1 when a target was missed."""
    options = report.options(__doc__)
    options.add_argument("--pairs", type=int, default=60_000)
    options.add_argument("--rates", type=int, nargs="+", default=[2_000, 10_000])
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--accounts", type=int, default=200)
    given = options.parse_args()
    pairs = {rate: int(rate * given.seconds) or given.pairs for rate in (0, *given.rates)}
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder))
        server.start()
        try:
            functions.load(server.url)
            _run(server, ours=True, pairs=2_000, rate=0, accounts=given.accounts)
            runs = {
                (ours, rate): _run(server, ours=ours, pairs=pairs[rate], rate=rate, accounts=given.accounts)
                for ours in (True, False)
                for rate in pairs
            }
        finally:
            server.kill()
    names = {True: "reserve and settle", False: "GCRA and INCRBY"}
    paces = {rate: f"{rate:,} a second" if rate else "flat out" for rate in pairs}
    rows = tuple(_row(f"{names[ours]}, {paces[rate]}", run) for (ours, rate), run in runs.items())
    columns = (
        "way",
        "pairs/s",
        "reserve p50",
        "reserve p99",
        "settle p50",
        "settle p99",
        "CPU-s per 1,000: API",
        "projection",
        "server",
    )
    flat, peer = runs[True, 0], runs[False, 0]
    p99 = {rate: report.percentile(runs[True, rate].reserves, 0.99) for rate in given.rates}
    reached = {"at least 10,000 pairs a second": flat.pairs_per_s >= 10_000} | {
        f"a reservation at most 3 ms at p99, at {rate:,} a second": at <= 0.003 for rate, at in p99.items()
    }
    figures = {"pairs_per_s": flat.pairs_per_s, "peer_pairs_per_s": peer.pairs_per_s}
    figures |= {f"p99_s_at_{rate}": at for rate, at in p99.items()}
    table = report.Table("", columns, rows)
    return report.finish(report.result("reserve_settle", __doc__ or "", [table], figures, reached), given)


def _row(way: str, run: Run) -> tuple[str, ...]:
    times = [report.ms(report.percentile(times, p)) for times in (run.reserves, run.settles) for p in (0.5, 0.99)]
    cpu = [f"{cost:.4f}" for cost in (run.api_cpu_s, run.projection_cpu_s, run.server_cpu_s)]
    return (way, f"{run.pairs_per_s:,.0f}", *times, *cpu)


def _run(server: Valkey, *, ours: bool, pairs: int, rate: int, accounts: int) -> Run:
    namespace = f"bench-{time.time_ns()}"
    here, there = multiprocessing.Pipe()
    settler = multiprocessing.Process(target=_settle, args=(there, server.url, namespace, ours, accounts))
    settler.start()
    here.recv()
    redis = psutil.Process(server.client.info("server")["process_id"])
    before, own = redis.cpu_times(), time.process_time()
    began = time.perf_counter()
    reserves = uvloop.run(_reserve(here, server.url, namespace, ours, pairs, rate, accounts))
    own = time.process_time() - own
    here.send(None)
    settles, settled, settler_cpu = here.recv()
    wall = time.perf_counter() - began
    after = redis.cpu_times()
    settler.join()
    if settled != pairs:
        raise SystemExit(f"{settled} of {pairs} were settled")
    server.client.flushall()
    return Run(
        pairs_per_s=pairs / wall,
        reserves=reserves,
        settles=settles,
        server_cpu_s=(after.user + after.system - before.user - before.system) / pairs * 1000,
        api_cpu_s=own / pairs * 1000,
        projection_cpu_s=settler_cpu / pairs * 1000,
    )


async def _reserve(
    pipe: Connection, url: str, namespace: str, ours: bool, pairs: int, rate: int, accounts: int
) -> list[float]:
    """Reserve; tell the settler which ones, a few milliseconds' together."""
    store = RedisStore(url, namespace, Metrics())
    times: list[float] = []
    done: list[int] = []
    one = _ours(store, namespace, accounts) if ours else await _peer(store, namespace, accounts)
    numbers = iter(range(pairs))
    began = time.perf_counter()

    async def call(number: int) -> None:
        times.append(await one(number))
        done.append(number)

    async def flat_out() -> None:
        for number in numbers:
            await call(number)

    async def tell() -> None:
        nonlocal done
        told = 0
        while told < pairs:
            await asyncio.sleep(0.002)
            now, done = done, []
            if now:
                told += len(now)
                pipe.send(now)

    telling = asyncio.create_task(tell())
    if rate == 0:
        await asyncio.gather(*(flat_out() for _ in range(AT_ONCE)))
    else:
        calls: set[asyncio.Task[None]] = set()
        for number in numbers:
            wait_s = began + number / rate - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            task = asyncio.create_task(call(number))
            calls.add(task)
            task.add_done_callback(calls.discard)
        await asyncio.gather(*calls)
    await telling
    await store.close()
    return times


def _ours(store: RedisStore, namespace: str, accounts: int) -> Callable[[int], Awaitable[float]]:
    holders = [Holder(f"acc_{number}") for number in range(accounts)]
    buckets = [buckets_of(RULES, "m", "default", holder) for holder in holders]
    kept = keep_ms(RULES)
    confirm: Any = store._ask

    async def reserve(number: int) -> float:
        demand = Demand(
            holder=holders[number % accounts],
            reply_id=f"rep_{number:032d}",
            conversation_id=f"conv_{number:031d}",
            buckets=buckets[number % accounts],
            running_max=RULES.running_max,
            prompt_tokens=120,
            output_tokens=512,
            context_tokens=8_192,
            leases=LEASES,
            keep_ms=kept,
        )
        asked_s = time.perf_counter()
        entry = await store.enter(demand, None)
        took_s = time.perf_counter() - asked_s
        if not isinstance(entry.reserved.outcome, Granted):
            raise SystemExit(f"refused: {entry.reserved.outcome}")
        await confirm(store._fcall(CONFIRM, demand.holder, confirm_words(demand)), 1)
        return took_s

    return reserve


async def _peer(store: RedisStore, namespace: str, accounts: int) -> Callable[[int], Awaitable[float]]:
    calls: Any = store._calls
    (sha,) = await calls.ask(packed(b"SCRIPT", b"LOAD", GCRA), 1)

    async def reserve(number: int) -> float:
        key = f"{namespace}:gcra:{number % accounts}".encode()
        asked_s = time.perf_counter()
        (answer,) = await calls.ask(packed(b"EVALSHA", sha, b"1", key, b"1", b"60000000", b"632"), 1)
        if answer[0] != 1:
            raise SystemExit("refused")
        return time.perf_counter() - asked_s

    return reserve


def _settle(pipe: Connection, url: str, namespace: str, ours: bool, accounts: int) -> None:
    """Settle what the other process tells, in turns; in the end tell the times, how many, and the CPU time."""
    store = Store(url)
    step = LimitsStep(store, namespace, Owners(Accounts(), {"paid": RULES}), lambda *_: Span(0, 0), 1)
    step.assigned({PARTITION: 0})
    now_ms = time.time_ns() // 1_000_000
    for turn in range(4):  # its marker, before anything is reserved
        with contextlib.suppress(Rewind):
            step.poll(now_ms + turn * 1_100)
    record = replace(
        EXAMPLES[UsageRecorded], record_kind="reply", tier="paid", pool="default", model="m", ended_at_ms=now_ms
    )
    pipe.send("ready")
    times: list[float] = []
    offset = settled = 0
    own = time.process_time()
    while True:
        batch: list[int] = []
        told = pipe.recv()
        while told is not None:
            batch += told
            if not pipe.poll():
                break
            told = pipe.recv()
        began_s = time.perf_counter()
        for at in range(0, len(batch), 2_000):
            numbers = batch[at : at + 2_000]
            if ours:
                events = [_ended(record, number, accounts) for number in numbers]
                step.submit([_arrived(event, offset + n) for n, event in enumerate(events)], now_ms)
                step.poll(time.time_ns() // 1_000_000)
            else:
                keys = [f"{namespace}:used:{number % accounts}".encode() for number in numbers]
                store.call([Command(key, pack([b"INCRBY", key, b"-400"])) for key in keys])
                settled += len(numbers)
            offset += len(numbers)
            times += [time.perf_counter() - began_s] * len(numbers)
        if told is None:
            break
    settled = step.counts.settled if ours else settled
    pipe.send((times, settled, time.process_time() - own))
    store.close()


def _ended(record: UsageRecorded, number: int, accounts: int) -> UsageRecorded:
    return replace(
        record,
        reply_id=f"rep_{number:032d}",
        conversation_id=f"conv_{number:031d}",
        account_id=f"acc_{number % accounts}",
        output_tokens=112,
    )


def _arrived(event: UsageRecorded, offset: int) -> Arrived:
    record = Record("usage", 0, offset, event.account_id, b"", [], 0)
    return Arrived(record, Envelope(event=event, source="bench"))


if __name__ == "__main__":
    sys.exit(main())
