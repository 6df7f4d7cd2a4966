"""The worker as a process, on a real broker: registered, generating, crashing, drained."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deployment import Deployment

from inference_workers import __main__ as worker_main
from schemas.codec import decode
from schemas.events import (
    CancellationRequested,
    Event,
    GenerationEnded,
    GenerationFinished,
    GenerationRequested,
    GenerationStarted,
    TokensGenerated,
    WorkerRegistered,
    WorkerReleased,
)
from schemas.topics import inference
from schemas.values import PromptMessage, Sampling
from streams.log.kafka import KafkaLog
from streams.log.log import END
from streams.log.process import Process
from streams.log.status import StatusFile
from streams.log.steps import Output, Partition

pytestmark = pytest.mark.servers

WITHIN_S = 60


class Running:
    """A worker process, and what the log holds of it."""

    def __init__(self, deployment: Deployment, folder: Path, **settings: str) -> None:
        self.status = folder / "status.json"
        environment = {**os.environ, **deployment.environment(), "TURNLOG_STATUS_FILE": str(self.status), **settings}
        self.log = KafkaLog(deployment.kafka_bootstrap, deployment.namespace, "test-worker")
        self.writer = self.log.writer("test")
        names = ("tokens", "workers")
        partitions = [Partition(name, n) for name in names for n in range(self.log.partitions(name))]
        self.reader = self.log.reader(partitions, END)
        self.process = subprocess.Popen([sys.executable, "-m", "inference_workers"], env=environment)
        self.events: list[Event] = []
        self.epoch = -1
        self.until(lambda: self.epoch >= 0)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < deadline, [type(event).__name__ for event in self.events]
            for record in self.reader.poll(0.1):
                event = decode(record.value, record.headers).event
                self.events.append(event)
                if isinstance(event, WorkerRegistered):
                    self.epoch = record.offset

    def count(self, cls: type[Event], reply_id: str | None = None) -> int:
        return sum(
            isinstance(event, cls) and reply_id in (None, getattr(event, "reply_id", None)) for event in self.events
        )

    def end(self, reply_id: str) -> GenerationEnded:
        self.until(lambda: self.count(GenerationFinished, reply_id) > 0)
        return next(e for e in self.events if isinstance(e, GenerationEnded) and e.reply_id == reply_id)

    def text(self, reply_id: str) -> str:
        return "".join(e.text for e in self.events if isinstance(e, TokensGenerated) and e.reply_id == reply_id)

    def ask(self, reply_id: str, content: str, max_tokens: int = 1000) -> None:
        now_ms = time.time_ns() // 1_000_000
        event = GenerationRequested(
            pool="default",
            priority="paid",
            epoch=self.epoch,
            reply_id=reply_id,
            conversation_id="c",
            account_id="a",
            generation_id=f"{reply_id}-g",
            attempt=1,
            model="smollm2-135m-instruct",
            prompt=(PromptMessage(role="user", content=content),),
            sampling=Sampling(max_output_tokens=max_tokens, seed=1),
            submitted_at_ms=now_ms,
            deadline_at_ms=now_ms + 600_000,
        )
        self.writer.append(Output(event=event, topic=inference("default", "paid").name, partition=0)).result(10)

    def cancel(self, reply_id: str) -> None:
        event = CancellationRequested(conversation_id="c", reply_id=reply_id, account_id="a", requested_at_ms=0)
        self.writer.append(Output(event=event)).result(10)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self.reader.close()
        self.writer.close()
        self.log.close()


@pytest.fixture
def start(provisioned: Deployment, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def begin(**settings: str) -> Running:
        made.append(Running(provisioned, tmp_path, **settings))
        return made[-1]

    yield begin
    for running in made:
        running.close()


def test_it_generates_crashes_as_told_and_drains(start: Callable[..., Running]) -> None:
    worker = start(TURNLOG_ENGINE="scripted")
    worker.ask("r", json.dumps({"text": "Grüße 🎉", "split_utf8": True}))
    assert worker.end("r").status == "completed"
    assert worker.text("r") == "Grüße 🎉"
    assert json.loads(worker.status.read_text())["state"] == "ready"

    worker.ask("last", json.dumps({"chunks": 50, "every_ms": 20}))
    worker.until(lambda: worker.count(TokensGenerated, "last") > 0)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end("last").status == "completed"
    worker.until(lambda: worker.count(WorkerReleased) == 1)
    assert worker.process.wait(WITHIN_S) == 0

    crashing = start(TURNLOG_ENGINE="scripted")
    crashing.ask("crash", json.dumps({"chunks": 50, "every_ms": 20, "crash_at": 10}))
    assert crashing.process.wait(WITHIN_S) == -signal.SIGKILL


def test_the_local_model_answers_and_a_cancel_in_prefill_leaves_the_next_one_unharmed(
    start: Callable[..., Running],
) -> None:
    worker = start(TURNLOG_ENGINE="llama_cpp", TURNLOG_SLOTS="1", TURNLOG_CONTEXT_TOKENS="2048")
    worker.ask("long", "hello world " * 400)
    worker.until(lambda: worker.count(GenerationStarted, "long") > 0)
    worker.cancel("long")
    assert worker.end("long").status == "cancelled"
    worker.ask("short", "Count to three.", max_tokens=5)
    end = worker.end("short")
    assert end.status in ("completed", "length")
    assert end.usage is not None
    assert 0 < end.usage.output_tokens <= 5
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(WITHIN_S) == 0


def test_a_model_file_that_is_not_there_is_one_clear_sentence(provisioned: Deployment, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        **provisioned.environment(),
        "TURNLOG_ENGINE": "llama_cpp",
        "TURNLOG_LLAMA_MODEL_PATH": str(tmp_path / "none.gguf"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "inference_workers"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 2
    assert "worker: TURNLOG_LLAMA_MODEL_PATH: there is no model file at" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_ordinal_without_an_inbox_is_refused_before_the_model_is_loaded(provisioned: Deployment) -> None:
    environment = {**os.environ, **provisioned.environment(), "TURNLOG_REPLICA": "900", "TURNLOG_ENGINE": "llama_cpp"}
    done = subprocess.run(
        [sys.executable, "-m", "inference_workers"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 1
    assert "TURNLOG_REPLICA is 900, and the pool default has 16 inboxes" in done.stdout + done.stderr


def test_a_worker_that_loads_for_long_says_so_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_main, "STARTING_EVERY_S", 0.01)
    status = tmp_path / "status.json"
    process = Process("worker", StatusFile(status), threading.Event())
    with worker_main.starting(process, "loading"):
        first = json.loads(status.read_text())["at_ms"]
        deadline = time.monotonic() + WITHIN_S
        while json.loads(status.read_text())["at_ms"] == first:
            assert time.monotonic() < deadline
    assert json.loads(status.read_text())["state"] == "starting"
