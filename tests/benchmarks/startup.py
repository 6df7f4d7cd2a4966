"""From the command to "ready": with what is downloaded already, and (with --cold) from nothing, downloads included.

Cold is a fresh clone with empty caches and `make run`; it takes minutes and a network. Warm is `turnlog up` on an
empty data folder, and again on the same folder.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks import report
from tests.benchmarks.stack import REPOSITORY, start, stop

WARM_TARGET_S = 20.0
COLD_TARGET_S = 240.0
COLD_LIMIT_S = 900.0
READY = b"http://127.0.0.1"


def warm(engine: str) -> tuple[float, float]:
    """Seconds until ready: first start, and the second one on the same data."""
    with tempfile.TemporaryDirectory(prefix="turnlog-bench-") as folder:
        took = []
        for _ in range(2):
            stack = start(Path(folder), "--engine", engine)
            took.append(stack.ready_after_s)
            stop(stack)
    return took[0], took[1]


def cold() -> float:
    """Seconds of `make run` in a fresh clone until it prints its address, all caches empty."""
    with tempfile.TemporaryDirectory(prefix="turnlog-cold-") as folder:
        clone, home = Path(folder) / "turnlog", Path(folder) / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
        # Registries are configured in the user's home; only what is downloaded must be missing.
        caches = {
            name: str(home / name) for name in ("UV_CACHE_DIR", "PIP_CACHE_DIR", "XDG_CACHE_HOME", "npm_config_cache")
        }
        env = os.environ | caches | {"TURNLOG_CACHE": str(home / "turnlog"), "TURNLOG_API_PORT": "0"}
        env.pop("VIRTUAL_ENV", None)
        log = Path(folder) / "log"
        began = time.monotonic()
        with log.open("wb") as output:
            child = subprocess.Popen(
                ["make", "run"], cwd=clone, env=env, stdout=output, stderr=output, start_new_session=True
            )
            try:
                while READY not in log.read_bytes():
                    if child.poll() is not None or time.monotonic() - began > COLD_LIMIT_S:
                        raise RuntimeError(log.read_text(errors="replace")[-2000:])
                    time.sleep(0.2)
                return time.monotonic() - began
            finally:
                os.killpg(child.pid, signal.SIGINT)
                child.wait(60)


def main() -> int:
    """Run it; exit code 1 when a target is missed."""
    parser = report.options(__doc__)
    parser.add_argument("--engine", default="llama_cpp")
    parser.add_argument("--cold", action="store_true", help="also from a fresh clone with empty caches")
    chosen = parser.parse_args()
    first, second = warm(chosen.engine)
    rows = [("turnlog up, empty data folder", f"{first:.1f} s"), ("turnlog up, its second time", f"{second:.1f} s")]
    figures = {"first_s": first, "second_s": second}
    reached = {f"warm cache to ready in {WARM_TARGET_S:g} s": first <= WARM_TARGET_S}
    if chosen.cold:
        figures["cold_s"] = cold()
        rows.insert(0, ("make run, fresh clone, empty caches", f"{figures['cold_s']:.0f} s"))
        reached[f"make run from nothing in {COLD_TARGET_S / 60:g} minutes"] = figures["cold_s"] <= COLD_TARGET_S
    table = report.Table("Until ready", ("", "time"), tuple(rows))
    how = f"One run each with engine {chosen.engine}; the model is loaded and answers within that time."
    return report.finish(report.result("startup", how, [table], figures, reached), chosen)


if __name__ == "__main__":
    sys.exit(main())
