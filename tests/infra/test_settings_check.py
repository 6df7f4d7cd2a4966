"""Settings that cannot work are found before anything starts."""

import os
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from inference_workers.registry import ENGINES
from inference_workers.settings import EngineName
from infra.settings import Engine, StackSettings
from infra.settings_check import wrong_settings
from schemas.models import DEFAULT_MODELS


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TURNLOG_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("engine", get_args(Engine))
def test_the_defaults_suit_every_part(engine: Engine) -> None:
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
    assert any("TURNLOG_MODELS" in sentence for sentence in wrong_settings(StackSettings()))


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


def test_what_the_stack_chooses_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TURNLOG_REPLICA", "nonsense")
    assert wrong_settings(StackSettings(data=tmp_path)) == []
