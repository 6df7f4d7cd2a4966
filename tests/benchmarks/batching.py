"""What iteration-level scheduling, paging and prefix caching bring: the simulated GPU server in virtual time.

    turnlog bench batching [--trace azure.csv] [--prefixes mooncake.jsonl] [--requests N] [--write]

The same requests go through the model of one server (`inference_workers.engines.simulation`) in each of its modes, at
rates that grow: through a server of today, and through the one that vLLM's paper measured, with its lengths. Nothing of
the product runs.
"""

import argparse
import statistics
import sys
from pathlib import Path

import msgspec

from inference_workers.engines.simulated_presets import PRESETS, REQUESTS, PresetName, measured
from inference_workers.engines.simulation import SimulatedSettings
from tests.benchmarks import pictures, report, traffic
from tests.benchmarks.served import LIMIT_S, Outcome, compared, simulate
from tests.benchmarks.traffic import Arrival

ITERATION_TARGET = 2.0
"""Throughput at that latency, over that of request-level batching. Orca's paper has 36.9 for GPT-3 175B."""

PAGED_TARGET = 1.5
"""The same over iteration-level with reserved KV."""

PAPER: PresetName = "opt-13b-a100"
"""The server of vLLM's paper (Kwon et al., SOSP 2023)."""
PAPER_TARGET = 2.7
"""The same on that server. The paper has 2.7 to 8 over Orca that reserves the longest, for OPT of 13B to 175B."""
PAPER_REQUESTS, PAPER_RATE = 7_200, 2.0
"""How many the paper sent in the run whose batches it tells, and how many a second."""
PAPER_RATES = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.5)

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


def server(mode: dict[str, object], preset: PresetName, context: int) -> SimulatedSettings:
    """The modelled server in this mode."""
    fixed = {"slots": SLOTS, "context_tokens": context, "jitter": 0.0, "seed": SEED}
    return msgspec.structs.replace(PRESETS[preset].server, **fixed, **mode)


def of_the_paper(mode: str) -> SimulatedSettings:
    """The server of vLLM's paper."""
    return server(MODES[mode], PAPER, PRESETS[PAPER].server.context_tokens)


def batched(mode: str) -> Outcome:
    """The run whose batches vLLM's paper tells, in the model."""
    arrivals = traffic.sharegpt(PAPER_REQUESTS, SEED)
    return simulate(of_the_paper(mode), traffic.at_rate(arrivals, PAPER_RATE), PAPER_RATE)


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


def paper_calibration() -> report.Table:
    """How many requests are in the batch of the paper's server beside what it has published."""
    rows = []
    for mode, reserve in ((RESERVED, "context"), (PAGED, "nothing")):
        published, modelled = PRESETS[PAPER].batched[reserve], batched(mode).active
        rows.append((mode, f"{published:.2f}", f"{modelled:.2f}", f"{modelled / published - 1:+.1%}"))
    columns = ("mode", "vLLM's paper, figure 13a", "model", "deviation")
    return report.Table(f"Preset {PAPER}: requests in the batch at {PAPER_RATE:g} a second", columns, tuple(rows))


def measure(chosen: argparse.Namespace) -> report.Result:
    """All runs."""
    alone = traffic.azure(chosen.trace) if chosen.trace else traffic.chats(chosen.requests, SEED)
    turns = traffic.mooncake(chosen.prefixes) if chosen.prefixes else traffic.conversations(chosen.requests, SEED)
    fitting = [one for one in alone if one.prompt_tokens + one.output_tokens <= chosen.context]
    alone, turns = fitting[: chosen.requests], turns[: chosen.requests]
    best, curves = compared(
        alone, {name: server(mode, chosen.preset, chosen.context) for name, mode in MODES.items()}, RATES
    )
    longest = max(chosen.context, *(arrival.prompt_tokens + arrival.output_tokens for arrival in turns))
    paged = server(MODES[PAGED], chosen.preset, longest)
    cache = {"paged, no prefix cache": paged, "paged, prefix cache": msgspec.structs.replace(paged, prefix_cache=True)}
    shared, _ = compared(turns, cache, PREFIX_RATES)
    asked = traffic.sharegpt(PAPER_REQUESTS, SEED)
    paper, _ = compared(asked, {mode: of_the_paper(mode) for mode in MODES}, PAPER_RATES)
    if chosen.write:
        points = {name: [(one.rate, one.latency_s) for one in outcomes] for name, outcomes in curves.items()}
        pictures.write("batching", drawn(points))
    off, on = shared.values()
    figures = {
        "iteration_over_request": best[RESERVED].tokens_per_s / best[REQUEST_LEVEL].tokens_per_s,
        "paged_over_reserved": best[PAGED].tokens_per_s / best[RESERVED].tokens_per_s,
        "prefix_cache_over_none": on.tokens_per_s / off.tokens_per_s,
        "paged_over_reserved_of_the_paper": paper[PAGED].tokens_per_s / paper[RESERVED].tokens_per_s,
    }
    figures |= {f"{name}: requests/s": outcome.rate for name, outcome in (best | shared).items()}
    figures |= {f"{PAPER}, {name}: requests/s": outcome.rate for name, outcome in paper.items()}
    tables = [
        report.Table(f"Most within {LIMIT_S:g} s a token", COLUMNS, tuple(row(*item) for item in best.items())),
        report.Table(
            f"Prompts with common beginnings, most within {LIMIT_S:g} s a token",
            COLUMNS,
            tuple(row(*item) for item in shared.items()),
        ),
        report.Table(
            f"The server of vLLM's paper, most within {LIMIT_S:g} s a token",
            COLUMNS,
            tuple(row(*item) for item in paper.items()),
        ),
        paper_calibration(),
        calibration(),
    ]
    iteration, paging = figures["iteration_over_request"], figures["paged_over_reserved"]
    in_paper = figures["paged_over_reserved_of_the_paper"]
    reached = {
        f"iteration-level gives {ITERATION_TARGET:g} times request-level's throughput ({iteration:.1f})": iteration
        >= ITERATION_TARGET,
        f"paged gives {PAGED_TARGET:g} times reserved's throughput ({paging:.1f})": paging >= PAGED_TARGET,
        f"the same on the paper's server: {PAPER_TARGET:g} times, its lowest ({in_paper:.1f})": in_paper
        >= PAPER_TARGET,
    }
    return report.result("batching", how(chosen, alone, turns, asked), tables, figures, reached)


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


def how(chosen: argparse.Namespace, alone: list[Arrival], turns: list[Arrival], asked: list[Arrival]) -> str:
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
        answers when the batch has ended. Then preset {PAPER} with {PRESETS[PAPER].server.context_tokens:,} tokens in a
        sequence, and lengths by chance with the paper's means ({said(asked)}), by a Poisson process as there."""


def main() -> int:
    """Run it; exit code 1 when a target is missed."""
    parser = report.options(__doc__)
    parser.add_argument("--trace", type=Path, help="CSV with TIMESTAMP, ContextTokens, GeneratedTokens")
    parser.add_argument(
        "--prefixes", type=Path, help="JSON lines with timestamp, input_length, output_length, hash_ids"
    )
    parser.add_argument("--requests", type=int, default=8_000, help="how many of each, at most")
    parser.add_argument(
        "--preset", choices=sorted(set(PRESETS) - {PAPER}), default="llama-3-8b-h100", help="the server"
    )
    parser.add_argument(
        "--context", type=int, default=16_384, help="tokens of the longest sequence; longer ones are left out"
    )
    chosen = parser.parse_args()
    return report.finish(measure(chosen), chosen)


if __name__ == "__main__":
    sys.exit(main())
