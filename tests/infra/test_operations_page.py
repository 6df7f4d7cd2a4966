"""What docs/operations.md and docs/gpu.md tell operators to run does what they say."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from deployment import Deployment

from inference_workers.metrics import GAUGES, OWN, TOTALS
from infra.worker_plan import planned_workers
from schemas.models import parse_models
from schemas.topics import PARKED
from streams.dispatch import rules
from streams.dispatch.numbers import ENGINES_LEFT, NUMBERS
from streams.log.kafka import KafkaLog

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
WITHIN_S = 60


@pytest.mark.parametrize("page", ["operations.md", "gpu.md"])
def test_every_list_of_models_on_the_page_is_taken(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    lists = re.findall(r"TURNLOG_MODELS='(\[.*?\])'", text, re.DOTALL)
    assert lists
    assert all(parse_models(listed) for listed in lists)


def test_the_example_of_two_models_can_be_started() -> None:
    listed = next(one for one in re.findall(r"TURNLOG_MODELS='(\[.*?\])'", OPERATIONS, re.DOTALL) if "smaller" in one)
    models = parse_models(listed)
    assert [worker.model for worker in planned_workers("small=1,large=2", models)] == ["small", "large", "large"]
    assert [model.smaller for model in models] == ["small", None]


def test_every_reason_of_a_death_is_on_the_page_and_in_its_alarm() -> None:
    deaths = {"worker_lost", "worker_replaced", *rules.DEATHS}
    found = re.search(r'attempts_lost_total\{reason=~"([a-z_|]+)"\}', OPERATIONS)
    assert found is not None
    assert set(found[1].split("|")) == deaths
    assert all(f"| `{reason}` |" in OPERATIONS for reason in deaths | {rules.STALLED, *rules.NO_ROOM})


def test_the_alarms_of_dispatch_and_workers_name_metrics_that_there_are() -> None:
    served = {*NUMBERS, *(name for name, _, _ in GAUGES.values())}
    served |= {f"{name}_total" for name, _ in (TOTALS | OWN).values()}
    section = OPERATIONS[OPERATIONS.index("**What to alarm on:**") : OPERATIONS.index("### Why replies begin again")]
    named = set(re.findall(r"turnlog_(?:dispatch|worker)_[a-z_]+", section))
    assert named
    assert named <= served
    assert f'workers_left_total{{reason="{ENGINES_LEFT[-1]}"}}' in section


@pytest.mark.servers
def test_dead_letters_are_printed_by_the_script_on_the_page(provisioned: Deployment) -> None:
    log = KafkaLog(provisioned.kafka_bootstrap, provisioned.namespace, "test-operations")
    writer = log.writer("test")
    for text in ("first", "second"):
        writer.append_record(PARKED.name, "k", text.encode(), [("dead_error", b"broken")], partition=0).result(10)
    writer.close()
    log.close()
    found = re.search(r"<<'END'\n(.*?)\n\s*END\n", OPERATIONS, re.DOTALL)
    assert found is not None
    done = subprocess.run(
        [sys.executable, "-", provisioned.kafka_bootstrap, f"{provisioned.namespace}.{PARKED.name}"],
        input=textwrap.dedent(found[1]),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["{'dead_error': 'broken'} first", "{'dead_error': 'broken'} second"]
