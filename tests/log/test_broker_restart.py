"""The loops while their broker is killed and comes back."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from log.places import OnKafka, renamed
from log.test_loop import Collect
from log.test_transactions import Numbering, assert_numbered

from streams.log.log import BEGINNING
from streams.log.loop import LoopSettings
from streams.log.loop import run as run_plain
from streams.log.steps import Arrived, NotAppended, Output, Partition
from streams.log.transactions import TransactionalLoop, TransactionalSettings
from streams.log.transactions import run as run_transactional

pytestmark = [pytest.mark.kills, pytest.mark.servers, pytest.mark.timeout(300)]

REPOSITORY = Path(__file__).resolve().parents[2]


class Broker:
    """A Kafka of this test's own."""

    def __init__(self, data: Path) -> None:
        self._data = data
        environment = {name: value for name, value in os.environ.items() if name != "TURNLOG_KAFKA_BOOTSTRAP"}
        options = ["--servers-only", "--detach", "--json"]
        done = self._turnlog("up", *options, environment=environment)
        ready = json.loads(done.splitlines()[-1])
        assert ready["event"] == "ready", ready
        self.bootstrap = ready["environment"]["TURNLOG_KAFKA_BOOTSTRAP"]

    def kill(self) -> None:
        os.kill(self._pid(), signal.SIGKILL)

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """It answers nothing meanwhile."""
        pid = self._pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        self._turnlog("down")

    def _pid(self) -> int:
        status = json.loads(self._turnlog("status", "--json"))
        (pid,) = [part["pid"] for part in status["parts"] if part["name"] == "kafka"]
        return int(pid)

    def _turnlog(self, command: str, *options: str, environment: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "infra", command, "--data", str(self._data), *options],
            cwd=REPOSITORY,
            env=environment or dict(os.environ),
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
        )
        return done.stdout


class Counted(Collect):
    """A set that only grows, for another thread to look at."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: set[int] = set()

    def submit(self, batch: Sequence[Arrived], now_ms: int) -> None:
        super().submit(batch, now_ms)
        self.counted.update(int(arrived.envelope.event.title) for arrived in batch)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("broker"))
    yield made
    made.close()


def test_nothing_acknowledged_is_lost_or_doubled_and_the_flow_clock_stands(broker: Broker) -> None:
    place = OnKafka(broker.bootstrap)
    numbered, collected, stop = Numbering(), Counted(), threading.Event()
    flows: list[tuple[float, int]] = []
    ended: list[BaseException] = []

    def watch(loop: TransactionalLoop) -> None:
        flows.append((time.monotonic(), loop.flow_ms))

    def numbering() -> None:
        try:
            run_transactional(
                place.another(),
                numbered,
                topics=["messages", "cancellations"],
                state_topic="conversations",
                group="n",
                stop=stop,
                settings=TransactionalSettings(),
                on_turn=watch,
            )
        except BaseException as error:
            ended.append(error)
            raise

    def collecting() -> None:
        run_plain(place.another(), collected, topics=["messages"], group="c", stop=stop, settings=LoopSettings())

    threads = [threading.Thread(target=numbering, daemon=True), threading.Thread(target=collecting, daemon=True)]
    for thread in threads:
        thread.start()
    writer = place.log.writer("test", delivery_timeout_s=90)
    appended = []
    begun = time.monotonic()
    killed_at = 0.0
    pause = threading.Event()
    while time.monotonic() < begun + 10:
        if not killed_at and time.monotonic() > begun + 3:
            broker.kill()
            killed_at = time.monotonic()
        appended.append(writer.append(Output(event=renamed(len(appended), f"c{len(appended) % 5}"))))
        pause.wait(0.02)
    writer.flush(120)
    back_at = time.monotonic()
    deadline = back_at + 40
    while len(place.records("requests")) < len(appended) or len(collected.counted) < len(appended):
        assert time.monotonic() < deadline, "the loops did not go on"
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not ended
    assert len(appended) > 100
    assert all(one.done() for one in appended)
    assert_numbered(place, len(appended))
    assert collected.counted == set(range(len(appended)))
    lost_s = sum(
        (then - now) - (later - flow) / 1000
        for (now, flow), (then, later) in itertools.pairwise(flows)
        if now >= killed_at
    )
    # All of the outage but the two seconds until it is noticed, and the settle time after it, are not in the clock.
    assert lost_s > (back_at - killed_at) - 3, (lost_s, back_at - killed_at)
    place.log.close()


def test_a_writer_that_gives_up_says_so(broker: Broker) -> None:
    place = OnKafka(broker.bootstrap)
    writer = place.log.writer("test", delivery_timeout_s=5)
    writer.append(Output(event=renamed(0))).result(30)
    with broker.silent():
        appended = [writer.append(Output(event=renamed(number))) for number in range(10)]
        with pytest.raises(NotAppended):
            appended[-1].result(20)
        with pytest.raises(NotAppended):
            writer.flush(10)
    place.log.close()


def test_ends_are_known_again_after_the_broker_came_back(broker: Broker) -> None:
    """A client keeps the leader's epoch from before; only a fresh one learns the new one."""
    place = OnKafka(broker.bootstrap)
    writer = place.log.writer("test", delivery_timeout_s=90)
    partitions = [Partition("messages", number) for number in range(place.log.partitions("messages"))]
    reader = place.log.reader(partitions, BEGINNING)
    for round_ in range(3):
        writer.append(Output(event=renamed(round_))).result(90)
        assert sum(reader.ends().values()) == round_ + 1
        broker.kill()
    writer.append(Output(event=renamed(3))).result(90)
    assert sum(reader.ends().values()) == 4
    reader.close()
    place.log.close()
