"""Turnlog's own processes as parts of the local stack."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from infra.data_folder import DataFolder
from infra.parts import Kind, Part, Probe, Stage
from infra.ports import free_port
from infra.probes import both, http_answers, status_file
from infra.worker_plan import PlannedWorker

STREAM_ROLES = ("turns", "dispatch", "settlement", "demand")
PROJECTION_ROLES = ("buffer", "views", "limits")
ALONE_ROLES = ("meters",)
"""Projections that `turnlog up` does not start: they need something of somebody else."""
MODEL_START_TIMEOUT_S = 900.0
"""Loading a large model onto GPUs takes minutes; one that cannot be loaded ends by itself."""
START_TIMEOUT_S = 90.0


@dataclass(frozen=True)
class Replicas:
    """How many of each process run; ``streams`` counts turns and dispatch, which share work by partition.

    ``metrics``: each process serves them, on a free port. ``model``: of workers that are planned without one.
    """

    streams: int
    workers: tuple[PlannedWorker, ...]
    api: int
    metrics: bool = False
    model: str | None = None


def process_parts(
    folder: DataFolder, replicas: Replicas, env: Mapping[str, str], host: str, api_port: int
) -> list[Part]:
    """All of Turnlog's processes, api last. API processes share a port; several have one of their own beside."""
    counts = {"turns": replicas.streams, "dispatch": replicas.streams}
    streams = [
        _part(folder, f"streams-{role}-{number}", "streams", ("streams", role), env, metrics=replicas.metrics)
        for role in STREAM_ROLES
        for number in range(counts.get(role, 1))
    ]
    projections = [
        _part(folder, f"projections-{role}-0", "projections", ("projections", role), env, metrics=replicas.metrics)
        for role in PROJECTION_ROLES
    ]
    workers = [_worker(folder, worker, replicas, env) for worker in replicas.workers]
    own_ports = [free_port() for _ in range(replicas.api)] if replicas.api > 1 else [None]
    front = [_api(folder, number, env, host, api_port, own_port) for number, own_port in enumerate(own_ports)]
    return [*streams, *projections, *workers, *front]


STAGES: Mapping[Kind, Stage] = {"streams": Stage.READERS, "projections": Stage.READERS, "worker": Stage.WORKERS}


def _worker(folder: DataFolder, worker: PlannedWorker, replicas: Replicas, env: Mapping[str, str]) -> Part:
    own = {**env, **worker.env()}
    part = _part(folder, worker.name, "worker", ("inference_workers",), own, metrics=replicas.metrics)
    return replace(part, model=worker.model or replicas.model)


def _part(
    folder: DataFolder, name: str, kind: Kind, module: tuple[str, ...], env: Mapping[str, str], *, metrics: bool
) -> Part:
    port = free_port() if metrics else 0
    status = folder.run / f"{name}.status.json"
    replica = name.rpartition("-")[2]
    return Part(
        name=name,
        kind=kind,
        stage=STAGES[kind],
        command=(sys.executable, "-m", *module),
        log=folder.log(name),
        probe=status_file(status),
        metrics=f"http://127.0.0.1:{port}/metrics" if port else None,
        env={
            "TURNLOG_REPLICA": replica,
            **env,
            "TURNLOG_STATUS_FILE": str(status),
            **({"TURNLOG_METRICS_PORT": str(port), "TURNLOG_METRICS_HOST": "127.0.0.1"} if port else {}),
        },
        status_file=status,
        start_timeout_s=MODEL_START_TIMEOUT_S if kind == "worker" else START_TIMEOUT_S,
    )


def _api(folder: DataFolder, number: int, env: Mapping[str, str], host: str, port: int, own_port: int | None) -> Part:
    name = f"api-{number}"
    status = folder.run / f"{name}.status.json"
    reached_at = own_port or port
    probe: Probe = both(status_file(status), http_answers(probe_host(host), reached_at, "/readyz"))
    return Part(
        name=name,
        kind="api",
        stage=Stage.FRONT,
        command=(sys.executable, "-m", "api"),
        log=folder.log(name),
        probe=probe,
        address=f"http://{probe_host(host)}:{reached_at}",
        metrics=f"http://{probe_host(host)}:{reached_at}/metrics",
        env={
            **env,
            "TURNLOG_REPLICA": str(number),
            "TURNLOG_STATUS_FILE": str(status),
            "TURNLOG_API_HOST": host,
            "TURNLOG_API_PORT": str(port),
            **({"TURNLOG_API_OWN_PORT": str(own_port)} if own_port else {}),
        },
        status_file=status,
        start_timeout_s=START_TIMEOUT_S,
    )


def probe_host(host: str) -> str:
    """Where to reach a server that listens on ``host``."""
    return "127.0.0.1" if host in {"0.0.0.0", "::"} else host  # noqa: S104 - compared, not bound
