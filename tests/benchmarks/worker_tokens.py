"""What the worker alone costs: its token path on a real broker, fed as dispatch feeds it.

    TURNLOG_KAFKA_BOOTSTRAP=… python -m tests.benchmarks.worker_tokens [--streams 250] [--rate 20] [--seconds 10]

Starts one worker with the scripted engine, registers itself as its dispatch, gives it the streams, and reads what it
writes. Reported: tokens a second, records, CPU seconds of the worker per 1,000 tokens, and how late the tokens were
produced against the script's schedule, the earliest of each stream being on time.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from infra.kafka_admin import KafkaAdmin
from infra.provisioning import provision_topics
from infra.settings import ProvisionSettings
from schemas.codec import decode
from schemas.events import GenerationEnded, GenerationRequested, TokensGenerated, WorkerRegistered
from schemas.ids import generation_id
from schemas.topics import TOKENS, WORKERS, inference
from schemas.values import PromptMessage, Sampling
from streams.log.kafka import KafkaLog
from streams.log.log import BEGINNING, END, Reader
from streams.log.steps import Output, Partition, Writer
from tests.benchmarks.processes import costs, spent
from tests.benchmarks.report import Table, ms, percentile, plain

TARGET_CPU_S = 0.07
"""CPU seconds of the worker per 1,000 tokens."""


class Seen(msgspec.Struct):
    """What was read of the worker's output."""

    tokens: int = 0
    records: int = 0
    ended: int = 0
    late_s: list[float] = msgspec.field(default_factory=list)


def main() -> int:
    """Exit code 1 when the target was missed or a stream did not end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=250)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--profile", type=Path, help="write a cProfile of the worker here")
    chosen = parser.parse_args()
    bootstrap = os.environ.get("TURNLOG_KAFKA_BOOTSTRAP")
    if bootstrap is None:
        parser.error("TURNLOG_KAFKA_BOOTSTRAP names no broker")
    namespace = f"bench-worker-{uuid.uuid4().hex[:8]}"
    with provisioned(bootstrap, namespace), tempfile.TemporaryDirectory() as folder:
        log = KafkaLog(bootstrap, namespace, "bench-worker")
        return measure(chosen, log, bootstrap, namespace, Path(folder))


@contextlib.contextmanager
def provisioned(bootstrap: str, namespace: str) -> Iterator[None]:
    """The topics of a namespace, for a while."""
    settings = ProvisionSettings(kafka_bootstrap=bootstrap, namespace=namespace)
    provision_topics(settings)
    try:
        yield
    finally:
        admin = KafkaAdmin(bootstrap)
        admin.delete([name for name in admin.topics() if name.startswith(f"{namespace}.")])


def measure(chosen: argparse.Namespace, log: KafkaLog, bootstrap: str, namespace: str, folder: Path) -> int:
    """One run."""
    tokens = log.reader([Partition(TOKENS.name, n) for n in range(log.partitions(TOKENS.name))], END)
    workers = log.reader([Partition(WORKERS.name, n) for n in range(log.partitions(WORKERS.name))], BEGINNING)
    writer = log.writer("bench")
    environment = os.environ | {
        "TURNLOG_KAFKA_BOOTSTRAP": bootstrap,
        "TURNLOG_NAMESPACE": namespace,
        "TURNLOG_ENGINE": "scripted",
        "TURNLOG_LOG_LEVEL": "WARNING",
    }
    run = ["-m", "inference_workers"]
    if chosen.profile is not None:
        run = ["-m", "cProfile", "-o", str(chosen.profile), *run]
    worker = subprocess.Popen([sys.executable, *run], env=environment, cwd=folder)
    try:
        epoch = registered(workers)
        seen, cpu_s, elapsed_s = traffic(chosen, tokens, writer, epoch, worker.pid)
    finally:
        worker.terminate()
        worker.wait(30)
    per_thousand = cpu_s / max(1, seen.tokens) * 1000
    table = Table(
        f"the worker alone: {chosen.streams} streams at {chosen.rate:g} tokens/s",
        ("what", "measured"),
        (
            ("tokens a second", f"{seen.tokens / elapsed_s:,.0f}"),
            ("pieces a second", f"{seen.records / elapsed_s:,.0f}"),
            ("CPU seconds per 1,000 tokens", f"{per_thousand:.4f} (target {TARGET_CPU_S})"),
            ("late against the schedule, p50", ms(statistics.median(seen.late_s))),
            ("late against the schedule, p99", ms(percentile(seen.late_s, 0.99))),
            ("streams ended", f"{seen.ended} of {chosen.streams}"),
        ),
    )
    print(plain(table))
    return 0 if seen.ended == chosen.streams and per_thousand <= TARGET_CPU_S else 1


def registered(workers: Reader) -> int:
    """The epoch of the worker, once it has registered."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for record in workers.poll(0.5):
            if isinstance(decode(record.value, record.headers).event, WorkerRegistered):
                return record.offset
    raise TimeoutError("the worker did not register within 30 s")


def traffic(
    chosen: argparse.Namespace, tokens: Reader, writer: Writer, epoch: int, pid: int
) -> tuple[Seen, float, float]:
    """Give it all streams, spread over one interval, and read until each has ended."""
    count = int(chosen.rate * chosen.seconds)
    every_ms = 1000 / chosen.rate
    due: dict[str, list[float]] = {}
    before = costs({"worker": pid})
    began = time.time()
    for n in range(chosen.streams):
        time.sleep(max(0.0, began + n * every_ms / 1000 / chosen.streams - time.time()))
        script = {"chunks": count, "every_ms": every_ms, "first_after_ms": every_ms}
        event = request(f"rep_{n}", epoch, json.dumps(script))
        writer.append(Output(event=event, topic=inference("default", "paid").name, partition=0))
    seen = Seen()
    position: dict[str, int] = {}
    deadline = time.monotonic() + chosen.seconds + 30
    while seen.ended < chosen.streams and time.monotonic() < deadline:
        for record in tokens.poll(0.2):
            event = decode(record.value, record.headers).event
            if isinstance(event, TokensGenerated):
                at = position.get(event.reply_id, 0) + event.tokens
                position[event.reply_id] = at
                due.setdefault(event.reply_id, []).append((record.timestamp_ms - at * every_ms) / 1000)
                seen.tokens += event.tokens
                seen.records += 1
            elif isinstance(event, GenerationEnded):
                seen.ended += 1
    elapsed_s = time.time() - began
    seen.late_s = [shift - min(shifts) for shifts in due.values() for shift in shifts]
    return seen, spent(before, costs({"worker": pid}))["worker"], elapsed_s


def request(reply_id: str, epoch: int, script: str) -> GenerationRequested:
    """What dispatch would write."""
    now_ms = time.time_ns() // 1_000_000
    return GenerationRequested(
        pool="default",
        priority="paid",
        epoch=epoch,
        reply_id=reply_id,
        conversation_id=f"conv-{reply_id}",
        account_id="bench",
        generation_id=generation_id(),
        attempt=1,
        model="smollm2-135m-instruct",
        prompt=(PromptMessage(role="user", content=script),),
        sampling=Sampling(max_output_tokens=100_000),
        submitted_at_ms=now_ms,
        deadline_at_ms=now_ms + 600_000,
    )


if __name__ == "__main__":
    sys.exit(main())
