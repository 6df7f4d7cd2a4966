"""What a part of the stack is, and what can be said about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Literal

Kind = Literal["kafka", "redis", "clickhouse", "api", "streams", "worker", "projections"]
State = Literal["waiting", "starting", "ready", "degraded", "restarting", "stopping", "stopped", "failed"]


class Stage(IntEnum):
    """Parts start stage by stage and stop in reverse; within a stage all at once."""

    SERVERS = 0
    READERS = 1
    WORKERS = 2
    FRONT = 3


@dataclass(frozen=True)
class Health:
    """What a probe found. ``lag`` is the records not yet processed, where the part says so."""

    state: Literal["starting", "ready", "degraded", "stopping"]
    detail: str = ""
    lag: int | None = None


Probe = Callable[[], Awaitable[Health]]
"""Looks once; never raises and never takes longer than a few seconds."""


@dataclass(frozen=True)
class Part:
    """One child process: how it starts, how it is known to be ready, how it stops.

    A part without a command runs elsewhere and is only watched.
    """

    name: str
    kind: Kind
    stage: Stage
    command: tuple[str, ...] | None
    log: Path
    probe: Probe
    address: str | None = None
    metrics: str | None = None
    """Where it serves Prometheus metrics, if it does."""
    model: str | None = None
    """The model that a worker serves."""
    env: Mapping[str, str] = field(default_factory=dict)
    status_file: Path | None = None
    """Written by the part about once a second; the watchdog reads its age. None: no watchdog."""
    start_timeout_s: float = 60.0
    grace_s: float = 10.0


@dataclass(frozen=True)
class PartReport:
    """One part at one moment, as `turnlog status` shows it."""

    name: str
    kind: Kind
    pid: int | None
    state: State
    address: str | None
    lag: int | None
    detail: str = ""
    restarts: int = 0
    metrics: str | None = None
    model: str | None = None
