"""`python -m tests.money.kills [--kills 100] [--seed 1]`: the billing projection on the real stack, killed for minutes.

Usage streams into Kafka, with records twice and with revisions. Two replicas of `projections views` are killed
(SIGKILL) at random moments and started again, so partitions move; Redis is flushed, ClickHouse is killed and started
again, offsets are set back. All the while the view `billing` and its rows are read, and each read is held to the log.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaException, TopicPartition

from projections.clickhouse.client import ClickHouseError, Database
from projections.reconcile.reconcile import Options, reconcile
from schemas.events import UsageRecorded
from schemas.examples import EXAMPLES
from streams.log.encoding import decoded
from streams.log.kafka.log import KafkaLog
from streams.log.log import BEGINNING
from streams.log.steps import Output, Partition
from tests.deployment import Servers, new_deployment, shared_servers, stop_shared_servers
from tests.projections.clickhouse import ClickHouse
from tests.projections.test_processes import Running
from tests.projections.valkey import Valkey

Identity = tuple[str, str]
BATCH, EVERY_S = 12, 0.05
READ_EVERY_S = 0.1
GROUP_S = 60.0
AT_THE_END_S = 90
ROWS = """
SELECT message_id, record_kind, account_id, toString(usage_day), toInt64(revision), cost, output_tokens
FROM usage_records FINAL
"""
BILLED = "SELECT toInt64(sum(records)), sum(cost), toInt64(sum(output_tokens)) FROM billing"
TOLD = "SELECT log_partition, toInt64(max(next_offset)) FROM progress WHERE topic = 'usage' GROUP BY log_partition"
replace = msgspec.structs.replace


class Fold:
    """The highest revision of each record, and the totals. Costs and tokens only grow with revisions."""

    def __init__(self) -> None:
        self.best: dict[Identity, UsageRecorded] = {}
        self.cost = Decimal(0)
        self.tokens = 0

    def add(self, event: UsageRecorded) -> None:
        identity = (event.reply_id, event.record_kind)
        before = self.best.get(identity)
        if before is not None and before.revision >= event.revision:
            return
        self.cost += Decimal(event.cost) - (Decimal(before.cost) if before else 0)
        self.tokens += event.output_tokens - (before.output_tokens if before else 0)
        self.best[identity] = event

    @property
    def totals(self) -> tuple[int, Decimal, int]:
        return len(self.best), self.cost, self.tokens


class Checker:
    """Reads the views and holds each read to the log."""

    def __init__(self, log: KafkaLog, database: Database) -> None:
        self._database = database
        partitions = [Partition("usage", number) for number in range(log.partitions("usage"))]
        self._reader = log.reader(partitions, BEGINNING)
        self._events: dict[int, list[tuple[int, UsageRecorded]]] = {p.number: [] for p in partitions}
        self._folded: dict[int, int] = dict.fromkeys(self._events, 0)
        self.told_fold, self.whole = Fold(), Fold()
        self._known: dict[tuple[Identity, int], UsageRecorded] = {}
        self._seen: dict[Identity, int] = {}
        self.reads = 0

    def read(self) -> dict[int, int]:
        """One read of everything; how far the projection said it was. Raises AssertionError, ClickHouseError."""
        told = dict(self._database.query(TOLD))
        listed = self._database.query(ROWS)
        billed = self._database.query(BILLED)[0]
        self.follow()
        self._fold_to(told)
        found: dict[Identity, int] = {}
        for message_id, kind, account, day, revision, cost, tokens in listed:
            identity = (message_id, kind)
            assert identity not in found, f"{identity} is listed twice"
            event = self._known.get((identity, revision))
            assert event is not None, f"{identity} with revision {revision} is not in the log"
            said = (event.account_id, event.usage_day, Decimal(event.cost), event.output_tokens)
            assert (account, day, cost, tokens) == said, f"{identity} is not what the log says"
            found[identity] = revision
        for identity, event in self.told_fold.best.items():
            assert found.get(identity, -1) >= event.revision, f"{identity} was told and is not there"
        for identity, revision in self._seen.items():
            assert found.get(identity, -1) >= revision, f"{identity} was there and is not any more"
        self._seen = found
        least, most = self.told_fold.totals, self.whole.totals
        assert all(low <= value <= high for low, value, high in zip(least, billed, most, strict=True)), (
            f"billed {billed} is not between the fold up to what was told {least} and the whole log {most}"
        )
        self.reads += 1
        return told

    def follow(self) -> None:
        """Take what is new in the log."""
        ends = self._reader.ends()
        while any(self._reader.positions()[partition] < end for partition, end in ends.items()):
            for record in self._reader.poll(0.1):
                event = decoded(record).event
                assert isinstance(event, UsageRecorded)
                self._events[record.partition].append((record.offset, event))
                self._known[((event.reply_id, event.record_kind), event.revision)] = event
                self.whole.add(event)

    def ends(self) -> dict[int, int]:
        return {partition.number: end for partition, end in self._reader.ends().items()}

    def _fold_to(self, told: dict[int, int]) -> None:
        for number, offset in told.items():
            events = self._events[number]
            at = self._folded[number]
            while at < len(events) and events[at][0] < offset:
                self.told_fold.add(events[at][1])
                at += 1
            self._folded[number] = at


class Stream(threading.Thread):
    """Writes usage until it is stopped."""

    def __init__(self, log: KafkaLog, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self._writer = log.writer("settlement")
        self._rng = rng
        self._events: list[UsageRecorded] = []
        self._stop_now = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self._stop_now.wait(EVERY_S):
                for _ in range(BATCH):
                    self._writer.append(Output(event=self._event()))
            self._writer.flush(60)
        except Exception as failure:  # noqa: BLE001 - told by whoever waits for the end
            self.failure = failure

    def again(self, count: int) -> None:
        """The newest records come once more."""
        for event in self._events[-count:]:
            self._writer.append(Output(event=event))

    def end(self) -> None:
        self._stop_now.set()
        self.join()
        if self.failure is not None:
            raise self.failure

    def _event(self) -> UsageRecorded:
        chance = self._rng.random()
        if self._events and chance < 0.08:
            return self._rng.choice(self._events)
        if self._events and chance < 0.14:
            event = self._rng.choice(self._events)
            number = int(event.reply_id.removeprefix("rep_"))
            revision = self._rng.randrange(2, 5)
            made = replace(event, revision=revision, cost=f"{number + revision}.5", output_tokens=number + revision)
        else:
            number = len(self._events)
            made = replace(
                EXAMPLES[UsageRecorded],
                account_id=f"a{number % 23}",
                reply_id=f"rep_{number}",
                usage_day=f"2025-{10 + number % 3}-{1 + number % 28:02}",
                cost=f"{number}.000001",
                output_tokens=number,
            )
        self._events.append(made)
        return made


class Wreck:
    """The stack of one run."""

    def __init__(self, kafka_bootstrap: str, folder: Path, rng: random.Random) -> None:
        for name in ("clickhouse", "valkey", "processes"):
            (folder / name).mkdir()
        self._rng = rng
        self.clickhouse = ClickHouse(folder / "clickhouse")
        self.valkey = Valkey(folder / "valkey")
        self.clickhouse.start()
        self.valkey.start()
        self.deployment = new_deployment(Servers(kafka_bootstrap, self.valkey.url, self.clickhouse.url))
        self.deployment.provision()
        self.log = KafkaLog(kafka_bootstrap, self.deployment.namespace, "kills")
        self.database = Database(self.clickhouse.url, self.deployment.database, timeout_s=10)
        environment = self.deployment.environment() | {"TURNLOG_VIEWS_GATHER_MS": "50"}
        self.replicas = [Running("views", environment, folder / "processes", replica) for replica in range(2)]
        self.kills = 0

    def kill(self, replica: Running) -> None:
        """SIGKILL and start again."""
        replica.end(signal.SIGKILL)
        self.kills += 1
        replica.start()

    def restart_clickhouse(self) -> None:
        self.clickhouse.kill()
        self.clickhouse.start()

    def replay(self) -> None:
        """Everybody is killed, and the group's offsets are set back."""
        for replica in self.replicas:
            replica.end(signal.SIGKILL)
            self.kills += 1
        topic = self.deployment.topic("usage")
        group = {"bootstrap.servers": self.deployment.kafka_bootstrap, "group.id": self.deployment.topic("views")}
        consumer = Consumer(group)
        places = [TopicPartition(topic, number) for number in range(self.log.partitions("usage"))]
        committed = consumer.committed(places, timeout=20)
        back = [
            TopicPartition(topic, place.partition, self._rng.randrange(place.offset + 1))
            for place in committed
            if place.offset > 0
        ]
        until = time.monotonic() + GROUP_S
        while back:
            try:
                consumer.commit(offsets=back, asynchronous=False)
                break
            except KafkaException:  # a group has to have no members for it: the killed ones are in it for a session
                assert time.monotonic() < until, "the group still has members"
                time.sleep(0.5)
        consumer.close()
        for replica in self.replicas:
            replica.start()

    def close(self) -> None:
        for replica in self.replicas:
            replica.end(signal.SIGKILL)
        self.log.close()
        self.database.close()
        self.deployment.remove()
        self.clickhouse.kill()
        self.valkey.kill()


def run(
    kafka_bootstrap: str, folder: Path, kills: int, seed: int, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Kill so often, check every read, and at the end that all is equal; figures. Raises AssertionError."""
    rng = random.Random(seed)
    wreck = Wreck(kafka_bootstrap, folder, rng)
    began = time.monotonic()
    try:
        checker, stream = Checker(wreck.log, wreck.database), Stream(wreck.log, random.Random(seed))
        stream.start()
        done = {"flushes": 0, "restarts of ClickHouse": 0, "replays": 0, "unanswered reads": 0}
        strikes = 0
        while wreck.kills < kills:
            _read_for(checker, rng.uniform(0.1, 2.5), done)
            strikes += 1
            if strikes % 25 == 5:
                wreck.replay()
                done["replays"] += 1
            elif strikes % 9 == 4:
                wreck.restart_clickhouse()
                done["restarts of ClickHouse"] += 1
            elif strikes % 7 == 3:
                wreck.valkey.client.flushall()
                stream.again(300)
                done["flushes"] += 1
            wreck.kill(rng.choice(wreck.replicas))
            tell(f"{wreck.kills} kills, {checker.reads} reads, {checker.whole.totals[0]} records, {done}")
        stream.end()
        _until_equal(checker, done)
        found: list[Any] = []
        reconcile(wreck.log, lambda: Database(wreck.clickhouse.url, wreck.deployment.database), Options(), found.append)
        wrong = [one for one in found if one.table != "replies"]
        assert not wrong, f"reconciliation finds {wrong[:3]}"
        return {
            "kills": wreck.kills,
            "reads": checker.reads,
            "records": len(checker.whole.best),
            "in the log": sum(checker.ends().values()),
            "seconds": round(time.monotonic() - began),
            **done,
        }
    finally:
        wreck.close()


def _read_for(checker: Checker, seconds: float, done: dict[str, int]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            checker.read()
        except ClickHouseError:
            done["unanswered reads"] += 1
        time.sleep(READ_EVERY_S)


def _until_equal(checker: Checker, done: dict[str, int]) -> None:
    """The projection comes to the end of the log, and all is equal."""
    until = time.monotonic() + AT_THE_END_S
    told: dict[int, int] = {}
    while time.monotonic() < until:
        try:
            told = checker.read()
        except ClickHouseError:
            done["unanswered reads"] += 1
        if all(told.get(number, 0) >= end for number, end in checker.ends().items()):
            checker.read()
            assert checker.told_fold.best == checker.whole.best
            return
        time.sleep(READ_EVERY_S)
    raise AssertionError(f"not at the end after {AT_THE_END_S} s: {told} of {checker.ends()}")


def main() -> int:
    """Exit code 1 when a read was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="turnlog-money-"))
    try:
        servers = shared_servers(folder / "servers", os.getpid())
        (folder / "run").mkdir()
        print(run(servers.kafka_bootstrap, folder / "run", chosen.kills, chosen.seed, print))
    except AssertionError as wrong:
        print(f"seed {chosen.seed}: {wrong}")
        return 1
    finally:
        stop_shared_servers(folder / "servers")
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
