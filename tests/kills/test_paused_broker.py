"""A broker that stands still for longer than its session (a busy machine, a stopped container) and then goes on.

It finds itself without partitions for a moment. Kafka 4.3 and 4.4 end transactions then without telling the partitions
(decision 26): what was committed is never seen, and who reads committed records only waits for ever.
"""

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from infra.kafka_server import QUICK_FAILOVER, KafkaServer
from infra.ports import free_port

TOPIC = "state"
PARTITIONS, WRITERS = 60, 6
RUN_S, AFTER_S = 3.0, 1.0
STILL_S = QUICK_FAILOVER["broker.session.timeout.ms"] / 1000 + 1.5
TRANSACTION_MS = 5_000
DEADLINE_S = 60.0

pytestmark = [pytest.mark.servers, pytest.mark.kills, pytest.mark.timeout(240)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[KafkaServer, subprocess.Popen[bytes]]]:
    server = KafkaServer(tmp_path / "kafka", free_port(), free_port(), heap_mb=320)
    process = subprocess.Popen(server.command(print), stdout=subprocess.DEVNULL)
    try:
        yield server, process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def ready(server: KafkaServer) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            admin.list_topics(timeout=2.0)
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
        else:
            return admin


def write(server: KafkaServer, name: str, turns: Iterator[int], stop: threading.Event) -> None:
    """Transactions of one record, each to another partition, so that none ends what an earlier one left open."""
    writer = Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": TRANSACTION_MS,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    writer.init_transactions(DEADLINE_S)
    while not stop.is_set():
        writer.begin_transaction()
        writer.produce(TOPIC, b"x", partition=next(turns) % PARTITIONS)
        try:
            writer.commit_transaction(DEADLINE_S)
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                return
            writer.abort_transaction(DEADLINE_S)


def ends(server: KafkaServer, isolation: IsolationLevel) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})  # a new one: leaders have moved
    wanted = {TopicPartition(TOPIC, number): OffsetSpec.latest() for number in range(PARTITIONS)}
    found = admin.list_offsets(wanted, isolation_level=isolation)
    return {partition.partition: offset.result().offset for partition, offset in found.items()}


def open_transactions(server: KafkaServer) -> dict[int, tuple[int, int]]:
    """By partition: up to where committed records can be read, and its end, where that is further."""
    committed, all_ = ends(server, IsolationLevel.READ_COMMITTED), ends(server, IsolationLevel.READ_UNCOMMITTED)
    return {number: (committed[number], end) for number, end in all_.items() if committed[number] < end}


def test_a_broker_that_stood_still_leaves_no_transaction_open(
    broker: tuple[KafkaServer, "subprocess.Popen[bytes]"],
) -> None:
    server, process = broker
    ready(server)
    stop, turns = threading.Event(), count()
    writers = [threading.Thread(target=write, args=(server, f"writer-{n}", turns, stop)) for n in range(WRITERS)]
    for writer in writers:
        writer.start()
    stop.wait(RUN_S)
    process.send_signal(signal.SIGSTOP)
    stop.wait(STILL_S)
    process.send_signal(signal.SIGCONT)
    stop.wait(AFTER_S)
    stop.set()
    for writer in writers:
        writer.join(DEADLINE_S)
    assert sum(ends(server, IsolationLevel.READ_UNCOMMITTED).values()) > PARTITIONS
    deadline = time.monotonic() + 4 * TRANSACTION_MS / 1000
    while left := open_transactions(server):
        assert time.monotonic() < deadline, f"transactions stay open: {left}"
        time.sleep(0.2)
