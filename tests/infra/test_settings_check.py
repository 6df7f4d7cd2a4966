"""Settings that cannot work are found before anything starts."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from pydantic import ValidationError

from inference_workers.engines.tensorrt_llm_settings import TensorRtLlmSettings
from inference_workers.registry import ENGINES
from inference_workers.settings import EngineName
from infra.errors import ComponentUnavailable
from infra.model import require_engine, require_packages
from infra.settings import Engine, StackSettings, sentences
from infra.settings_check import misspelt, wrong_settings
from schemas.models import DEFAULT_MODELS


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TURNLOG_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("engine", get_args(Engine))
def test_the_defaults_suit_every_part(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_TENSORRT_MODEL", "a-model")  # has no default
    assert wrong_settings(StackSettings(engine=engine)) == []


def test_the_engines_are_those_of_the_worker() -> None:
    assert set(get_args(Engine)) == set(get_args(EngineName)) == set(ENGINES)


def test_each_wrong_setting_of_a_part_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_BUFFER_RETENTION_S", "5")
    monkeypatch.setenv("TURNLOG_LOG_LEVEL", "loud")
    wrong = wrong_settings(StackSettings())
    assert len(wrong) == 2
    assert any("TURNLOG_BUFFER_RETENTION_S is '5'" in sentence for sentence in wrong)


def test_models_that_are_no_json_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_MODELS", "nonsense")
    (sentence,) = wrong_settings(StackSettings())
    assert sentence.startswith("TURNLOG_MODELS: no JSON list of models")


def test_a_bad_model_is_said_once_and_not_of_other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [msgspec.structs.replace(DEFAULT_MODELS[0], name="a", smaller="absent")]
    monkeypatch.setenv("TURNLOG_MODELS", msgspec.json.encode(listed).decode())
    sentence = "TURNLOG_MODELS: `smaller` of a is 'absent', which is no other model of its pool."
    assert wrong_settings(StackSettings(engine="scripted")) == [sentence]
    with pytest.raises(ValidationError) as refused:
        StackSettings(engine="scripted", workers="a=1")
    assert sentences(refused.value, {"workers": "--workers"}) == [sentence]


def test_an_engine_without_the_model_that_it_needs_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert wrong_settings(StackSettings(engine="tensorrt_llm")) == ["TURNLOG_TENSORRT_MODEL is not set."]
    monkeypatch.setenv("TURNLOG_LLAMA_MODEL_PATH", str(tmp_path / "none.gguf"))
    (sentence,) = wrong_settings(StackSettings(engine="llama_cpp"))
    assert f"there is no model file at {tmp_path / 'none.gguf'}" in sentence


def test_an_engine_whose_package_is_missing_is_refused_before_anything_starts() -> None:
    with pytest.raises(ComponentUnavailable, match=r"tensorrt_llm needs the Python package not-there.*gpu\.md"):
        require_packages("tensorrt_llm", ("not_there", "json"), TensorRtLlmSettings.install)
    require_engine("scripted")
    require_engine("llama_cpp")


@pytest.mark.skipif(find_spec("tensorrt_llm") is not None, reason="it is installed here")
def test_up_says_so_at_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    def up(**variables: str) -> tuple[int, str]:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "infra",
                "up",
                "--engine",
                "tensorrt_llm",
                "--port",
                "0",
                "--data",
                tmp_path / "data",
            ],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    assert up() == (2, "Error: TURNLOG_TENSORRT_MODEL is not set.\n")
    code, told = up(TURNLOG_TENSORRT_MODEL="a-model")
    assert code == 1
    assert told.startswith("Error: The engine tensorrt_llm needs the Python package tensorrt-llm")
    assert not (tmp_path / "data").exists()


def test_settings_that_belong_together_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_LLAMA_SPECULATIVE", "draft")
    monkeypatch.setenv("TURNLOG_OPENAI_KEY", "sk-of-mine")
    (sentence,) = wrong_settings(StackSettings(engine="llama_cpp"))
    assert sentence == "TURNLOG_LLAMA_SPECULATIVE=draft and TURNLOG_LLAMA_DRAFT_MODEL_PATH belong together."


def test_a_key_that_is_refused_is_not_shown_and_a_member_of_a_list_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_OPENAI_KEY", "sk-\u20ac")
    monkeypatch.setenv("TURNLOG_OPENAI_PROVIDERS", '[{"name": "own"}]')
    assert sorted(wrong_settings(StackSettings(engine="openai_compatible"))) == [
        "TURNLOG_OPENAI_KEY is wrong: a key must be printable ASCII.",
        "TURNLOG_OPENAI_PROVIDERS[0].base_url is not set.",
    ]


def test_models_of_ones_own_suit_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_MODELS", msgspec.json.encode(DEFAULT_MODELS).decode())
    assert wrong_settings(StackSettings(engine="scripted")) == []


def test_a_worker_that_does_not_run_needs_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_SLOTS", "-1")
    assert wrong_settings(StackSettings())
    assert wrong_settings(StackSettings(workers=0)) == []


def test_settings_of_an_engine_count_when_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_SIMULATED_SPEED", "0")
    assert any("TURNLOG_SIMULATED_SPEED" in sentence for sentence in wrong_settings(StackSettings(engine="simulated")))
    assert wrong_settings(StackSettings(engine="scripted")) == []


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("TURNLOG_SLOT", "TURNLOG_SLOTS"),
        ("TURNLOG_MODLES", "TURNLOG_MODELS"),
        ("TURNLOG_KAFKA_BOOTSTRAPS", "TURNLOG_KAFKA_BOOTSTRAP"),
        ("TURNLOG_SLOTS", None),
        ("TURNLOG_KEY", None),
        ("TURNLOG_TEST_REDIS_URL", None),
        ("TURNLOG_KEY_OF_A_PROVIDER", None),
        ("SLOT", None),
    ],
)
def test_a_misspelt_variable_is_told_and_others_are_left_alone(variable: str, meant: str | None) -> None:
    assert misspelt([variable]) == (
        [] if meant is None else [f"{variable} is no setting and is not read: {meant} is one."]
    )


def test_a_check_warns_of_a_misspelt_variable_and_passes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "infra", "worker", "--engine", "scripted", "--check"],
        env={**os.environ, "TURNLOG_SLOT": "3"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "worker: settings are good\n")
    assert done.stderr == "Warning: TURNLOG_SLOT is no setting and is not read: TURNLOG_SLOTS is one.\n"


def test_what_the_stack_chooses_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TURNLOG_REPLICA", "nonsense")
    assert wrong_settings(StackSettings(data=tmp_path)) == []
