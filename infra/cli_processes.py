"""`turnlog api`, `streams`, `worker`, `projections`: one process in the foreground, for containers."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from infra.processes import ALONE_ROLES, PROJECTION_ROLES, STREAM_ROLES

Check = Annotated[bool, typer.Option("--check", help="Validate the settings and exit.")]
Role = Annotated[str | None, typer.Argument(help="Which one.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(api)
    app.command()(streams)
    app.command()(worker)
    app.command()(projections)


def api(check: Check = False) -> None:
    """The HTTP API."""
    _become("api", (), check=check)


def streams(role: Role = None, check: Check = False) -> None:
    """One of the stream processes: turns, dispatch, settlement or demand."""
    _become("streams", (_known(role, STREAM_ROLES),), check=check)


def worker(
    check: Check = False,
    engine: Annotated[str | None, typer.Option(help="The engine; wins over TURNLOG_ENGINE.")] = None,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Start the engine without Kafka, check it, exit.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The self-test as one JSON object, the last line.")] = False,
    streams: Annotated[
        int, typer.Option(min=0, help="Generations at once in the self-test; 0: the slots, up to 16.")
    ] = 0,
) -> None:
    """A worker with its engine (TURNLOG_ENGINE), or that engine's self-test."""
    if engine is not None:
        os.environ["TURNLOG_ENGINE"] = engine
    if self_test and not check:
        told = ("--streams", str(streams), *(("--json",) if json else ()))
        _become("inference_workers.self_test", told, check=False)
    if json or streams:
        raise typer.BadParameter("--json and --streams belong to --self-test.")
    _become("inference_workers", (), check=check)


def projections(role: Role = None, check: Check = False) -> None:
    """One of the projections: buffer, views, limits or meters."""
    _become("projections", (_known(role, (*PROJECTION_ROLES, *ALONE_ROLES)),), check=check)


def _known(role: str | None, roles: tuple[str, ...]) -> str:
    if role not in roles:
        raise typer.BadParameter(f"say which one: {', '.join(roles)}.")
    return role


def _become(module: str, arguments: tuple[str, ...], *, check: bool) -> None:
    """Replace this process, so that signals and the exit code are the process's own."""
    if check:
        from infra.settings_check import misspelt

        for sentence in misspelt(os.environ):
            typer.echo(f"Warning: {sentence}", err=True)
    sys.stdout.flush()
    flags = ("--check",) if check else ()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments, *flags])  # noqa: S606 - our own modules
