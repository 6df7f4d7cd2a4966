"""A deployment's `usage` for tests: written to its log, and brought into its views."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deployment import Deployment
from msgspec.structs import replace

from projections.clickhouse.client import Database
from projections.views.pace import Pace
from projections.views.step import Batch, ViewsStep
from schemas import events as e
from schemas.examples import EXAMPLES
from schemas.topics import USAGE
from streams.log.encoding import decoded
from streams.log.kafka import KafkaLog
from streams.log.log import BEGINNING
from streams.log.steps import Arrived, Output, Partition


def used(
    n: int = 1, day: str = "2026-10-05", cost: str = "0.1", revision: int = 1, kind: str = "reply", **members: object
) -> e.UsageRecorded:
    """A usage record."""
    example = EXAMPLES[e.UsageRecorded]
    assert isinstance(example, e.UsageRecorded)
    names = {"reply_id": f"rep_{n:06d}", "usage_day": day, "cost": cost, "revision": revision, "record_kind": kind}
    return replace(example, **{**names, **members})  # type: ignore[arg-type]


@dataclass
class Usage:
    """The topic and its views of one deployment."""

    deployment: Deployment

    def append(self, *events: e.Event) -> None:
        """Write to the log."""
        log = KafkaLog(self.deployment.kafka_bootstrap, self.deployment.namespace, "test")
        writer = log.writer("test")
        for one in [writer.append(Output(event=event)) for event in events]:
            one.result(30)
        log.close()

    def events(self) -> list[Arrived]:
        """All of the log."""
        log = KafkaLog(self.deployment.kafka_bootstrap, self.deployment.namespace, "test")
        partitions = [Partition(USAGE.name, number) for number in range(log.partitions(USAGE.name))]
        reader = log.reader(partitions, BEGINNING)
        ends, found = reader.ends(), []
        while any(reader.positions()[one] < end for one, end in ends.items()):
            found += reader.poll(0.2)
        reader.close()
        log.close()
        return [Arrived(record, decoded(record)) for record in found]

    def project(self) -> None:
        """Bring the whole log into the views, once more."""
        database = self.database()
        step = ViewsStep(database, Batch(), Pace())
        step.assigned({Partition(USAGE.name, number): 0 for number in range(64)})
        step.submit(self.events(), 1)
        step.poll(10**12)
        assert not step.trouble
        database.close()

    def database(self) -> Database:
        """ClickHouse."""
        return Database(self.deployment.clickhouse_url, self.deployment.database)


def turnlog(deployment: Deployment, *arguments: str, code: int = 0) -> Any:
    """A command on a deployment; what it says as JSON, or its complaint where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "infra", *arguments],
        env={**os.environ, **deployment.environment()},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout) if code == 0 and "--json" in arguments else done.stdout + done.stderr


def accounts_of(events: Sequence[e.UsageRecorded], count: int) -> list[e.UsageRecorded]:
    """The same, spread over so many accounts."""
    return [replace(event, account_id=f"acc-{number % count}") for number, event in enumerate(events)]
