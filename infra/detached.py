"""`turnlog up --detach`: the stack in a session of its own, and what it says until it is ready."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from infra.data_folder import DataFolder, already_running
from infra.errors import DataFolderUnusable, StackError
from infra.own_name import chat_command
from infra.report import Failed, as_json, as_text, from_object
from infra.settings import StackSettings
from infra.stack import Plan, refuse_early

POLL_S = 0.05


def up_detached(settings: StackSettings, flags: list[str], *, json_lines: bool) -> int:
    """Start `up` in a session of its own and relay what it says until it is ready or has failed."""
    try:
        refuse_early(Plan(settings, processes="--servers-only" not in flags))
    except StackError as failure:
        failed = Failed(str(failure))
        typer.echo(as_json(failed) if json_lines else as_text(failed))
        return 1
    folder = DataFolder(settings.data.absolute())
    folder.prepare()
    if (pid := folder.supervisor_pid()) is not None:
        raise DataFolderUnusable(already_running(folder.path, pid))
    log = folder.log("supervisor")
    options = {
        "--data": folder.path,
        "--port": settings.api_port,
        "--engine": settings.engine,
        "--workers": settings.workers,
        "--api": settings.api_processes,
        "--streams": settings.streams,
    }
    words = [word for option, value in options.items() for word in (option, str(value))]
    log.touch(mode=0o600)
    with log.open("ab") as output:
        start = output.tell()
        child = subprocess.Popen(
            [sys.executable, "-m", "infra", "up", "--json", "--into-log", *words, *flags],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    for line in _lines(log, start, lambda: child.poll() is None):
        try:
            event = json.loads(line)
        except ValueError:
            typer.echo(line, err=True)
            continue
        if "api_key" in event:
            event["api_key"] = folder.demo(0).key  # which the log does not have
        if json_lines:
            typer.echo(json.dumps(event))
        elif (text := _relayed(event, settings.data)) is not None:
            typer.echo(text)
        if event.get("event") in ("ready", "failed"):
            return 0 if event["event"] == "ready" else 1
    raise StackError(f"The supervisor ended before the stack was ready; see {log}.")


def _relayed(event: dict[str, Any], data: Path) -> str | None:
    """The line for a person of an event that another process wrote as JSON."""
    return as_text(from_object(event), chat_command(data))


def _lines(path: Path, start: int, alive: Callable[[], bool]) -> Iterator[str]:
    """Whole lines written to a file after ``start``, while the writer lives."""
    with path.open("rb") as stream:
        stream.seek(start)
        pending = b""
        while True:
            was_alive = alive()
            chunk = stream.read()
            pending += chunk
            *whole, pending = pending.split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)
            if not chunk:
                if not was_alive:
                    return
                time.sleep(POLL_S)
