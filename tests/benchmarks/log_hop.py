"""What a hop through the log takes, and what a stage of the transactional loop takes.

    TURNLOG_KAFKA_BOOTSTRAP=… python -m tests.benchmarks.log_hop [--seconds 4] [--partitions 8] [--rates 10,100,200]

A hop: from `append` until the record is in the hands of a loop's step in another process. A stage: from `append` of
a record until what a transactional loop in another process made of it (an output, a state record, the offset, in one
transaction) is in the hands of a reader of committed records. Two stages: with a second such loop behind the first.
Load is Poisson; the first topic's keys are many, as those of conversations; outputs have one key, as those of a pool.
"""

import argparse
import multiprocessing
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from threading import Event as Flag

import psutil

from infra.kafka_admin import KafkaAdmin
from schemas.codec import decode
from schemas.events import ConversationRenamed, Event
from streams.log.kafka import KafkaLog
from streams.log.log import END
from streams.log.loop import run as run_plain
from streams.log.process import stop_on_signals
from streams.log.steps import NOTHING, Arrived, Decision, Output, Partition, Record, StateRecord, Writer
from streams.log.transactions import TransactionalSettings
from streams.log.transactions import run as run_transactional
from tests.benchmarks.report import Table, ms, percentile, plain

TOPICS = ("messages", "requests", "tokens", "usage", "conversations", "pools")


class Forward:
    """A stage: one output and one state record for each record."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def restore(self, number: int, records: Iterable[Record], now_ms: int, flow_ms: int) -> None:
        pass

    def decide(self, number: int, batch: Sequence[Arrived], now_ms: int, flow_ms: int) -> Decision:
        if not batch:
            return NOTHING
        return Decision(
            outputs=tuple(Output(event=arrived.envelope.event, topic=self._topic, key="pool") for arrived in batch),
            states=tuple(StateRecord(key=arrived.record.key or "", value=b"x" * 200) for arrived in batch),
        )

    def committed(self, number: int, decision: Decision) -> None:
        pass

    def written(self, number: int, decision: Decision) -> None:
        pass

    def revoked(self, number: int) -> None:
        pass


class Copy:
    """A plain step that writes each record on, and so shows when it had it."""

    def __init__(self, delays: "multiprocessing.Queue[float]") -> None:
        self._delays = delays

    def assigned(self, starts: Mapping[Partition, int]) -> None:
        pass

    def revoked(self, partitions: Iterable[Partition]) -> None:
        pass

    def submit(self, batch: Sequence[Arrived], now_ms: int) -> None:
        now = time.time()
        for arrived in batch:
            self._delays.put(now - sent_at(arrived.envelope.event))

    def poll(self, now_ms: int) -> None:
        pass

    def settled(self) -> Mapping[Partition, int]:
        return {}

    def drain(self, deadline_s: float) -> None:
        pass


def sent_at(event: Event) -> float:
    """When a record of this benchmark was appended."""
    return float(event.title) if isinstance(event, ConversationRenamed) else float("nan")


def stage(
    bootstrap: str, namespace: str, source: str, state: str, target: str, ready: "multiprocessing.Queue[str]"
) -> None:
    """A process with one transactional stage."""
    told = Flag()

    def turned(loop: object) -> None:
        if not told.is_set() and len(loop.numbers()):  # type: ignore[attr-defined]
            told.set()
            ready.put(source)

    log = KafkaLog(bootstrap, namespace, f"stage-{source}")
    run_transactional(
        log,
        Forward(target),
        topics=[source],
        state_topic=state,
        group=f"stage-{source}",
        stop=stop_on_signals(),
        settings=TransactionalSettings(),
        on_turn=turned,
    )


def hop(
    bootstrap: str, namespace: str, ready: "multiprocessing.Queue[str]", delays: "multiprocessing.Queue[float]"
) -> None:
    """A process with one plain loop."""
    told = Flag()

    def turned(loop: object) -> None:
        if not told.is_set() and loop.positions():  # type: ignore[attr-defined]
            told.set()
            ready.put("hop")

    log = KafkaLog(bootstrap, namespace, "hop")
    run_plain(log, Copy(delays), topics=["usage"], group="hop", stop=stop_on_signals(), on_turn=turned)


def drive(writer: Writer, topic: str, rate: float, seconds: float) -> int:
    """Append records at a rate; how many."""
    until = next_at = time.time()
    until += seconds
    count = 0
    while next_at < until:
        time.sleep(max(next_at - time.time(), 0))
        event = ConversationRenamed(
            conversation_id=f"c{random.randrange(10_000)}",
            account_id="a",
            title=repr(time.time()),
            renamed_at_ms=0,
            request_id=str(count),
        )
        writer.append(Output(event=event, topic=topic))
        count += 1
        next_at += random.expovariate(rate)
    writer.flush(20)
    return count


def through(
    log: KafkaLog, writer: Writer, source: str, target: str, partitions: int, rate: float, seconds: float
) -> list[float]:
    """Delays from `source` to a reader of `target`."""
    reader = log.reader([Partition(target, number) for number in range(partitions)], END)
    sent: list[int] = []
    thread = threading.Thread(target=lambda: sent.append(drive(writer, source, rate, seconds)))
    thread.start()
    delays: list[float] = []
    deadline = time.monotonic() + seconds + 20
    while (not sent or len(delays) < sent[0]) and time.monotonic() < deadline:
        records = reader.poll(0.2)
        now = time.time()
        delays += [now - sent_at(decode(record.value, record.headers).event) for record in records]
    thread.join()
    reader.close()
    return delays


def main() -> int:
    """Run it and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--partitions", type=int, default=8)
    options.add_argument("--rates", default="10,100,200")
    given = options.parse_args()
    bootstrap = os.environ["TURNLOG_KAFKA_BOOTSTRAP"]
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    admin = KafkaAdmin(bootstrap)
    names = [f"{namespace}.{topic}" for topic in TOPICS]
    admin.create_all([(name, given.partitions, {}) for name in names], 1)
    admin.await_leaders(frozenset(names))
    ready: multiprocessing.Queue[str] = multiprocessing.Queue()
    delays: multiprocessing.Queue[float] = multiprocessing.Queue()
    spawn = multiprocessing.get_context("fork")
    processes = [
        spawn.Process(target=stage, args=(bootstrap, namespace, "messages", "conversations", "requests", ready)),
        spawn.Process(target=stage, args=(bootstrap, namespace, "requests", "pools", "tokens", ready)),
        spawn.Process(target=hop, args=(bootstrap, namespace, ready, delays)),
    ]
    for process in processes:
        process.start()
    for _ in processes:
        ready.get(timeout=60)
    log = KafkaLog(bootstrap, namespace, "bench")
    writer = log.writer("bench")
    # Fetches, producer ids and code are warm after this.
    drive(writer, "usage", 50, 2)
    drive(writer, "messages", 50, 2)
    time.sleep(1)
    while not delays.empty():
        delays.get()
    rows = []
    for rate in map(float, given.rates.split(",")):
        count = drive(writer, "usage", rate, given.seconds)
        rows.append(_row("hop", rate, [delays.get(timeout=20) for _ in range(count)], 0.0))
        for name, target, of in (("stage", "requests", processes[:1]), ("two stages", "tokens", processes[:2])):
            before = _cpu(of)
            found = through(log, writer, "messages", target, given.partitions, rate, given.seconds)
            rows.append(_row(name, rate, found, _cpu(of) - before))
    print(plain(Table("The log", ("what", "rate", "records", "p50", "p99", "max", "CPU ms a record"), tuple(rows))))
    for process in processes:
        process.terminate()
        process.join(20)
    log.close()
    admin.delete(names)
    return 0


def _cpu(processes: Sequence[multiprocessing.Process]) -> float:
    times = [psutil.Process(process.pid).cpu_times() for process in processes]
    return sum(time.user + time.system for time in times)


def _row(name: str, rate: float, delays: list[float], cpu_s: float) -> tuple[str, ...]:
    count = len(delays)
    return (
        name,
        f"{rate:.0f}/s",
        str(count),
        ms(percentile(delays, 0.5)),
        ms(percentile(delays, 0.99)),
        ms(max(delays, default=float("nan"))),
        f"{cpu_s / max(count, 1) * 1000:.1f}" if cpu_s else "",
    )


if __name__ == "__main__":
    sys.exit(main())
