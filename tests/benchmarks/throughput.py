"""Tokens end to end: 500 streams at 20 tokens a second, all on one machine, and what each process spends on them.

Counted is what the clients read, in a window in which every stream runs. CPU seconds are those of every process of
the stack, servers included, in the same window; the load generator (this process) is not in the sum and shown apart.
Beside it the pass-through: the same engine behind FastAPI in one process that keeps nothing.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Mapping

import uvloop

from infra.ports import free_port
from tests.benchmarks import processes, report, sse_load
from tests.benchmarks.stack import Stack, passthrough, running

RAMP_S = 3.0
SETTLE_S = 3.0
CPU_TARGET_S = 0.15


class Window:
    """Words that came while it was open."""

    def __init__(self) -> None:
        self.words = 0
        self.open = False

    def add(self, words: int) -> None:
        """So many words were read."""
        if self.open:
            self.words += words


class Load(report.msgspec.Struct, frozen=True, kw_only=True):
    """One run: what was delivered, and CPU seconds per part for 1,000 tokens."""

    tokens_per_s: float
    cpu: dict[str, float]
    generator_cpu: float
    failures: int
    late_p50_s: float
    late_p99_s: float
    first_p50_s: float
    first_p99_s: float
    per_read: float

    @property
    def cpu_sum(self) -> float:
        """CPU seconds of all parts for 1,000 tokens."""
        return sum(self.cpu.values())


async def load(port: int, key: str, roots: Mapping[str, int], streams: int, rate: float, seconds: float) -> Load:
    """Open the streams over `RAMP_S`, let them settle, measure for `seconds`, and let them end."""
    window = Window()
    chunks = int(rate * (RAMP_S + SETTLE_S + seconds + 1))
    script = {"chunks": chunks, "every_ms": 1000 / rate}
    begin = time.perf_counter()
    opened: list[sse_load.Stream] = []
    for number in range(streams):
        await asyncio.sleep(max(0.0, begin + RAMP_S * number / streams - time.perf_counter()))
        request = sse_load.send(port, key, script, max_output_tokens=4000)
        opened.append(await sse_load.opened(port, request, window.add))
    await asyncio.sleep(SETTLE_S)
    before, own, began = processes.costs(roots), time.process_time(), time.perf_counter()
    window.open = True
    await asyncio.sleep(seconds)
    window.open = False
    took, own = time.perf_counter() - began, time.process_time() - own
    spent = processes.spent(before, processes.costs(roots))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*(stream.done for stream in opened)), 60)
    return _load(opened, window.words, took, spent, own, chunks, rate)


def _load(
    opened: list[sse_load.Stream],
    words: int,
    took: float,
    spent: Mapping[str, float],
    own: float,
    chunks: int,
    rate: float,
) -> Load:
    late, firsts, reads = [], [], 0
    failures = sum(stream.words != chunks for stream in opened)
    for stream in opened:
        reads += len(stream.reads)
        if not stream.reads:
            continue
        firsts.append(stream.reads[0][0])
        due = [at - (words_ - 1) / rate for at, words_ in stream.reads]
        earliest = min(due)
        late += [at - earliest for at in due]
    thousands = max(words, 1) / 1000
    return Load(
        tokens_per_s=words / took,
        cpu={name: cpu_s / thousands for name, cpu_s in spent.items()},
        generator_cpu=own / thousands,
        failures=failures,
        late_p50_s=report.percentile(late, 0.5),
        late_p99_s=report.percentile(late, 0.99),
        first_p50_s=report.percentile(firsts, 0.5),
        first_p99_s=report.percentile(firsts, 0.99),
        per_read=sum(stream.words for stream in opened) / max(reads, 1),
    )


async def measure(stack: Stack, streams: int, rate: float, seconds: float) -> report.Result:
    """The pass-through, then the product."""
    port = free_port()
    async with passthrough(port) as pid:
        direct = await load(port, "", {"pass-through": pid}, streams, rate, seconds)
    product = await load(stack.port, stack.api_key, stack.pids(), streams, rate, seconds)
    return _result(direct, product, streams, rate, seconds)


def _result(direct: Load, product: Load, streams: int, rate: float, seconds: float) -> report.Result:
    columns = (
        "",
        "tokens/s",
        "CPU-s per 1,000",
        "first token p50 / p99",
        "jitter p50 / p99",
        "tokens a read",
        "cut short",
    )
    runs = tuple(
        (
            name,
            f"{run.tokens_per_s:,.0f}",
            f"{run.cpu_sum:.3f}",
            f"{report.ms(run.first_p50_s)} / {report.ms(run.first_p99_s)}",
            f"{report.ms(run.late_p50_s)} / {report.ms(run.late_p99_s)}",
            f"{run.per_read:.1f}",
            str(run.failures),
        )
        for name, run in (("pass-through", direct), ("Turnlog", product))
    )
    parts = sorted(product.cpu.items(), key=lambda part: -part[1])
    hops = tuple((name, f"{cpu_s:.4f}", f"{cpu_s / product.cpu_sum:.0%}") for name, cpu_s in parts)
    generator = ("(load generator, not in the sum)", f"{product.generator_cpu:.4f}", "")
    offered = streams * rate
    figures = {
        "tokens_per_s": product.tokens_per_s,
        "cpu_s_per_1000": product.cpu_sum,
        "passthrough_cpu_s_per_1000": direct.cpu_sum,
        "first_p50_ms": product.first_p50_s * 1000,
        "jitter_p99_ms": product.late_p99_s * 1000,
        **{f"cpu_{name}": cpu_s for name, cpu_s in parts},
    }
    reached = {
        f"delivers what is offered ({offered:,.0f} tokens/s, 1 % allowed for the window's edges)": (
            product.tokens_per_s >= 0.99 * offered
        ),
        f"at most {CPU_TARGET_S} CPU-seconds per 1,000 tokens over all processes": product.cpu_sum <= CPU_TARGET_S,
        "no stream is cut short": product.failures == 0,
    }
    how = f"{streams} streams at {rate:g} tokens/s opened within {RAMP_S:g} s, measured for {seconds:g} s."
    tables = [
        report.Table("End to end", columns, runs),
        report.Table("Where the time goes", ("process", "CPU-s per 1,000 tokens", "share"), (*hops, generator)),
    ]
    return report.result("throughput", how, tables, figures, reached)


def main() -> int:
    """Run it; exit code 1 when a target is missed."""
    parser = report.options(__doc__)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens a second of each stream")
    parser.add_argument("--seconds", type=float, default=20.0)
    chosen = parser.parse_args()
    with running() as stack:
        made = uvloop.run(measure(stack, chosen.streams, chosen.rate, chosen.seconds))
        return report.finish(made, chosen)


if __name__ == "__main__":
    sys.exit(main())
