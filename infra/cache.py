"""The folder of downloaded components, shared by every checkout and every data folder of a user.

Rules:
1. A component is a folder named for its content (name, version, hash of its lock). It is complete
   when it holds the marker file, which is written last; so a reader never sees half of one.
2. Files are checked before they move into place, and keep their place when another one fails:
   the next run fetches only what is missing.
3. One process fills a component at a time (a file lock); the others wait and find it complete.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.errors import ComponentUnavailable, StackError

MARKER = ".complete"
CHUNK_BYTES = 1024 * 1024


def cache_folder() -> Path:
    """``TURNLOG_CACHE``, or ``turnlog`` in the user's cache folder."""
    chosen = os.environ.get("TURNLOG_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "turnlog"


def obtain(name: str, fill: Callable[[Path], None], *, needs_bytes: int) -> Path:
    """The complete folder of component ``name``; ``fill(folder)`` is called when it is not there.

    ``needs_bytes`` is the room that filling takes, checked first. Raises ComponentUnavailable
    when there is no room or the cache folder cannot be written.
    """
    folder = cache_folder() / name
    if (folder / MARKER).exists():
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent / f".{name}.lock"):
            if not (folder / MARKER).exists():
                require_room(folder, needs_bytes, f"the download of {name}")
                fill(folder)
                (folder / MARKER).touch()
    except StackError:
        raise
    except OSError as failure:
        raise ComponentUnavailable(explain_os_error(failure, cache_folder(), "TURNLOG_CACHE")) from failure
    return folder


def is_complete(name: str) -> bool:
    """Whether component ``name`` needs no download."""
    return (cache_folder() / name / MARKER).exists()


def require_room(folder: Path, needs_bytes: int, what: str) -> None:
    """Raise ComponentUnavailable when the file system of ``folder`` lacks ``needs_bytes``."""
    free = shutil.disk_usage(folder).free
    if free < needs_bytes:
        raise ComponentUnavailable(
            f"{what} needs {needs_bytes // 2**20} MB of disk, but only {free // 2**20} MB are free at {folder}; "
            "make room or set TURNLOG_CACHE to a folder on a larger disk."
        )


def digest(path: Path, algorithm: str) -> str:
    """Hexadecimal digest of a file, read once."""
    state = hashlib.new(algorithm)
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            state.update(chunk)
    return state.hexdigest()


def verify(path: Path, algorithm: str, expected_hex: str) -> None:
    """Raise ComponentUnavailable, and remove the file, when its digest is not the locked one."""
    found = digest(path, algorithm)
    if found != expected_hex:
        path.unlink(missing_ok=True)
        raise ComponentUnavailable(
            f"The download of {path.name} is broken ({algorithm} {found[:12]}… instead of {expected_hex[:12]}…); "
            "it was removed: run the command again, and if it stays so, check your package mirror."
        )


def explain_os_error(failure: OSError, folder: Path, setting: str) -> str:
    """One sentence for a failed file operation in ``folder``, which ``setting`` can move."""
    if failure.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"The disk is full at {folder}; make room or set {setting} to a folder on another disk."
    if failure.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return f"{folder} cannot be written ({failure.strerror}); change its owner or set {setting} to another folder."
    if folder.is_file():
        return f"{folder} is a file, not a folder; set {setting} to a folder."
    return f"{folder} cannot be used ({failure.strerror or failure}); set {setting} to another folder."


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
