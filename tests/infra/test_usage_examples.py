"""The examples of docs/examples: what reads the topic `usage` from outside counts each record once."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from deployment import Deployment
from msgspec.structs import replace

from projections.clickhouse.client import Database
from schemas import events as e
from schemas.codec import encode, type_name
from schemas.examples import EXAMPLES, envelope
from schemas.invoice import adjustment
from tests.infra.usage import Usage, accounts_of, used

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "examples"


def history(seed: int = 1) -> list[e.Event]:
    """Records, doubled, revised in any order, corrected, between events that are none of a consumer's business."""
    chance = random.Random(seed)
    records = accounts_of([used(n, day=f"2026-{n % 3 + 9:02d}-11", cost=f"0.{n:06d}000001") for n in range(1, 400)], 9)
    events: list[e.Event] = [*records]
    events += chance.sample(records, 100)
    events += [replace(one, revision=2, cost="0.000000000009") for one in chance.sample(records, 40)]
    events += [
        adjustment(
            account_id=one.account_id,
            reply_id=one.reply_id,
            usage_day=one.usage_day,
            currency=one.currency,
            adjustment_id="1",
            amount="-0.000000000003",
            reason="It was empty.",
            now_ms=1,
        )
        for one in chance.sample(records, 20)
    ]
    chance.shuffle(events)
    bill = EXAMPLES[e.PeriodClosed]
    return [*events, bill, EXAMPLES[e.PeriodEnded]]


def owed(events: list[e.Event]) -> dict[tuple[str, str], tuple[int, Decimal]]:
    kept: dict[tuple[str, ...], Any] = {}
    for event in events:
        if isinstance(event, e.UsageRecorded | e.UsageAdjusted):
            key = (event.account_id, event.usage_day, event.reply_id, event.record_kind)
            if key not in kept or event.revision > kept[key].revision:
                kept[key] = event
    sums: dict[tuple[str, str], tuple[int, Decimal]] = {}
    for (account, day, _, _), event in kept.items():
        records, amount = sums.get((account, day[:7]), (0, Decimal(0)))
        sums[account, day[:7]] = records + 1, amount + Decimal(event.cost)
    return sums


def consumer(deployment: Deployment, state: Path, *more: str) -> list[str]:
    where = ("--bootstrap", deployment.kafka_bootstrap, "--topic", deployment.topic("usage"), "--state", str(state))
    return [sys.executable, str(FOLDER / "usage_consumer.py"), *where, *more]


@pytest.mark.servers
def test_the_python_consumer_counts_each_record_once_through_kills_and_repetitions(
    provisioned: Deployment, tmp_path: Path
) -> None:
    events, usage, state = history(), Usage(provisioned), tmp_path / "usage.db"
    for number in range(5):
        usage.append(*events[number * 100 : number * 100 + 130])
        process = subprocess.Popen(consumer(provisioned, state), stdout=subprocess.DEVNULL, env=dict(os.environ))
        time.sleep(0.3 + 0.15 * number)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
    usage.append(*events[500:], *events[:50])
    for _ in range(2):
        done = subprocess.run(
            consumer(provisioned, state, "--until-end"), capture_output=True, text=True, check=True, timeout=60
        )
        found = {
            (row["account_id"], row["month"]): (row["records"], Decimal(row["amount"]))
            for row in json.loads(done.stdout)
        }
        assert found == owed(events)


@pytest.mark.servers
@pytest.mark.timeout(180)
def test_the_sql_consumer_counts_each_record_once(provisioned: Deployment) -> None:
    events, usage = history(2), Usage(provisioned)
    usage.append(*events)
    name = f"{provisioned.database}_outside"
    text = (FOLDER / "usage.sql").read_text()
    text = text.replace("127.0.0.1:9092", provisioned.kafka_bootstrap).replace(
        "turnlog.usage", provisioned.topic("usage")
    )
    text = text.replace("'my-billing'", f"'{provisioned.topic('my-billing')}'")
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    admin = Database(provisioned.clickhouse_url, "default")
    admin.command(f"CREATE DATABASE {name} ENGINE = Atomic")
    database = Database(provisioned.clickhouse_url, name)
    try:
        for statement in "\n".join(lines).split(";"):
            if statement.strip():
                database.command(statement)
        expected = owed(events)
        deadline = time.monotonic() + 120
        while True:
            rows = database.query("SELECT account_id, month, records, amount FROM usage_by_month")
            found = {(account, month): (records, amount) for account, month, records, amount in rows}
            if found == expected:
                break
            assert time.monotonic() < deadline, (len(found), len(expected))
            time.sleep(0.3)
        last = replace(used(1_000), account_id="last")
        usage.append(*events[:200], last)
        expected |= owed([last])
        while ("last",) not in database.query("SELECT DISTINCT account_id FROM usage"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        rows = database.query("SELECT account_id, month, records, amount FROM usage_by_month")
        assert {(account, month): (records, amount) for account, month, records, amount in rows} == expected
    finally:
        admin.command(f"DROP DATABASE {name} SYNC")
        admin.close()


CLOUD_EVENT = {
    # https://github.com/cloudevents/spec/blob/main/cloudevents/formats/cloudevents.json, as OpenMeter's API takes it
    # (https://openmeter.io/docs/metering/events/usage-events): `subject` is needed there, `data` is a JSON object.
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "id": {"type": "string", "minLength": 1},
        "source": {"type": "string", "format": "uri-reference", "minLength": 1},
        "specversion": {"const": "1.0"},
        "type": {"type": "string", "minLength": 1},
        "datacontenttype": {"const": "application/json"},
        "subject": {"type": "string", "minLength": 1},
        "time": {"type": "string", "format": "date-time", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"},
        "data": {"type": "object"},
    },
    "required": ["id", "source", "specversion", "type", "subject", "time", "data"],
}


@pytest.mark.parametrize("cls", [e.UsageRecorded, e.UsageAdjusted, e.PeriodEnded, e.PeriodClosed])
def test_records_of_usage_are_cloud_events_as_openmeter_takes_them(cls: type[e.Event]) -> None:
    value, headers = encode(envelope(EXAMPLES[cls]))
    named = {name: text.decode() for name, text in headers}
    assert named["content-type"] == "application/json"
    event = {name.removeprefix("ce_"): text for name, text in named.items() if name.startswith("ce_")}
    jsonschema.validate({**event, "data": json.loads(value)}, CLOUD_EVENT, format_checker=jsonschema.FormatChecker())
    assert event["subject"] == getattr(EXAMPLES[cls], "account_id", None)


def test_the_meters_of_the_openmeter_example_name_members_of_todays_record() -> None:
    text = (FOLDER / "openmeter.yaml").read_text()
    assert text.count("eventType:") == text.count(f"eventType: {type_name(e.UsageRecorded)}") == 3
    members = set(e.UsageRecorded.__struct_fields__)
    paths = [word.removeprefix("$.") for word in text.split() if word.startswith("$.")]
    assert len(paths) > 6
    assert set(paths) <= members
