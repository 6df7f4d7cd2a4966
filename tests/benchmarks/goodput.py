"""Requests served in time at 0.9 of the capacity: placement by prefix and load, against round robin and least requests.

Four simulated workers in real time, on the whole product, once for each way to choose a worker, with the same requests
at the same times. Prompts share prefixes as in a trace: each block of the trace's is a block of equal words. Goodput is
the requests a second whose first token came within `FIRST_TOKEN_S` and whose tokens then came within `TOKEN_S` on
average.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from schemas.codec import decode
from schemas.events import GenerationFinished
from schemas.topics import WORKERS
from streams.log.kafka import KafkaLog
from streams.log.log import since
from streams.log.steps import Partition
from tests.benchmarks import report, traffic
from tests.benchmarks.overload import LARGE
from tests.benchmarks.replay import WORDS_PER_BLOCK, Key, Outcome, replay, saturate
from tests.benchmarks.stack import Stack, running

SCALE = WORDS_PER_BLOCK / traffic.PREFIX_BLOCK_TOKENS
"""A block of the trace, of 512 tokens, is a block of dispatch's, of 85 words: a token each in the simulation."""
WORKER_COUNT, SLOTS = 4, 12
KV_TOKENS = 240_000
LOAD = 0.9
SECONDS = 70.0
FIRST_TOKEN_S, TOKEN_S = 1.0, 0.06
MODEL = msgspec.structs.replace(LARGE, smaller=None)
SETTINGS = {
    "TURNLOG_MODELS": msgspec.json.encode([MODEL]).decode(),
    "TURNLOG_SLOTS": str(SLOTS),
    "TURNLOG_SIMULATED_KV_TOKENS": str(KV_TOKENS),
    "TURNLOG_SIMULATED_TOKEN_MS": "10",
    "TURNLOG_SIMULATED_PREFILL_TOKENS_PER_S": "12000",
    "TURNLOG_OVERLOAD_STAGES": "false",
    "TURNLOG_LOG_LEVEL": "warning",
}
WAYS = ("round_robin", "least_requests", "prefix")


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A way to choose a worker, and what became of the requests."""

    name: str
    outcomes: list[Outcome]
    busy_ms: dict[int, int]
    """By inbox: how long its slots were taken, summed."""

    @property
    def goodput(self) -> float:
        """Requests a second that were served in time."""
        return sum(map(in_time, self.outcomes)) / SECONDS

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not read again."""
        return sum(one.cached_tokens for one in self.outcomes)

    @property
    def unevenness(self) -> float:
        """Load of the busiest worker over the mean."""
        return max(self.busy_ms.values()) / (sum(self.busy_ms.values()) / WORKER_COUNT)

    def row(self, robin: "Way") -> tuple[str, ...]:
        """For the table."""
        first = [one.first_token_s for one in self.outcomes if one.first_token_s is not None]
        prompt = sum(one.input_tokens for one in self.outcomes)
        return (
            self.name,
            f"{self.goodput:.2f} /s",
            f"{sum(map(in_time, self.outcomes)) / len(self.outcomes):.0%}",
            f"{self.cached_tokens / prompt:.0%}",
            f"{self.cached_tokens / max(1, robin.cached_tokens):.2f}",
            f"{self.unevenness:.2f}",
            report.ms(report.percentile(first, 0.5)),
            report.ms(report.percentile(first, 0.99)),
        )


def in_time(outcome: Outcome) -> bool:
    """Whether a request was served as its user would wish."""
    if outcome.status not in ("completed", "length") or outcome.first_token_s is None:
        return False
    per_token_s = outcome.per_token_s
    return outcome.first_token_s <= FIRST_TOKEN_S and (per_token_s is None or per_token_s <= TOKEN_S)


def busy_ms(stack: Stack) -> dict[int, int]:
    """How long each worker's slots were taken so far, as the log tells it: up to the leases that come now."""
    until_ms = time.time_ns() // 1_000_000
    log = KafkaLog(stack.parts()["kafka"]["address"], "turnlog", "benchmark")
    partitions = [Partition(WORKERS.name, number) for number in range(log.partitions(WORKERS.name))]
    reader = log.reader(partitions, since(0))
    taken: dict[int, int] = {}
    read_ms = 0
    try:
        while read_ms < until_ms:
            for record in reader.poll(1.0):
                read_ms = record.timestamp_ms
                event = decode(record.value, record.headers).event
                if isinstance(event, GenerationFinished) and not event.returned:
                    taken[event.inbox] = taken.get(event.inbox, 0) + event.ran_ms
    finally:
        reader.close()
        log.close()
    return taken


@contextmanager
def stack_of(way: str) -> Iterator[Stack]:
    """A product that chooses in this way."""
    options = ("--engine", "simulated", "--workers", str(WORKER_COUNT))
    with running(*options, env=SETTINGS | {"TURNLOG_PLACEMENT": way}) as stack:
        yield stack


def capacity_of(arrivals: list[traffic.Arrival]) -> float:
    """Requests a second with all slots taken, placed by least requests."""
    with stack_of("least_requests") as stack:
        slots = WORKER_COUNT * SLOTS
        key = Key("paid", stack.api_key)
        return asyncio.run(saturate(stack.url, key, arrivals[: slots * 10], at_a_time=slots, scale=SCALE))


def tried(way: str, arrivals: list[traffic.Arrival]) -> Way:
    """The same requests, placed in this way."""
    with stack_of(way) as stack:
        keys = [Key("paid", stack.api_key)] * len(arrivals)
        outcomes = asyncio.run(replay(stack.url, arrivals, keys, scale=SCALE))
        return Way(name=way, outcomes=outcomes, busy_ms=busy_ms(stack))


def result(source: str, capacity: float, ways: list[Way]) -> report.Result:
    """Table, figures and targets."""
    robin, least, prefix = ways
    figures = {
        "capacity_per_s": capacity,
        **{f"goodput_{way.name}": way.goodput for way in ways},
        "cached_over_round_robin": prefix.cached_tokens / max(1, robin.cached_tokens),
        "unevenness": prefix.unevenness,
    }
    reached = {
        "goodput at least that of round robin": prefix.goodput >= robin.goodput,
        "goodput at least that of least requests": prefix.goodput >= least.goodput,
        "at least 1.5 x the cached tokens of round robin": prefix.cached_tokens >= 1.5 * robin.cached_tokens,
        "no worker above 1.2 x the mean load": prefix.unevenness <= 1.2,
    }
    columns = (
        "placement", "goodput", "in time", "cached", "of round robin's", "busiest / mean", "first token p50", "p99",
    )  # fmt: skip
    how = f"""{WORKER_COUNT} simulated workers of {SLOTS} slots and {KV_TOKENS:,} KV tokens in real time, on the whole
        product; {LOAD:g} of the capacity of {capacity:.1f} requests a second for {SECONDS:g} s, prefixes
        and rhythm of {source}. In time: the first
        token within {FIRST_TOKEN_S:g} s, then {TOKEN_S * 1000:g} ms a token."""
    tables = [report.Table("Ways to choose a worker", columns, tuple(way.row(robin) for way in ways))]
    return report.result("goodput", how, tables, figures, reached)


def main() -> int:
    """Run it; exit code 1 when a target is missed."""
    parser = report.options(__doc__)
    parser.add_argument(
        "--trace", type=Path, help="JSON lines of a Mooncake trace; without it: conversations by chance"
    )
    chosen = parser.parse_args()
    source = "the Mooncake trace" if chosen.trace else "conversations by chance"
    arrivals = traffic.mooncake(chosen.trace) if chosen.trace else traffic.conversations(6_000, seed=1)
    capacity = capacity_of(arrivals)
    print(json.dumps({"capacity_per_s": round(capacity, 2)}), flush=True)
    rate = LOAD * capacity
    load = traffic.at_rate(arrivals[: round(rate * SECONDS)], rate)
    return report.finish(result(source, capacity, [tried(way, load) for way in WAYS]), chosen)


if __name__ == "__main__":
    sys.exit(main())
