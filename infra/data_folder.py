"""The data folder: what the local stack keeps between runs, and who is using it now.

<data>/kafka, redis, clickhouse   the servers' data
<data>/logs/<part>.log            what each part printed
<data>/run/                       status files, the supervisor's snapshot; worth nothing after a stop
<data>/secret, demo.json          made once: the deployment's secret, the demo account's key
<data>/ports.json                 the ports of the last run
<data>/lock                       held by the running supervisor
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.cache import explain_os_error
from infra.errors import DataFolderUnusable
from schemas.ids import key_id, new_key

SECRET_BYTES = 32
FREE_BYTES_MIN = 256 * 1024 * 1024
LOG_BYTES_MAX = 32 * 1024 * 1024
HOW_TO_MOVE = "--data (or TURNLOG_DATA)"


@dataclass(frozen=True)
class DemoAccount:
    """The account of a local deployment and its key, which only this folder knows in clear."""

    account_id: str
    key_id: str
    key: str
    created_at_ms: int


@dataclass(frozen=True)
class DataFolder:
    """Paths below one data folder, and the few files that the stack itself reads and writes there."""

    path: Path

    @property
    def logs(self) -> Path:
        """Folder of the parts' logs."""
        return self.path / "logs"

    @property
    def run(self) -> Path:
        """Folder of what is true only while the stack runs."""
        return self.path / "run"

    @property
    def snapshot(self) -> Path:
        """The supervisor's last word about its parts."""
        return self.run / "stack.json"

    def log(self, part: str) -> Path:
        """Log file of a part."""
        return self.logs / f"{part}.log"

    def trim_logs(self, limit_bytes: int = LOG_BYTES_MAX) -> None:
        """Keep every log below the limit: what it holds moves to `<part>.log.1`, whose content is dropped.

        The parts append to open files, so the file is copied and emptied, not renamed; a line written
        in between can be lost.
        """
        for path in self.logs.glob("*.log"):
            with contextlib.suppress(OSError):
                if path.stat().st_size > limit_bytes:
                    shutil.copyfile(path, path.with_name(f"{path.name}.1"))
                    os.truncate(path, 0)

    def is_new(self) -> bool:
        """Whether no stack has run on it yet. What cannot be a data folder is not new: `prepare` says why."""
        try:
            return not self.path.is_file() and not (self.path / "lock").exists()
        except OSError:
            return False

    def prepare(self) -> None:
        """Create the folders. Raises DataFolderUnusable."""
        try:
            for folder in (self.path, self.logs, self.run):
                folder.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)
            probe = self.run / ".writable"
            probe.write_text("x")
            probe.unlink()
            free = shutil.disk_usage(self.path).free
        except OSError as failure:
            raise DataFolderUnusable(explain_os_error(failure, self.path, HOW_TO_MOVE)) from failure
        if free < FREE_BYTES_MIN:
            raise DataFolderUnusable(
                f"Only {free // 2**20} MB of disk are free at {self.path}, too little for the servers' data "
                f"(at least {FREE_BYTES_MIN // 2**20} MB): make room, or choose another disk with {HOW_TO_MOVE}."
            )

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Hold the folder for this process. Raises DataFolderUnusable when another one holds it."""
        try:
            handle = (self.path / "lock").open("a+")
        except OSError as failure:
            raise DataFolderUnusable(explain_os_error(failure, self.path, HOW_TO_MOVE)) from failure
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as failure:
                raise DataFolderUnusable(already_running(self.path, self.supervisor_pid())) from failure
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
            yield

    def supervisor_pid(self) -> int | None:
        """Process id of the supervisor that holds the folder; None when none does."""
        try:
            with (self.path / "lock").open("r") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(handle.read() or 0) or None
        except FileNotFoundError:
            return None
        except OSError as failure:
            raise DataFolderUnusable(explain_os_error(failure, self.path, HOW_TO_MOVE)) from failure
        return None

    def secret(self) -> str:
        """The deployment's secret, made at the first call."""
        path = self.path / "secret"
        if not path.exists():
            write_private(path, secrets.token_hex(SECRET_BYTES))
        return self._read(path).strip()

    def demo(self, now_ms: int) -> DemoAccount:
        """The demo account, made at the first call."""
        path = self.path / "demo.json"
        if not path.exists():
            key = new_key()
            account = DemoAccount("demo", key_id(key), key, now_ms)
            write_private(path, json.dumps(asdict(account)))
        return DemoAccount(**json.loads(self._read(path)))

    def remembered_ports(self) -> dict[str, int]:
        """Ports of the last run, by part; empty when there was none."""
        try:
            return {str(name): int(port) for name, port in json.loads((self.path / "ports.json").read_text()).items()}
        except (OSError, ValueError, AttributeError):
            return {}

    def remember_ports(self, ports: Mapping[str, int]) -> None:
        """Keep the ports for the next run."""
        replace_json(self.path / "ports.json", {**self.remembered_ports(), **ports})

    def _read(self, path: Path) -> str:
        try:
            return path.read_text()
        except OSError as failure:
            raise DataFolderUnusable(explain_os_error(failure, path, HOW_TO_MOVE)) from failure


def already_running(path: Path, pid: int | None) -> str:
    """The sentence for a second `up`."""
    return (
        f"Turnlog is already running on {path} (process {pid or 'unknown'}): use it, stop it with `turnlog down`, "
        "or choose another folder with --data."
    )


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        partial.replace(path)
    except OSError as failure:
        raise DataFolderUnusable(explain_os_error(failure, path.parent, HOW_TO_MOVE)) from failure


def replace_json(path: Path, value: Any) -> None:
    """Replace a JSON file so that a reader sees the old or the new one. A full disk keeps the old one."""
    partial = path.with_name(f".{path.name}.partial")
    with contextlib.suppress(OSError):
        partial.write_text(json.dumps(value))
        partial.replace(path)
