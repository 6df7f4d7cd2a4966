"""Twice as much traffic as there is capacity, a fifth of it paid: who waits how long, with the scheduler and without.

Simulated workers in real time, on the whole product: four of a model, one of a smaller one that takes over. Lengths
and rhythm are those of a trace. The capacity is measured first: requests a second when all slots are always taken.
Then half of it, and twice; and twice again without the scheduler (first come, first served; no priorities, accounts
or stages). What is refused is sent once more after the time that it was told.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import msgspec

from schemas.models import Model, Price
from tests.benchmarks import pictures, report, traffic
from tests.benchmarks.replay import Key, Outcome, replay, saturate
from tests.benchmarks.stack import Stack, running, turnlog

SCALE = 0.5
"""Of the trace's lengths, so that enough requests fit into minutes on a small machine."""
PAID = 5
"""One of so many is paid."""
WORKERS, SLOTS = 4, 12
FREE_ACCOUNTS, PAID_ACCOUNTS = 16, 4
HALF_S, TWICE_S = 240.0, 70.0
RATIO = 1.3
WAIT_S_MAX = 60.0
BIN_S = 4.0
PRICE = Price(version="1", input=Decimal(1), cached_input=Decimal(1), cache_write=Decimal(1), output=Decimal(1))
LARGE = Model(
    name="large",
    pool="default",
    context_tokens=16_384,
    output_tokens_max=4_096,
    output_tokens_default=1_024,
    price=PRICE,
    bytes_per_token=6.0,
    smaller="small",
)
SMALL = msgspec.structs.replace(LARGE, name="small", smaller=None)
NO_LIMITS = {"requests_per_minute": 1_000_000, "tokens_per_minute": 1_000_000_000, "running_max": 1_000_000}
SETTINGS = {
    "TURNLOG_MODELS": msgspec.json.encode([LARGE, SMALL]).decode(),
    "TURNLOG_SLOTS": str(SLOTS),
    "TURNLOG_SIMULATED_TOKEN_MS": "36",
    "TURNLOG_SIMULATED_PREFILL_TOKENS_PER_S": "20000",
    "TURNLOG_TIERS": msgspec.json.encode({"free": NO_LIMITS, "paid": NO_LIMITS}).decode(),
    "TURNLOG_LOG_LEVEL": "warning",
}
WITHOUT = {"TURNLOG_QUEUEING": "fifo", "TURNLOG_OVERLOAD_STAGES": "false", "TURNLOG_PLACEMENT": "least_requests"}
OPTIONS = ("--engine", "simulated", "--workers", f"large={WORKERS},small=1")


def accounts(stack: Stack) -> dict[str, list[Key]]:
    """Keys of accounts of both tiers."""
    made: dict[str, list[Key]] = {"free": [], "paid": []}
    for tier, count in (("free", FREE_ACCOUNTS), ("paid", PAID_ACCOUNTS)):
        for number in range(count):
            options = ("--tier", tier, "--data", str(stack.data), "--json")
            answer = json.loads(turnlog("accounts", "create", f"{tier}-{number}", *options))
            made[tier].append(Key(tier, answer["api_key"]))
    return made


def who(keys: dict[str, list[Key]], count: int) -> list[Key]:
    """Whose each arrival is: every fifth one is paid, accounts in turn."""
    free, paid = keys["free"], keys["paid"]
    return [
        paid[number // PAID % len(paid)] if number % PAID == 0 else free[number % len(free)] for number in range(count)
    ]


def part(arrivals: list[traffic.Arrival], rate: float, seconds: float) -> list[traffic.Arrival]:
    """As many of the trace's requests as that rate brings in that time."""
    return traffic.at_rate(arrivals[: max(2, round(rate * seconds))], rate)


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A load that was offered, and what became of it."""

    name: str
    outcomes: list[Outcome]

    def of(self, tier: str) -> list[Outcome]:
        """Those of a tier."""
        return [outcome for outcome in self.outcomes if outcome.tier == tier]

    def first_token(self, tier: str, share: float) -> float:
        """A percentile of the time to the first token, seconds, of those that were served."""
        return report.percentile((one.first_token_s for one in self.of(tier) if one.first_token_s is not None), share)

    def rows(self) -> list[tuple[str, ...]]:
        """For the table."""
        return [self._row(tier) for tier in ("paid", "free")]

    def _row(self, tier: str) -> tuple[str, ...]:
        mine = self.of(tier)
        served = [one for one in mine if one.status in ("completed", "length")]
        count = len(mine)
        shares = [
            len(served),
            sum("shortened" in one.notices for one in served),
            sum("smaller_model" in one.notices for one in served),
            sum(one.refusals > 0 for one in mine),
            sum(one.status == "refused" for one in mine),
        ]
        queued = (one.queued_s for one in served if one.queued_s is not None)
        times = [report.percentile(queued, 0.99), *(self.first_token(tier, share) for share in (0.5, 0.99))]
        return (
            self.name,
            tier,
            str(count),
            *(f"{share / count:.0%}" for share in shares),
            *(f"{at_s * 1000:,.0f} ms" for at_s in times),
        )


async def offered(stack: Stack, name: str, arrivals: list[traffic.Arrival]) -> Phase:
    """Offer it; a moment of calm before, so that no queue is left from before."""
    await asyncio.sleep(5.0)
    keys = who(await asyncio.to_thread(accounts_of, stack), len(arrivals))
    return Phase(name=name, outcomes=await replay(stack.url, arrivals, keys, scale=SCALE))


_KEYS: dict[str, dict[str, list[Key]]] = {}


def accounts_of(stack: Stack) -> dict[str, list[Key]]:
    """The accounts of a running product, made once."""
    if stack.url not in _KEYS:
        _KEYS[stack.url] = accounts(stack)
    return _KEYS[stack.url]


async def with_scheduler(stack: Stack, arrivals: list[traffic.Arrival]) -> tuple[float, Phase, Phase]:
    """Capacity, and the two phases."""
    keys = await asyncio.to_thread(accounts_of, stack)
    slots = WORKERS * SLOTS
    capacity = await saturate(stack.url, keys["paid"][0], arrivals[: slots * 8], at_a_time=slots, scale=SCALE)
    print(f"capacity: {capacity:.1f} requests a second", flush=True)
    half = await offered(stack, "0.5 x", part(arrivals, capacity / 2, HALF_S))
    twice = await offered(stack, "2 x", part(arrivals, capacity * 2, TWICE_S))
    return capacity, half, twice


def picture(phases: Sequence[Phase]) -> str:
    """Time to first token over the time of arrival, by tier."""
    series: dict[str, list[tuple[float, float]]] = {}
    for phase in phases:
        for tier in ("paid", "free"):
            bins: dict[int, list[float]] = {}
            for one in phase.of(tier):
                if one.first_token_s is not None:
                    bins.setdefault(int(one.at_s / BIN_S), []).append(one.first_token_s)
            series[f"{tier}, {phase.name}"] = [
                ((at + 0.5) * BIN_S, report.percentile(times, 0.5)) for at, times in sorted(bins.items())
            ]
    return pictures.lines(
        "Twice the capacity: median time to the first token",
        series,
        x_title="seconds since the overload began",
        y_title="seconds to the first token",
        logarithmic=True,
    )


def result(source: str, capacity: float, half: Phase, twice: Phase, without: Phase) -> report.Result:
    """Tables, figures and targets."""
    before, under = half.first_token("paid", 0.99), twice.first_token("paid", 0.99)
    bare = without.first_token("paid", 0.99)
    waits = [one.first_token_s for one in twice.outcomes if one.first_token_s is not None]
    lost = sum(one.status in ("lost", "failed") for one in twice.outcomes)
    staged = {notice for one in twice.of("free") for notice in one.notices}
    figures = {
        "capacity_per_s": capacity,
        "paid_p99_half_s": before,
        "paid_p99_twice_s": under,
        "paid_ratio": under / before,
        "paid_p99_without_s": bare,
        "longest_wait_s": max(waits),
        "lost": lost,
    }
    reached = {
        f"paid p99 at 2 x is at most {RATIO} of its value at 0.5 x": under <= RATIO * before,
        "free traffic is shortened, then given the smaller model, then refused with a time": (
            {"shortened", "smaller_model"} <= staged and any(one.refusals for one in twice.of("free"))
        ),
        "none lost": not lost,
        f"none waits for ever (longest {WAIT_S_MAX:g} s)": max(waits) <= WAIT_S_MAX,
    }

    def served(phase: Phase) -> str:
        return str(sum(one.first_token_s is not None for one in phase.of("paid")))

    columns = (
        "load", "tier", "sent", "served", "shortened", "smaller model", "refused", "twice", "queued p99", "p50", "p99",
    )  # fmt: skip
    tables = [
        report.Table(
            "Time to the first token, from the send that was served",
            columns,
            tuple(row for phase in (half, twice, without) for row in phase.rows()),
        ),
        report.Table(
            "Paid traffic",
            ("", "served", "p99", "of its p99 at 0.5 x"),
            (
                ("0.5 x", served(half), f"{before * 1000:,.0f} ms", "1"),
                ("2 x, with the scheduler", served(twice), f"{under * 1000:,.0f} ms", f"{under / before:.2f}"),
                ("2 x, without", served(without), f"{bare * 1000:,.0f} ms", f"{bare / before:.2f}"),
            ),
        ),
    ]
    how = f"""Simulated workers in real time: {WORKERS} of a model and 1 of a smaller one, {SLOTS} slots each, on the
        whole product; {SCALE:g} x the lengths of {source}, and its rhythm; {capacity:.1f} requests a second are the
        capacity of the {WORKERS}; every {PAID}th request is paid. What is refused is sent once more when it was told
        to."""
    return report.result("overload", how, tables, figures, reached)


def main() -> int:
    """Run it; exit code 1 when a target is missed."""
    parser = report.options(__doc__)
    parser.add_argument("--trace", type=Path, help="CSV of the Azure LLM inference trace 2023; without it: by chance")
    chosen = parser.parse_args()
    source = "the Azure LLM inference trace 2023" if chosen.trace else "chats by chance"
    arrivals = traffic.azure(chosen.trace) if chosen.trace else traffic.chats(8_000, seed=1)
    with running(*OPTIONS, env=SETTINGS) as stack:
        capacity, half, twice = asyncio.run(with_scheduler(stack, arrivals))
    with running(*OPTIONS, env=SETTINGS | WITHOUT) as stack:
        load = part(arrivals, capacity * 2, TWICE_S)
        without = asyncio.run(offered(stack, "2 x, without the scheduler", load))
    if chosen.write:
        pictures.write("overload", picture([twice, without]))
    return report.finish(result(source, capacity, half, twice, without), chosen)


if __name__ == "__main__":
    sys.exit(main())
