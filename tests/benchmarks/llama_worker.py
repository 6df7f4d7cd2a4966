"""What the worker costs on the real model: llama.cpp through the worker, beside llama.cpp called directly.

- bare: the library's chat completions from one thread a stream, with the library's own batches and slots, callbacks
  that only count;
- worker: the same model, threads and prompts through the whole worker on the log in memory, its output read back.

Both in this process, in turns, so that they see the same machine. Each stream asks its next prompt when the one before
is answered, and no prompt finds its beginning in a cache. Then, on the engine, how long a cancel takes until the slot
is free (`tests.benchmarks.llama_cancels`).
"""

import asyncio
import logging
import secrets
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvloop

from inference_workers.engines.llama_cpp import LlamaCppEngine
from inference_workers.engines.llama_cpp_settings import LlamaCppSettings
from inference_workers.engines.llama_server import SYSTEM_PROMPT, LlamaSettings, find_model
from inference_workers.policy import Policy
from inference_workers.worker import Worker
from schemas.codec import decode
from schemas.events import GenerationEnded, GenerationRequested, TokensGenerated, WorkerRegistered
from schemas.ids import generation_id
from schemas.topics import TOKENS, WORKERS, inference
from schemas.values import PromptMessage, Sampling
from streams.log.log import BEGINNING, END, Log, Reader
from streams.log.memory import MemoryLog
from streams.log.steps import Output, Partition, Writer
from tests.benchmarks import report
from tests.benchmarks.llama_cancels import ASKED, NAMES, cancels

STREAMS = 8
PROMPTS_EACH = 2
TOKENS_EACH = 128
CONTEXT = 1024
RATIO = 0.9
CANCEL_S = 0.25
MODEL = "smollm2-135m-instruct"


Asked = list[tuple[str, int]]
"""Prompts of one stream, each with a seed."""


def prompts() -> list[Asked]:
    """New ones for each stream."""
    return [
        [(ASKED.format(secrets.randbelow(10**9)), secrets.randbelow(2**31)) for _ in range(PROMPTS_EACH)]
        for _ in range(STREAMS)
    ]


def bare_server(settings: LlamaSettings) -> Any:
    """The library with what a caller has to say, and its own defaults."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(settings.model_path)
    params.n_parallel = settings.slots
    params.n_ctx = settings.slots * settings.context_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.threads
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_Q8_0
    params.cache_ram_mib = 0
    params.hostnames = ["127.0.0.1"]
    params.api_keys = [secrets.token_hex(32)]
    params.n_threads_http = 1
    params.ui = False
    params.verbosity = 0
    return xllamacpp.Server(params)


class Rate(msgspec.Struct, frozen=True):
    """What a run of one of the two gave."""

    tokens_s: float
    cpu_ms: float
    """Of this process, for each token: model, worker and the reading of its log."""


class Meter:
    """Wall and CPU time from its making on."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    def rate(self, tokens: int) -> Rate:
        """Of this many tokens."""
        wall_s, cpu_s = time.perf_counter() - self._wall_s, time.process_time() - self._cpu_s
        return Rate(tokens / wall_s, 1000 * cpu_s / tokens)


async def bare(server: Any, threads: ThreadPoolExecutor, streams: list[Asked]) -> Rate:
    """The prompts in the library."""

    def one(content: str, seed: int) -> int:
        generated = 0

        def count(chunk: dict[str, Any]) -> bool:
            nonlocal generated
            if (usage := chunk.get("usage")) is not None:
                generated = usage["completion_tokens"]
            return False

        system = {"role": "system", "content": SYSTEM_PROMPT}
        messages = [system, {"role": "user", "content": content}]
        body = {"messages": messages, "max_tokens": TOKENS_EACH, "temperature": 1.0, "top_p": 1.0, "seed": seed}
        body["cache_prompt"] = False  # as the worker has it, where every prompt is another account's
        server.handle_chat_completions(body | {"stream": True, "stream_options": {"include_usage": True}}, count)
        return generated

    loop = asyncio.get_running_loop()
    meter = Meter()

    def stream(asked: Asked) -> int:
        return sum(one(*each) for each in asked)

    return meter.rate(sum(await asyncio.gather(*(loop.run_in_executor(threads, stream, each) for each in streams))))


class Fed(msgspec.Struct):
    """A worker that runs on a log, and the log's other end."""

    log: Log
    writer: Writer
    epoch: int

    async def rate(self, streams: list[Asked]) -> Rate:
        """From the first request to the last end in the log."""
        reader = self.log.reader([Partition(TOKENS.name, n) for n in range(self.log.partitions(TOKENS.name))], END)
        return await asyncio.to_thread(self._through, reader, [list(asked) for asked in streams])

    def _through(self, reader: Reader, left: list[Asked]) -> Rate:
        meter, tokens = Meter(), 0
        waiting = {self._ask(asked): asked for asked in left}
        while waiting:
            for record in reader.poll(0.2):
                event = decode(record.value, record.headers).event
                if isinstance(event, TokensGenerated):
                    tokens += event.tokens
                elif isinstance(event, GenerationEnded) and (asked := waiting.pop(event.reply_id)):
                    waiting[self._ask(asked)] = asked
        return meter.rate(tokens)

    def _ask(self, asked: Asked) -> str:
        """The stream's next prompt; the reply's id."""
        event = request(self.epoch, *asked.pop())
        self.writer.append(Output(event=event, topic=inference("default", "paid").name, partition=0))
        return event.reply_id


def request(epoch: int, content: str, seed: int) -> GenerationRequested:
    """What dispatch would write, for an account of its own."""
    now_ms = time.time_ns() // 1_000_000
    generation = generation_id()
    return GenerationRequested(
        pool="default",
        priority="paid",
        epoch=epoch,
        reply_id=f"rep-{generation}",
        conversation_id=f"conv-{generation}",
        account_id=f"acc-{generation}",
        generation_id=generation,
        attempt=1,
        model=MODEL,
        prompt=(PromptMessage(role="user", content=content),),
        sampling=Sampling(max_output_tokens=TOKENS_EACH, seed=seed),
        submitted_at_ms=now_ms,
        deadline_at_ms=now_ms + 600_000,
    )


@asynccontextmanager
async def working(engine: LlamaCppEngine) -> AsyncIterator[Fed]:
    """A worker with this engine, for a while."""
    log, stop = MemoryLog(), threading.Event()
    workers = log.reader([Partition(WORKERS.name, n) for n in range(log.partitions(WORKERS.name))], BEGINNING)
    worker = Worker(log=log, engine=engine, pool="default", inbox=0, instance="bench", policy=Policy())
    task = asyncio.ensure_future(worker.run(stop))

    def registered() -> int:
        while True:
            for record in workers.poll(0.2):
                if isinstance(decode(record.value, record.headers).event, WorkerRegistered):
                    return record.offset

    async with asyncio.timeout(30):
        epoch = await asyncio.to_thread(registered)
    try:
        yield Fed(log, log.writer("bench"), epoch)
    finally:
        stop.set()
        await task


async def measure(repetitions: int, rounds: int, model: Path, batch_tokens: int) -> report.Result:
    """Both in turns, then the cancels."""
    settings = LlamaSettings(
        model=MODEL,
        model_path=model,
        slots=STREAMS,
        context_tokens=CONTEXT,
        threads=LlamaCppSettings().threads(),
        batch_tokens=batch_tokens,
    )
    engine = LlamaCppEngine(settings)
    await engine.start()
    server = await asyncio.to_thread(bare_server, settings)
    threads = ThreadPoolExecutor(STREAMS)
    rates: list[tuple[Rate, Rate]] = []
    async with working(engine) as fed:
        for number in range(repetitions + 1):
            streams = prompts()
            turns = [bare(server, threads, streams), fed.rate(streams)]
            order = (0, 1) if number % 2 else (1, 0)
            done = {which: await turns[which] for which in order}
            if number:
                rates.append((done[0], done[1]))
    found = await cancels(engine, rounds)
    threads.shutdown()
    del server
    await engine.shutdown(0.0)
    return _result(rates, found, settings)


def _result(rates: list[tuple[Rate, Rate]], found: dict[str, list[float]], settings: LlamaSettings) -> report.Result:
    ratios = sorted(ours.tokens_s / theirs.tokens_s for theirs, ours in rates)
    costs = sorted(ours.cpu_ms / theirs.cpu_ms for theirs, ours in rates)
    ratio, cost = statistics.median(ratios), statistics.median(costs)
    alone, through = ([pair[which] for pair in rates] for which in (0, 1))
    rows = tuple(
        (name, f"{statistics.median(r.tokens_s for r in of):.1f}", f"{statistics.median(r.cpu_ms for r in of):.2f} ms")
        for name, of in (("bare library", alone), ("worker", through))
    )
    both = (f"{middle:.2f} ({all_[0]:.2f} to {all_[-1]:.2f})" for middle, all_ in ((ratio, ratios), (cost, costs)))
    times = tuple((NAMES[key], report.ms(statistics.median(of)), report.ms(max(of))) for key, of in found.items())
    tables = [
        report.Table(
            f"{STREAMS} streams, medians",
            ("", "tokens a second", "CPU for each token, prompts included"),
            (*rows, ("worker to bare library, of the pairs", *both)),
        ),
        report.Table("From a cancel to the free slot", ("", "median", "longest"), times),
    ]
    quiet = [seconds for key in ("prompt", "line", "decode") for seconds in found[key]]
    figures = {"ratio": ratio, "cpu_ratio": cost, "cancel_max_ms": max(quiet) * 1000}
    reached = {
        f"at least {RATIO} of the bare library's tokens a second": ratio >= RATIO,
        "a cancel frees the slot in 250 ms when nothing else runs": max(quiet) <= CANCEL_S,
    }
    how = f"""{len(rates)} pairs of runs, {STREAMS} streams of {PROMPTS_EACH} new prompts, up to {TOKENS_EACH}
        tokens each, temperature 1, equal seeds, {settings.threads} thread(s) for llama.cpp; {len(found["prompt"])}
        cancels of each kind."""
    return report.result("llama_worker", how, tables, figures, reached)


def main() -> int:
    """Run it; exit code 1 when a target is missed."""
    parser = report.options(__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--cancels", type=int, default=10)
    parser.add_argument("--batch-tokens", type=int, default=LlamaCppSettings().llama_batch_tokens)
    chosen = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    made = uvloop.run(measure(chosen.repetitions, chosen.cancels, find_model(), chosen.batch_tokens))
    return report.finish(made, chosen)


if __name__ == "__main__":
    sys.exit(main())
