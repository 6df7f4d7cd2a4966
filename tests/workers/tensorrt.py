"""The engine `tensorrt_llm` on the package of its shape (`fake_tensorrt_llm`)."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from inference_workers.engines.tensorrt_llm_settings import TensorRtLlmSettings

FOLDER = Path(__file__).parent / "fake_tensorrt_llm"


def use() -> Any:
    """Make it importable, and import it."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    import tensorrt_llm

    return tensorrt_llm


def environment() -> dict[str, str]:
    """For a process that uses it."""
    return {**os.environ, "PYTHONPATH": str(FOLDER), "TURNLOG_TENSORRT_MODEL": "fake"}


def settings(**members: object) -> TensorRtLlmSettings:
    """With a model named."""
    return TensorRtLlmSettings(**{"tensorrt_model": "fake", **{f"tensorrt_{k}": v for k, v in members.items()}})


def faulty(monkeypatch: pytest.MonkeyPatch, **faults: object) -> None:
    """Switch on what the library does wrong, for one test."""
    from tensorrt_llm import faults as switches

    monkeypatch.setattr(switches, "current", switches.Faults(**faults))
