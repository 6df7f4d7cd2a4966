"""The processes as they are started, on real Kafka, Redis and ClickHouse."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from redis import Redis

from projections.clickhouse.client import ClickHouseError, Database
from schemas import events as e
from schemas.examples import EXAMPLES
from streams.log.kafka.log import KafkaLog
from streams.log.steps import Output
from tests.projections.logs import buffered, expected
from tests.projections.test_views_step import replace, usage
from tests.schemas.histories import ended, piece, queued, started

WITHIN_S = 30


def eventually(holds, what):
    """Wait until it holds."""
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until:
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError(f"not within {WITHIN_S} s: {what}")


class Running:
    """A projection's process."""

    def __init__(self, name, environment, folder, replica=0):
        self.status = folder / f"{name}-{replica}.json"
        self._command = [sys.executable, "-m", "projections", name]
        own = {"TURNLOG_STATUS_FILE": str(self.status), "TURNLOG_REPLICA": str(replica)}
        self._environment = {**os.environ, **environment, **own}
        self.start()

    def start(self):
        self.status.unlink(missing_ok=True)
        self.process = subprocess.Popen(self._command, env=self._environment, stdout=subprocess.DEVNULL)

    def state(self):
        try:
            return json.loads(self.status.read_text())["state"]
        except (OSError, ValueError):
            return "none"

    def end(self, number):
        """Send a signal; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(WITHIN_S)


@pytest.mark.parametrize("name", ["buffer", "limits", "views"])
def test_settings_are_checked_without_connecting(name):
    command = [sys.executable, "-m", "projections", name, "--check"]
    good = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (good.returncode, good.stderr) == (0, "")
    bad = subprocess.run(
        command, env={**os.environ, "TURNLOG_NAMESPACE": "No Name"}, capture_output=True, text=True, check=False
    )
    assert bad.returncode == 2
    assert "TURNLOG_NAMESPACE" in bad.stderr


def test_an_unknown_projection_is_a_usage_error():
    done = subprocess.run([sys.executable, "-m", "projections", "x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "usage: python -m projections buffer|limits|meters|views [--check]\n")


@pytest.mark.servers
def test_the_buffer_survives_being_killed_in_the_middle_of_replies(provisioned, tmp_path):
    replies = {}
    for n in range(5):
        pieces = [piece("g", 1, seq, f"{n}.{seq} ", f"r{n}") for seq in range(1, 41)]
        replies[f"r{n}"] = [queued(f"r{n}"), started("g", 1, f"r{n}"), *pieces, ended("g", 1, 41, reply_id=f"r{n}")]
    woven = [event for events in zip(*replies.values(), strict=True) for event in events]
    whole = expected(woven)
    redis = Redis.from_url(provisioned.redis_url)
    running = Running("buffer", provisioned.environment(), tmp_path)
    log = KafkaLog(provisioned.kafka_bootstrap, provisioned.namespace, "test")
    writer = log.writer("test")
    try:
        for at in range(0, len(woven), 43):
            for event in woven[at : at + 43]:
                writer.append(Output(event=event))
            writer.flush(10)
            seen = {reply_id: [] for reply_id in whole} | expected(woven[: at + 43])
            eventually(lambda s=seen: buffered(redis, provisioned.namespace, list(whole)) == s, "frames")
            running.end(signal.SIGKILL)
            running.start()
        eventually(lambda: running.state() == "ready", "ready")
        assert buffered(redis, provisioned.namespace, list(whole)) == whole
        assert running.end(signal.SIGTERM) == 0
    finally:
        running.end(signal.SIGKILL)
        writer.close()
        log.close()


@pytest.mark.servers
def test_partitions_that_move_between_processes_move_no_offset(provisioned, tmp_path):
    replies = {}
    for n in range(12):
        pieces = [piece("g", 1, seq, f"{n}.{seq} ", f"r{n}") for seq in range(1, 38)]
        events = [queued(f"r{n}"), started("g", 1, f"r{n}"), *pieces, ended("g", 1, 38, reply_id=f"r{n}")]
        replies[f"r{n}"] = [replace(event, conversation_id=f"c{n}") for event in events]
    woven = [event for events in zip(*replies.values(), strict=True) for event in events]
    redis = Redis.from_url(provisioned.redis_url)
    one, other = (Running("buffer", provisioned.environment(), tmp_path, replica) for replica in range(2))
    log = KafkaLog(provisioned.kafka_bootstrap, provisioned.namespace, "test")
    writer = log.writer("test")
    moves = (
        lambda: None,
        lambda: one.end(signal.SIGTERM),
        lambda: (one.start(), other.end(signal.SIGKILL)),
        lambda: (other.start(), one.end(signal.SIGKILL)),
        one.start,
    )
    try:
        for number, move in enumerate(moves):
            begin, until = (len(woven) * at // len(moves) for at in (number, number + 1))
            for event in woven[begin:until]:
                writer.append(Output(event=event))
            move()
            writer.flush(10)
            seen = {reply_id: [] for reply_id in replies} | expected(woven[:until])
            eventually(lambda s=seen: buffered(redis, provisioned.namespace, list(replies)) == s, f"move {number}")
        again = [writer.append(Output(event=events[0])) for events in replies.values()]
        assert len({one.result(10).partition for one in again}) > 1, "several partitions"
    finally:
        for running in (one, other):
            running.end(signal.SIGKILL)
        writer.close()
        log.close()


@pytest.mark.servers
def test_the_views_survive_being_killed_between_batches(provisioned, tmp_path):
    database = Database(provisioned.clickhouse_url, provisioned.database)
    running = Running("views", provisioned.environment(), tmp_path)
    log = KafkaLog(provisioned.kafka_bootstrap, provisioned.namespace, "test")
    writer = log.writer("test")

    def records():
        try:
            return database.query("SELECT sum(records) FROM billing")[0][0]
        except ClickHouseError:
            return -1

    try:
        for at in range(0, 60, 20):
            for number in range(at, at + 20):
                writer.append(Output(event=usage(number)))
            writer.append(Output(event=usage(999, cost="not a number", reply_id=f"rep_bad{at}")))
            writer.flush(10)
            eventually(lambda n=at + 20: records() == n, "records")
            running.end(signal.SIGKILL)
            running.start()
        writer.append(Output(event=replace(EXAMPLES[e.MessageSubmitted], content="hello")))
        writer.flush(10)
        eventually(lambda: database.query("SELECT count() FROM messages") == [(2,)], "message")
        assert records() == 60
        assert running.end(signal.SIGTERM) == 0
    finally:
        running.end(signal.SIGKILL)
        writer.close()
        log.close()
