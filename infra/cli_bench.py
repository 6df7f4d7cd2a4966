"""`turnlog bench NAME`: the project's benchmarks, from a checkout."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from infra.cli_options import AsJson
from infra.errors import StackError

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "benchmarks"

Name = Annotated[str | None, typer.Argument(help="A benchmark; without one, their names.")]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(bench)


def bench(context: typer.Context, name: Name = None, as_json: AsJson = False) -> None:
    """Run a benchmark; further arguments are handed on to it. With --json the names are an object."""
    names = known(FOLDER)
    if not names:
        raise StackError("The benchmarks are part of a checkout of the project, and this is none.")
    if name is None:
        typer.echo(json.dumps({"benchmarks": names}) if as_json else "\n".join(names))
        return
    if name not in names:
        raise typer.BadParameter(f"there is no benchmark {name!r}: {', '.join(names)}.")
    sys.stdout.flush()
    os.chdir(FOLDER.parents[1])
    command = [sys.executable, "-m", f"tests.benchmarks.{name}", *context.args]
    os.execv(sys.executable, command)  # noqa: S606 - our own modules


def known(folder: Path) -> list[str]:
    """Names of the benchmarks: modules that say what they do when they are run."""
    if not folder.is_dir():
        return []
    return sorted(
        path.stem
        for path in folder.glob("*.py")
        if not path.stem.startswith("_") and '__name__ == "__main__"' in path.read_text()
    )
