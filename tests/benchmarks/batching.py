"""What iteration-level scheduling, paging and prefix caching bring: the simulated GPU server in virtual time.

    turnlog bench batching [--trace azure.csv] [--prefixes mooncake.jsonl] [--requests N] [--write]

The same requests go through the model of one server (`inference_workers.engines.simulation`) in each of its modes, at
rates that grow. As in Orca (Yu et al., OSDI 2022) and vLLM (Kwon et al., SOSP 2023) the latency is normalised: a
request's seconds from its arrival to its last token, over its output tokens. Nothing of the product runs.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from inference_workers.engines.kv_blocks import Chain, Run, chain
from inference_workers.engines.sequences import Sequence
from inference_workers.engines.simulated_presets import PRESETS, REQUESTS, measured
from inference_workers.engines.simulation import Batch, SimulatedSettings
from tests.benchmarks import pictures, report, traffic
from tests.benchmarks.traffic import Arrival

LIMIT_S = 0.1
"""Seconds a token, on average over the requests: the latency at which the modes are compared."""

ITERATION_TARGET = 2.0
"""Throughput at that latency, over that of request-level batching. Orca's paper has 36.9 for GPT-3 175B."""

PAGED_TARGET = 1.5
"""The same over iteration-level with reserved KV. vLLM's paper has 2.7 to 8 over Orca that reserves the longest."""

SLOTS = 512
SEED = 1

RATES = (2.0, 5.0, 8.0, 10.0, 12.0, 15.0, 18.0, 21.0, 24.0, 27.0, 30.0, 34.0, 38.0, 42.0)
"""Requests a second, of short prompts."""

PREFIX_RATES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
"""The same, of long ones with common beginnings."""

MODES: dict[str, dict[str, object]] = {
    "request-level, reserved KV": {"batching": "request", "reserve": "context"},
    "iteration-level, reserved KV": {"batching": "iteration", "reserve": "context"},
    "iteration-level, paged KV": {"batching": "iteration", "reserve": "nothing", "prefix_cache": False},
}
REQUEST_LEVEL, RESERVED, PAGED = MODES


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the model."""

    rate: float
    latency_s: float
    """Mean of the normalised latencies."""
    first_s: float
    """Median time to the first token."""
    tokens_per_s: float
    active: float
    """Sequences in the batch, on average over the steps."""
    cached: float
    """Share of the prompt tokens that were not read."""
    preemptions: int


def server(mode: dict[str, object], chosen: argparse.Namespace) -> SimulatedSettings:
    """The modelled server in this mode."""
    fixed = {"slots": SLOTS, "context_tokens": chosen.context, "jitter": 0.0, "seed": SEED}
    return msgspec.structs.replace(PRESETS[chosen.preset].server, **fixed, **mode)


def simulate(settings: SimulatedSettings, arrivals: list[Arrival], rate: float) -> Outcome:
    """All requests through the model, until the last has ended."""
    batch = Batch(settings)
    known = {str(number): arrival for number, arrival in enumerate(arrivals)}
    coming = iter(known.items())
    following = next(coming, None)
    now_s = 0.0
    first_s: dict[str, float] = {}
    latencies: list[float] = []
    ended: list[Sequence] = []
    active: list[int] = []
    cached = 0
    while following is not None or batch.waiting or batch.running:
        while following is not None and following[1].at_s <= now_s:
            batch.add(_sequence(*following, settings))
            following = next(coming, None)
        step = batch.step()
        if step is None:
            if following is None:
                raise RuntimeError("the model stands still")
            now_s = following[1].at_s
            continue
        now_s += step.duration_s
        active.append(batch.active)
        for sequence in step.produced:
            if sequence.given == 1:
                first_s[sequence.id] = now_s - known[sequence.id].at_s
            if sequence.given == sequence.length:
                batch.remove(sequence.id)
                ended.append(sequence)
        if settings.batching == "request" and batch.running:
            continue  # answers are returned when the batch has ended
        for sequence in ended:
            latencies.append((now_s - known[sequence.id].at_s) / sequence.length)
            cached += sequence.cached
        ended.clear()
    return Outcome(
        rate=rate,
        latency_s=statistics.fmean(latencies),
        first_s=statistics.median(first_s.values()),
        tokens_per_s=sum(arrival.output_tokens for arrival in arrivals) / now_s,
        active=statistics.fmean(active),
        cached=cached / sum(arrival.prompt_tokens for arrival in arrivals),
        preemptions=batch.preemptions,
    )


def _sequence(name: str, arrival: Arrival, settings: SimulatedSettings) -> Sequence:
    prompt = Chain((), ())
    if arrival.prefix and settings.prefix_cache:
        left, runs = arrival.prompt_tokens, []
        for number in arrival.prefix:
            runs.append(Run(name=number, length=min(left, traffic.PREFIX_BLOCK_TOKENS)))
            left -= runs[-1].length
        prompt = chain([run for run in runs if run.length], settings.block_tokens, 0)
    return Sequence(
        id=name,
        prompt_tokens=arrival.prompt_tokens,
        prompt=prompt,
        length=arrival.output_tokens,
        limit=arrival.output_tokens,
    )


def curve(run: Callable[[float], Outcome], rates: tuple[float, ...]) -> list[Outcome]:
    """Runs of growing rates, up to the first far beyond the limit."""
    outcomes: list[Outcome] = []
    for rate in rates:
        outcomes.append(run(rate))
        if outcomes[-1].latency_s > 10 * LIMIT_S:
            break
    return outcomes


def most(run: Callable[[float], Outcome], outcomes: list[Outcome]) -> Outcome:
    """The run of the highest rate whose latency is within the limit, to 2 %, begun from a curve.

    The first run of the curve, if that is not within it; its last, if all are.
    """
    beyond = next((n for n, outcome in enumerate(outcomes) if outcome.latency_s > LIMIT_S), len(outcomes))
    best = outcomes[max(0, beyond - 1)]
    if beyond in (0, len(outcomes)):
        return best
    high = outcomes[beyond].rate
    while high / best.rate > 1.02:
        outcome = run(math.sqrt(best.rate * high))
        if outcome.latency_s <= LIMIT_S:
            best = outcome
        else:
            high = outcome.rate
    return best


def compared(
    arrivals: list[Arrival], modes: dict[str, SimulatedSettings], rates: tuple[float, ...]
) -> tuple[dict[str, Outcome], dict[str, list[Outcome]]]:
    """For each mode its best run within the limit, and its curve."""
    best: dict[str, Outcome] = {}
    curves: dict[str, list[Outcome]] = {}
    for name, settings in modes.items():

        def run(rate: float, settings: SimulatedSettings = settings) -> Outcome:
            return simulate(settings, traffic.at_rate(arrivals, rate), rate)

        curves[name] = curve(run, rates)
        best[name] = most(run, curves[name])
        print(f"{name}: {best[name].rate:.2f} requests a second", file=sys.stderr)
    return best, curves


def row(name: str, outcome: Outcome) -> tuple[str, ...]:
    """A line of the table."""
    within = outcome.latency_s <= LIMIT_S
    return (
        name,
        f"{outcome.rate:.1f}" if within else f"under {outcome.rate:.1f}",
        f"{outcome.tokens_per_s:,.0f}" if within else "–",
        f"{outcome.active:.0f}",
        report.ms(outcome.first_s),
        f"{outcome.cached:.0%}",
        f"{outcome.preemptions:,}",
    )


COLUMNS = ("mode", "requests/s", "output tokens/s", "in the batch", "first token, p50", "prompt cached", "preemptions")


def calibration() -> report.Table:
    """What each preset gives beside what was published."""
    rows = []
    for name, preset in PRESETS.items():
        for lengths, published in preset.published.items():
            modelled = measured(preset.server, lengths, REQUESTS[lengths])
            deviation = f"{modelled / published - 1:+.1%}"
            rows.append((name, f"{lengths[0]} / {lengths[1]}", f"{published:,.0f}", f"{modelled:,.0f}", deviation))
    columns = ("preset", "prompt / output tokens", "TensorRT-LLM 0.17, tokens/s", "model, tokens/s", "deviation")
    return report.Table("Presets beside the published throughput", columns, tuple(rows))


def measure(chosen: argparse.Namespace) -> report.Result:
    """All runs."""
    alone = traffic.azure(chosen.trace) if chosen.trace else traffic.chats(chosen.requests, SEED)
    turns = traffic.mooncake(chosen.prefixes) if chosen.prefixes else traffic.conversations(chosen.requests, SEED)
    fitting = [one for one in alone if one.prompt_tokens + one.output_tokens <= chosen.context]
    alone, turns = fitting[: chosen.requests], turns[: chosen.requests]
    best, curves = compared(alone, {name: server(mode, chosen) for name, mode in MODES.items()}, RATES)
    longest = max(chosen.context, *(arrival.prompt_tokens + arrival.output_tokens for arrival in turns))
    paged = msgspec.structs.replace(server(MODES[PAGED], chosen), context_tokens=longest)
    cache = {"paged, no prefix cache": paged, "paged, prefix cache": msgspec.structs.replace(paged, prefix_cache=True)}
    shared, _ = compared(turns, cache, PREFIX_RATES)
    if chosen.write:
        points = {name: [(one.rate, one.latency_s) for one in outcomes] for name, outcomes in curves.items()}
        pictures.write("batching", drawn(points))
    off, on = shared.values()
    figures = {
        "iteration_over_request": best[RESERVED].tokens_per_s / best[REQUEST_LEVEL].tokens_per_s,
        "paged_over_reserved": best[PAGED].tokens_per_s / best[RESERVED].tokens_per_s,
        "prefix_cache_over_none": on.tokens_per_s / off.tokens_per_s,
    }
    figures |= {f"{name}: requests/s": outcome.rate for name, outcome in (best | shared).items()}
    tables = [
        report.Table(f"Most within {LIMIT_S:g} s a token", COLUMNS, tuple(row(*item) for item in best.items())),
        report.Table(
            f"Prompts with common beginnings, most within {LIMIT_S:g} s a token",
            COLUMNS,
            tuple(row(*item) for item in shared.items()),
        ),
        calibration(),
    ]
    iteration, paging = figures["iteration_over_request"], figures["paged_over_reserved"]
    reached = {
        f"iteration-level gives {ITERATION_TARGET:g} times request-level's throughput ({iteration:.1f})": iteration
        >= ITERATION_TARGET,
        f"paged gives {PAGED_TARGET:g} times reserved's throughput ({paging:.1f})": paging >= PAGED_TARGET,
    }
    return report.result("batching", how(chosen, alone, turns), tables, figures, reached)


def drawn(points: dict[str, list[pictures.Point]]) -> str:
    """The picture: latency by rate, for each mode."""
    return pictures.lines(
        "Latency by rate of requests",
        points,
        x_title="requests a second",
        y_title="mean seconds per token",
        logarithmic=True,
        y_range=(0.003, 10 * LIMIT_S),
    )


def how(chosen: argparse.Namespace, alone: list[Arrival], turns: list[Arrival]) -> str:
    """What was run."""

    def said(arrivals: list[Arrival]) -> str:
        prompt = statistics.fmean(arrival.prompt_tokens for arrival in arrivals)
        output = statistics.fmean(arrival.output_tokens for arrival in arrivals)
        return f"{len(arrivals):,} requests, on average {prompt:,.0f} prompt and {output:,.0f} output tokens"

    first = "The Azure LLM inference trace 2023" if chosen.trace else "Synthetic lengths"
    second = "the Mooncake trace" if chosen.prefixes else "synthetic conversations"
    return f"""The model alone, in virtual time: preset {chosen.preset}, at most {SLOTS} sequences in a batch and
        {chosen.context:,} tokens in one, which is what reserved KV reserves. {first} ({said(alone)}), then, for the
        prefix cache, {second} ({said(turns)}); the rhythm is the trace's, faster or slower. Request-level returns its
        answers when the batch has ended."""


def main() -> int:
    """Run it; exit code 1 when a target is missed."""
    parser = report.options(__doc__)
    parser.add_argument("--trace", type=Path, help="CSV with TIMESTAMP, ContextTokens, GeneratedTokens")
    parser.add_argument(
        "--prefixes", type=Path, help="JSON lines with timestamp, input_length, output_length, hash_ids"
    )
    parser.add_argument("--requests", type=int, default=8_000, help="how many of each, at most")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="llama-3-8b-h100", help="the server")
    parser.add_argument(
        "--context", type=int, default=16_384, help="tokens of the longest sequence; longer ones are left out"
    )
    chosen = parser.parse_args()
    return report.finish(measure(chosen), chosen)


if __name__ == "__main__":
    sys.exit(main())
