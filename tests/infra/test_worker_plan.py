"""Which workers `turnlog up` starts: a number, or numbers by model."""

import os
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.data_folder import DataFolder
from infra.processes import Replicas, process_parts
from infra.settings import StackSettings
from infra.settings_check import wrong_settings
from infra.worker_plan import planned_workers
from schemas.models import SMOLLM2, Model
from schemas.topics import INBOXES


def model(name: str, pool: str) -> Model:
    return msgspec.structs.replace(SMOLLM2, name=name, pool=pool)


MODELS = (model("small", "cpu"), model("tiny", "cpu"), model("org/large", "gpu"))


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TURNLOG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TURNLOG_MODELS", msgspec.json.encode(MODELS).decode())


def test_a_number_leaves_pool_and_model_to_the_environment() -> None:
    assert [(w.name, w.env()) for w in planned_workers("2", MODELS)] == [
        ("worker-0", {"TURNLOG_REPLICA": "0"}),
        ("worker-1", {"TURNLOG_REPLICA": "1"}),
    ]
    assert planned_workers("0", MODELS) == ()


def test_by_model_each_worker_has_its_pool_its_model_and_an_ordinal_of_its_own_in_the_pool() -> None:
    found = planned_workers("small=1, org/large=2,tiny=1", MODELS)
    assert [(w.name, w.pool, w.model, w.ordinal) for w in found] == [
        ("worker-0", "cpu", "small", 0),
        ("worker-1", "gpu", "org/large", 0),
        ("worker-2", "gpu", "org/large", 1),
        ("worker-3", "cpu", "tiny", 1),
    ]


@given(st.dictionaries(st.sampled_from([m.name for m in MODELS]), st.integers(0, 8), min_size=1))
def test_no_two_workers_share_a_name_or_an_inbox(counts: dict[str, int]) -> None:
    found = planned_workers(",".join(f"{name}={count}" for name, count in counts.items()), MODELS)
    assert Counter(w.model for w in found) == Counter(counts)
    assert len({w.name for w in found}) == len({(w.pool, w.ordinal) for w in found}) == len(found)
    assert all(w.ordinal < INBOXES for w in found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("many", "give a number, as 2, or numbers by model, as small=1,large=2"),
        ("-1", "give a number"),
        ("small=", "give a number"),
        ("small=1,", "give a number"),
        ("=3", "give a number"),
        ("small=1,small=2", "small stands there twice"),
        ("medium=1", "no model 'medium'; it has org/large, small, tiny"),
        ("17", "at most 16 workers"),
        ("small=9,tiny=8", "'cpu' would have 17"),
    ],
)
def test_what_cannot_run_says_what_can(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="workers\n") as refused:
        StackSettings(workers=text)
    assert says in str(refused.value)


def test_the_parts_of_a_stack_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_WORKERS", "org/large=1,small=1")
    settings = StackSettings(data=tmp_path, engine="scripted")
    assert wrong_settings(settings) == []
    folder = DataFolder(tmp_path)
    folder.prepare()
    parts = process_parts(folder, Replicas(1, settings.planned, 1), {"TURNLOG_POOL": "other"}, "127.0.0.1", 1)
    told = {
        part.name: {name.removeprefix("TURNLOG_"): value for name, value in part.env.items() if "FILE" not in name}
        for part in parts
        if part.kind == "worker"
    }
    assert told == {
        "worker-0": {"REPLICA": "0", "POOL": "gpu", "MODEL": "org/large"},
        "worker-1": {"REPLICA": "0", "POOL": "cpu", "MODEL": "small"},
    }


def test_parts_serve_metrics_each_on_a_port_of_its_own_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.prepare()
    planned = StackSettings(data=tmp_path, workers="2").planned
    told = {
        part.name: (part.metrics, part.env["TURNLOG_METRICS_PORT"])
        for part in process_parts(folder, Replicas(2, planned, 1, metrics=True), {}, "127.0.0.1", 1)
        if part.kind != "api"
    }
    assert len({port for _, port in told.values()}) == len(told) > 1
    assert all(url == f"http://127.0.0.1:{port}/metrics" for url, port in told.values())
    silent = process_parts(folder, Replicas(1, planned, 1), {}, "127.0.0.1", 1)
    assert not any("TURNLOG_METRICS_PORT" in part.env for part in silent)
    assert not any(part.metrics for part in silent if part.kind != "api")


def test_each_worker_tells_its_model_and_each_api_where_its_metrics_are(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.prepare()
    by_model = Replicas(1, planned_workers("org/large=1,small=1", MODELS), 2)
    parts = {part.name: part for part in process_parts(folder, by_model, {}, "127.0.0.1", 1)}
    assert [parts[name].model for name in ("worker-0", "worker-1", "api-0")] == ["org/large", "small", None]
    assert all(parts[name].metrics == f"{parts[name].address}/metrics" for name in ("api-0", "api-1"))
    by_number = Replicas(1, planned_workers("1", MODELS), 1, model="small")
    assert [part.model for part in process_parts(folder, by_number, {}, "127.0.0.1", 1) if part.kind == "worker"] == [
        "small"
    ]


def test_models_that_cannot_be_read_are_named_where_workers_ask_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_MODELS", "nonsense")
    with pytest.raises(ValueError, match="TURNLOG_MODELS"):
        StackSettings(workers="small=1")
    assert any("TURNLOG_MODELS" in sentence for sentence in wrong_settings(StackSettings(workers=1)))
