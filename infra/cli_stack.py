"""`turnlog up`, `down`, `status`, `logs`, and `fetch`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

import psutil
import typer

from infra import leftovers
from infra.cli_options import AsJson, Data, leave_with, settings_from
from infra.data_folder import DataFolder
from infra.errors import StackError
from infra.own_name import chat_command
from infra.report import Event, Ready, Report, as_json, as_text
from infra.settings import Engine, StackSettings

POLL_S = 0.05
DOWN_TIMEOUT_S = 90.0
SHOWN_LINES = 200

Port = Annotated[int | None, typer.Option(help="Port of the HTTP API; 0 is any free one. [default: 8080]")]
EngineName = Annotated[str | None, typer.Option(help=f"{', '.join(get_args(Engine))}. [default: llama_cpp]")]
Workers = Annotated[
    str | None, typer.Option(help="Number of workers, 0: replies wait; or by model, small=1,large=2. [default: 1]")
]
Apis = Annotated[int | None, typer.Option("--api", help="API processes, which share the port. [default: 1]")]
Streams = Annotated[int | None, typer.Option(help="Instances of turns and of dispatch. [default: 1]")]
Detach = Annotated[bool, typer.Option("--detach", help="Return when everything is ready.")]
ServersOnly = Annotated[bool, typer.Option("--servers-only", help="Start Kafka, Redis and ClickHouse only.")]
WhilePid = Annotated[int | None, typer.Option("--while-pid", help="Stop when this process has ended.")]
IntoLog = Annotated[bool, typer.Option("--into-log", hidden=True)]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written next.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(up)
    app.command()(down)
    app.command()(status)
    app.command()(logs)
    app.command()(fetch)


def up(
    data: Data = None,
    port: Port = None,
    engine: EngineName = None,
    workers: Workers = None,
    api: Apis = None,
    streams: Streams = None,
    detach: Detach = False,
    servers_only: ServersOnly = False,
    while_pid: WhilePid = None,
    *,
    into_log: IntoLog = False,
    as_json_lines: AsJson = False,
) -> None:
    """Start what is missing of the local stack and Turnlog's processes; stay until Ctrl-C.

    Servers named by TURNLOG_KAFKA_BOOTSTRAP, TURNLOG_REDIS_URL or TURNLOG_CLICKHOUSE_URL are used
    instead of started. A part that dies is restarted.
    """
    chosen = {
        "data": data,
        "api_port": port,
        "engine": engine,
        "workers": workers,
        "api_processes": api,
        "streams": streams,
    }
    settings = settings_from(StackSettings, chosen)
    if not servers_only:
        _refuse_wrong_settings(settings)
    if detach:
        from infra.detached import up_detached

        flags = ["--servers-only"] if servers_only else []
        flags += ["--while-pid", str(while_pid)] if while_pid is not None else []
        sys.exit(up_detached(settings, flags, json_lines=as_json_lines))
    from infra.stack import Plan, run_stack

    plan = Plan(settings, processes=not servers_only, while_pid=while_pid)
    report = _reporter(settings.data, json_lines=as_json_lines)
    sys.exit(asyncio.run(run_stack(plan, _without_key(report) if into_log else report)))


def _without_key(report: Report) -> Report:
    """The same for a log, which must not have the demo account's key."""
    from dataclasses import replace

    from schemas.ids import without_secrets

    def hidden(event: Event) -> None:
        report(replace(event, api_key=without_secrets(event.api_key)) if isinstance(event, Ready) else event)

    return hidden


def down(data: Data = None, as_json: AsJson = False) -> None:
    """Stop the local stack on a data folder. The data stays. Nothing to stop is no failure."""
    folder = _folder(data)
    pid = folder.supervisor_pid()
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        _wait_until(lambda: folder.supervisor_pid() is None, f"process {pid} did not stop", DOWN_TIMEOUT_S)
    left = leftovers.end(folder.path)
    stopped = pid is not None or left > 0
    if as_json:
        typer.echo(json.dumps({"stopped": stopped}))
    else:
        typer.echo("Stopped." if stopped else f"Nothing runs on {folder.path}.")


def status(data: Data = None, as_json: AsJson = False) -> None:
    """Each part with its pid, health and lag. Exit code 1 when the stack does not run."""
    folder = _folder(data)
    snapshot = _snapshot(folder) if folder.supervisor_pid() is not None else None
    parts = snapshot["parts"] if snapshot else []
    if as_json:
        members = ("name", "kind", "pid", "state", "address", "lag", "detail", "restarts", "metrics", "model")
        typer.echo(json.dumps({"parts": [{member: part.get(member) for member in members} for part in parts]}))
    elif snapshot is None:
        typer.echo(f"Nothing runs on {folder.path}.")
    else:
        for part in parts:
            lag = "-" if part["lag"] is None else part["lag"]
            typer.echo(
                f"{part['name']:<22}{part['state']:<12}pid {part['pid'] or '-':<9}lag {lag:<8}"
                f"{_resident(part['pid']):>8}  {part['address'] or part.get('model') or ''}  {part['detail']}".rstrip()
            )
        typer.echo(f"\nURL  {snapshot['url']}")
    if not parts:
        sys.exit(1)


def logs(
    part: Annotated[str | None, typer.Argument(help="A part's name, as `turnlog status` shows it.")] = None,
    data: Data = None,
    follow: Follow = False,
    as_json: AsJson = False,
) -> None:
    """The last lines of a part's log, or of all parts'. With --json each line is an object of `part` and `line`."""
    folder = _folder(data)
    paths = sorted(folder.logs.glob("*.log")) if folder.logs.is_dir() else []
    chosen = [path for path in paths if part is None or path.stem == part]
    if not chosen:
        known = ", ".join(path.stem for path in paths) or "none yet"
        raise StackError(f"There is no log of {part or 'any part'} in {folder.logs} (logs: {known}).")
    show = _json_line if as_json else _labelled_line if len(chosen) > 1 else _plain_line
    positions = {}
    for path in chosen:
        content = path.read_bytes()
        positions[path] = len(content)
        for line in content[-256 * 1024 :].decode(errors="replace").splitlines()[-SHOWN_LINES:]:
            show(path.stem, line)
    if follow:
        _follow(positions, show)


def fetch(as_json: AsJson = False) -> None:
    """Download what the local stack needs (Kafka, ClickHouse), so that `up` starts without waiting."""
    from infra.fetch import fetch as fetch_components

    settings = settings_from(StackSettings, {})

    def tell(line: str) -> None:
        typer.echo(json.dumps({"event": "progress", "detail": line}) if as_json else line)
        sys.stdout.flush()

    fetch_components(settings, tell)
    if as_json:
        typer.echo(json.dumps({"event": "done"}))


def _folder(data: Path | None) -> DataFolder:
    return DataFolder(settings_from(StackSettings, {"data": data}).data.absolute())


def _snapshot(folder: DataFolder) -> dict[str, Any] | None:
    from infra.stack import read_snapshot

    return read_snapshot(folder.snapshot)


def _refuse_wrong_settings(settings: StackSettings) -> None:
    """Leave with 2 when a part would refuse its settings; warn of misspelt ones."""
    from infra.settings_check import misspelt, wrong_settings

    for sentence in misspelt(os.environ):
        typer.echo(f"Warning: {sentence}", err=True)
    if wrong := wrong_settings(settings):
        leave_with(wrong)


def _reporter(data: Path, *, json_lines: bool) -> Report:
    chat = chat_command(data)

    def report(event: Event) -> None:
        line = as_json(event) if json_lines else as_text(event, chat)
        if line is not None:
            typer.echo(line, err=False)
            sys.stdout.flush()

    return report


def _json_line(part: str, line: str) -> None:
    typer.echo(json.dumps({"part": part, "line": line}))


def _labelled_line(part: str, line: str) -> None:
    typer.echo(f"{part}: {line}")


def _plain_line(_part: str, line: str) -> None:
    typer.echo(line)


def _follow(positions: dict[Path, int], show: Callable[[str, str], None]) -> None:
    try:
        while True:
            for path, position in positions.items():
                with path.open("rb") as stream:
                    size = stream.seek(0, os.SEEK_END)
                    begin = position if position <= size else 0  # the log was trimmed
                    stream.seek(begin)
                    content = stream.read()
                positions[path] = begin + len(content)
                for line in content.decode(errors="replace").splitlines():
                    show(path.stem, line)
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        return


def _resident(pid: int | None) -> str:
    if pid is None:
        return ""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        return f"{sum(process.memory_info().rss for process in family) / 2**20:.0f} MB"
    except psutil.Error:
        return ""


def _wait_until(condition: Callable[[], bool], sentence: str, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise StackError(f"{sentence} within {within_s:.0f} s.")
        time.sleep(POLL_S)
