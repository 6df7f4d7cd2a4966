"""`turnlog up`: from a data folder and settings to a running service, and back to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from inference_workers.engine import EngineUnavailable
from inference_workers.engines.llama_server import find_model
from inference_workers.settings import WorkerSettings
from infra import fetch, leftovers
from infra.data_folder import DataFolder, replace_json
from infra.errand import run_errand
from infra.errors import StackError
from infra.guard import Guard
from infra.model import require_engine
from infra.parts import Part, PartReport
from infra.ports import choose
from infra.processes import Replicas, probe_host, process_parts
from infra.report import Failed, PartChanged, Progress, Ready, Report, ServersReady, Stopped
from infra.servers import Servers, plan_servers, server_parts
from infra.settings import StackSettings
from infra.settings_check import told
from infra.supervisor import Supervisor
from schemas.models import DEFAULT_MODELS
from streams.settings import DispatchSettings

SNAPSHOT_EVERY_S = 1.0
PID_POLL_S = 0.5
PROVISION_TIMEOUT_S = 120.0
FETCH_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Plan:
    """What one `up` runs. ``processes`` False: the servers only, for tests and for work on one process."""

    settings: StackSettings
    processes: bool = True
    while_pid: int | None = None
    """Stop as if signalled when this process has ended."""


async def run_stack(plan: Plan, report: Report) -> int:
    """Bring the stack up, keep it until SIGINT or SIGTERM, take it down. The exit code.

    Everything that goes wrong is reported as one `Failed` and gives 1.
    """
    folder = DataFolder(plan.settings.data.absolute())
    try:
        refuse_early(plan)
        folder.prepare()
        with folder.in_use():
            async with _until_signal(plan.while_pid) as stop:
                return await _serve(plan, folder, report, stop)
    except StackError as failure:
        report(Failed(str(failure)))
        return 1


def refuse_early(plan: Plan) -> None:
    """Raise StackError for what can be known before a new data folder is made.

    On one that was used, what an earlier run left behind may still hold the ports: they are looked at later.
    """
    folder = DataFolder(plan.settings.data.absolute())
    if plan.processes and folder.is_new():
        _require_engine(plan.settings)
        _choose_api_port(plan.settings, folder)


async def _serve(plan: Plan, folder: DataFolder, report: Report, stop: asyncio.Event) -> int:
    left = await asyncio.to_thread(leftovers.end, folder.path)
    if left:
        report(Progress(f"Stopped {left} processes that an earlier run had left behind."))
    began = time.monotonic()
    guard = Guard()
    changed = asyncio.Event()

    def notify(part: PartReport) -> None:
        report(PartChanged(part, time.monotonic() - began))
        changed.set()

    supervisor = Supervisor(notify, watchdog_s=plan.settings.watchdog_s, guard=guard)
    bringing = asyncio.create_task(_bring_up(plan, folder, supervisor, report, began, changed))
    stopping = asyncio.create_task(stop.wait())
    failure: StackError | None = None
    try:
        await asyncio.wait({bringing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if bringing.done():
            bringing.result()
            await stop.wait()
    except StackError as error:
        failure = error
    finally:
        if supervisor.reports():
            report(Progress("Stopping."))
        for task in (bringing, stopping):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, StackError):
                await task
        stop.clear()
        await _stop(supervisor, stop)
        guard.dismiss()
        folder.snapshot.unlink(missing_ok=True)
    report(Failed(str(failure)) if failure else Stopped())
    return 1 if failure else 0


async def _bring_up(
    plan: Plan,
    folder: DataFolder,
    supervisor: Supervisor,
    report: Report,
    began: float,
    changed: asyncio.Event,
) -> None:
    """Start everything, say that it is ready, then keep the snapshot current until cancelled."""
    settings = plan.settings
    api_port = _api_port(settings, folder) if plan.processes else 0
    if plan.processes:
        _require_engine(settings)
    servers = plan_servers(settings, folder)
    url = f"http://{probe_host(settings.api_host)}:{api_port}"
    demo = folder.demo(int(time.time() * 1000))
    snapshot = asyncio.create_task(_keep_snapshot(folder, supervisor, url, changed))
    try:
        marked = leftovers.mark(folder.path)

        def tell(line: str) -> None:
            report(Progress(line))

        if not fetch.is_complete(settings):
            await run_errand(("fetch",), marked, tell, timeout_s=FETCH_TIMEOUT_S)
        makers = server_parts(servers, folder, marked, tell)
        await asyncio.gather(*(_make_and_start(supervisor, maker) for maker in makers))
        if plan.processes:
            env = _environment(settings, folder, servers)
            arguments = ("provision", "--quiet", "--demo-account", str(folder.path))
            await run_errand(arguments, env, tell, timeout_s=PROVISION_TIMEOUT_S)
            await supervisor.start(_processes(settings, folder, env, api_port))
            if not settings.planned:
                tell(without_workers())
            report(Ready(url, demo.key, time.monotonic() - began))
        else:
            report(ServersReady(servers.addresses.environment(), time.monotonic() - began))
        await snapshot
    finally:
        snapshot.cancel()


def without_workers() -> str:
    """What becomes of sends where no worker is started, by the environment, which is that of dispatch too."""
    none = "No worker runs (--workers 0)"
    if DispatchSettings().no_worker == "queue":
        return f"{none}: replies wait until one does."
    return f"{none}: sends are refused until one does (TURNLOG_NO_WORKER=refuse); those that come first wait."


async def _make_and_start(supervisor: Supervisor, make: Callable[[], Part]) -> None:
    await supervisor.start([await asyncio.to_thread(make)])


def _require_engine(settings: StackSettings) -> None:
    if settings.planned:
        require_engine(settings.engine)


def _api_port(settings: StackSettings, folder: DataFolder) -> int:
    port = _choose_api_port(settings, folder)
    folder.remember_ports({"api": port})
    return port


def _choose_api_port(settings: StackSettings, folder: DataFolder) -> int:
    return choose(
        settings.api_port,
        folder.remembered_ports().get("api"),
        part="the API",
        setting="--port",
        host=settings.api_host,
    )


def _environment(settings: StackSettings, folder: DataFolder, servers: Servers) -> dict[str, str]:
    """What every Turnlog process is told."""
    return {
        **leftovers.mark(folder.path),
        **servers.addresses.environment(),
        "TURNLOG_NAMESPACE": settings.namespace,
        "TURNLOG_SECRET": settings.secret or folder.secret(),
        "TURNLOG_ENGINE": settings.engine,
        "TURNLOG_DATA": str(folder.path),
        **_tokenizers(settings),
        "MALLOC_ARENA_MAX": "2",
        "PYTHONUNBUFFERED": "1",
    }


def _tokenizers(settings: StackSettings) -> dict[str, str]:
    """Where prompts of the model that comes with the stack are counted by its own tokenizer, if none is named."""
    if "TURNLOG_TOKENIZERS" in os.environ or settings.models or settings.engine != "llama_cpp":
        return {}
    try:
        return {"TURNLOG_TOKENIZERS": json.dumps({DEFAULT_MODELS[0].name: str(find_model())})}
    except EngineUnavailable:
        return {}


def _processes(settings: StackSettings, folder: DataFolder, env: dict[str, str], api_port: int) -> list[Part]:
    unnamed = any(worker.model is None for worker in settings.planned)
    model = WorkerSettings(**told(settings)).served().name if unnamed else None
    replicas = Replicas(settings.streams, settings.planned, settings.api_processes, settings.metrics, model)
    return process_parts(folder, replicas, env, settings.api_host, api_port)


async def _keep_snapshot(folder: DataFolder, supervisor: Supervisor, url: str, changed: asyncio.Event) -> None:
    while True:
        changed.clear()
        parts = [asdict(part) for part in supervisor.reports()]
        folder.trim_logs()
        replace_json(folder.snapshot, {"url": url, "supervisor": os.getpid(), "parts": parts})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), SNAPSHOT_EVERY_S)


async def _stop(supervisor: Supervisor, again: asyncio.Event) -> None:
    """Stop the parts; a second signal meanwhile kills them at once."""
    stopping = asyncio.create_task(supervisor.stop())
    impatience = asyncio.create_task(again.wait())
    await asyncio.wait({stopping, impatience}, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        supervisor.kill()
    await stopping
    impatience.cancel()


@contextlib.asynccontextmanager
async def _until_signal(while_pid: int | None) -> AsyncIterator[asyncio.Event]:
    """An event that SIGINT, SIGTERM and SIGHUP set, and the end of process ``while_pid``."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    watching = asyncio.create_task(_set_when_gone(while_pid, stop)) if while_pid is not None else None
    try:
        yield stop
    finally:
        if watching is not None:
            watching.cancel()
        for number in numbers:
            loop.remove_signal_handler(number)


async def _set_when_gone(pid: int, stop: asyncio.Event) -> None:
    while psutil.pid_exists(pid):  # noqa: ASYNC110 - another process's end sets no event of ours
        await asyncio.sleep(PID_POLL_S)
    stop.set()


def read_snapshot(path: Path) -> dict[str, Any] | None:
    """What the running supervisor last wrote; None when there is nothing to read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
