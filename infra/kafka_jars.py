"""Apache Kafka's jars, from Maven repositories through jgo, each checked against the lock.

The lock (``infra/locks/kafka.lock``) lists the whole closure, one ``group:artifact:version sha256``
a line, because a Maven resolver without Kafka's own build file picks wrong versions of some of
them. So nothing is resolved here: each jar is fetched by its name, eight at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from infra.cache import is_complete, obtain, verify
from infra.errors import ComponentUnavailable
from infra.progress import Tell, Transfer

VERSION = "4.2.2"
CLOSURE_BYTES = 45 * 1024 * 1024
PARALLEL_DOWNLOADS = 8
TRIES = 3


@dataclass(frozen=True)
class LockedJar:
    """One jar of the closure; ``sha256`` in hexadecimal."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def filename(self) -> str:
        """The name under which the jar lies in the cache and on the class path."""
        return f"{self.artifact}-{self.version}.jar"


def read_lock() -> tuple[LockedJar, ...]:
    """The committed closure, in file order."""
    return parse_lock((files("infra") / "locks" / "kafka.lock").read_text())


def parse_lock(text: str) -> tuple[LockedJar, ...]:
    """Jars from the text of a lock: ``group:artifact:version sha256`` a line, ``#`` for comments."""
    jars = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            coordinate, sha256 = line.split()
            group, artifact, version = coordinate.split(":")
            jars.append(LockedJar(group, artifact, version, sha256))
    return tuple(jars)


def component_name(jars: tuple[LockedJar, ...]) -> str:
    """Name in the cache; another lock is another component."""
    fingerprint = hashlib.sha256("\n".join(f"{jar.filename} {jar.sha256}" for jar in jars).encode()).hexdigest()
    return f"kafka-{VERSION}-{fingerprint[:12]}"


def is_fetched() -> bool:
    """Whether the cache holds the whole closure."""
    return is_complete(component_name(read_lock()))


def class_path(tell: Tell) -> str:
    """Java class path of the broker, downloading what the cache lacks. Raises ComponentUnavailable."""
    jars = read_lock()
    folder = obtain(component_name(jars), lambda into: _fill(into, jars, tell), needs_bytes=2 * CLOSURE_BYTES)
    return f"{folder}/*"


def _fill(folder: Path, jars: tuple[LockedJar, ...], tell: Tell) -> None:
    missing = [jar for jar in jars if not (folder / jar.filename).exists()]
    tell(f"Fetching Apache Kafka {VERSION} ({len(missing)} jars, about {CLOSURE_BYTES // 2**20} MB)")
    transfer = Transfer("Apache Kafka", tell, CLOSURE_BYTES)
    with (
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=".kafka-") as staging,
        ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool,
    ):
        fetch = _fetcher(Path(staging), transfer)
        for done in [pool.submit(_install, jar, folder, fetch) for jar in missing]:
            done.result()


def _install(jar: LockedJar, folder: Path, fetch: Callable[[LockedJar], Path]) -> None:
    path = fetch(jar)
    verify(path, "sha256", jar.sha256)
    path.replace(folder / jar.filename)


def _fetcher(staging: Path, transfer: Transfer) -> Callable[[LockedJar], Path]:
    """A function that downloads one jar into ``staging`` from the repositories jgo is set up for."""
    import requests
    from jgo.config import GlobalSettings
    from jgo.maven import MavenContext, PythonResolver

    @contextlib.contextmanager
    def report(_filename: str, _total: int) -> Iterator[Callable[[int], None]]:
        yield transfer.advance

    repositories = GlobalSettings.load().repositories or None
    context = MavenContext(
        repo_cache=staging, local_repos=[], remote_repos=repositories, resolver=PythonResolver(progress_callback=report)
    )

    def fetch(jar: LockedJar) -> Path:
        artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact()
        failure: Exception | None = None
        for _ in range(TRIES):
            try:
                return Path(artifact.resolve())
            except (requests.RequestException, RuntimeError) as error:
                failure = error
                if (partial := artifact.cached_path) is not None:
                    partial.unlink(missing_ok=True)
        raise ComponentUnavailable(
            f"{jar.filename} could not be fetched from the Maven repositories ({_first_line(failure)}); check the "
            "network or the mirror in ~/.config/jgo.conf, then run the command again: what has come is kept."
        ) from failure

    return fetch


def _first_line(failure: Exception | None) -> str:
    text = str(failure) or type(failure).__name__
    return text.splitlines()[0][:200]
