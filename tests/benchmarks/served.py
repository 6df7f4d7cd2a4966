"""Requests that arrive at a rate, through the model of a GPU server in virtual time: one run, and the highest rate that
keeps a latency. As in Orca (Yu et al., OSDI 2022) and vLLM (Kwon et al., SOSP 2023) the latency is normalised: a
request's seconds from its arrival to its last token, over its output tokens.
"""

import math
import statistics
import sys
from collections.abc import Callable

import msgspec

from inference_workers.engines.kv_blocks import Chain, Run, chain
from inference_workers.engines.sequences import Sequence
from inference_workers.engines.simulation import Batch, SimulatedSettings
from tests.benchmarks import traffic
from tests.benchmarks.traffic import Arrival

LIMIT_S = 0.1
"""Seconds a token, on average over the requests: the latency at which servers are compared."""


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
