"""How a person can call this program again from where it was called: a command that works as typed."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

NAME = "turnlog"


def own_command(words: tuple[str, ...] = ()) -> str:
    """A command line of this program, for another terminal in the current folder."""
    script = Path(sys.argv[0])
    if script.name != NAME:
        script = Path(sys.executable).parent / NAME
    if not script.is_file():
        return shlex.join((sys.executable, "-m", "infra", *words))
    found = shutil.which(NAME)
    return shlex.join((called(script.absolute(), Path.cwd(), Path(found) if found else None), *words))


def called(script: Path, cwd: Path, found: Path | None) -> str:
    """A script below the current folder by its path there, since `make` may have put it on a PATH of its own."""
    if script.is_relative_to(cwd):
        return str(script.relative_to(cwd))
    return NAME if found == script else str(script)


def chat_command(data: Path) -> str:
    """`turnlog chat` with the stack on this data folder."""
    usual = data.absolute() == Path.cwd() / ".turnlog"
    return own_command(("chat",) if usual else ("chat", "--data", str(data)))
