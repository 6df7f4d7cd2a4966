"""The engine of the workers: what must be on the machine before one can start."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec

from inference_workers.registry import ENGINES
from infra.errors import ComponentUnavailable

SYSTEM_LIBRARIES = {"llama_cpp": ("libgomp.so.1", "libgomp1 (Debian, Ubuntu) or libgomp (Fedora)")}


def require_engine(name: str) -> None:
    """Raise ComponentUnavailable when an engine could not start here. Nothing of it is imported."""
    own = ENGINES[name].settings()
    require_packages(name, own.packages(), own.install)
    if name in SYSTEM_LIBRARIES:
        require_system_library(*SYSTEM_LIBRARIES[name])


def require_packages(engine: str, modules: tuple[str, ...], install: str) -> None:
    """Raise ComponentUnavailable when one of an engine's Python packages is missing."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise ComponentUnavailable(
            f"The engine {engine} needs the Python package {', '.join(missing).replace('_', '-')}, which is not in "
            f"this environment: {install}; or start with --engine scripted to do without a model."
        )


def require_system_library(name: str, package: str) -> None:
    """Raise ComponentUnavailable when the dynamic linker does not find a library."""
    try:
        ctypes.CDLL(name)
    except OSError as failure:
        raise ComponentUnavailable(
            f"The system library {name} is missing: install the package {package} with your package manager, for "
            "example `apt-get install libgomp1`, and start again."
        ) from failure
