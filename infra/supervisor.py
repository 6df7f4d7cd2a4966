"""Keeps the parts of the stack running: starts them in stages, restarts them, stops them in reverse.

Rules:
1. A part is ready when its probe says so, never because time has passed.
2. An exit is noticed by waiting for the child, within milliseconds, and answered as
   `infra.restarts` decides: at once the first time.
3. A part whose status file is older than the watchdog's limit is killed and restarted.
4. Every part is a process group; stopping one ends the whole group, first kindly, then not.
5. The guard knows every group that runs, so that nothing outlives this process.
6. A part that dies again and again before it was ever ready ends the start: `PartFailed`. One of ours whose settings
   are wrong is never started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from infra.errors import PartFailed
from infra.guard import Guard
from infra.parts import Health, Part, PartReport, Stage, State
from infra.probes import read_status
from infra.process_groups import exit_code, group_gone, how_it_ended, kill_group, last_lines
from infra.restarts import Restarts, after_death
from streams.log.process import BAD_SETTINGS, TAKEN_OVER

PROBE_WHILE_STARTING_S = 0.05
PROBE_WHEN_READY_S = 1.0
LOG_TAIL_LINES = 12
SERVERS = {"kafka", "redis", "clickhouse"}
"""Kinds whose exit codes are not ours."""

Notify = Callable[[PartReport], None]
"""Called when a part's state changes."""


@dataclass
class _Running:
    """What the supervisor knows of one part now."""

    part: Part
    state: State = "waiting"
    health: Health = field(default_factory=lambda: Health("starting"))
    process: subprocess.Popen[bytes] | None = None
    restarts: Restarts = field(default_factory=Restarts)
    was_ready: bool = False
    was_ever_ready: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    failure: PartFailed | None = None
    keeper: asyncio.Task[None] | None = None
    log_start: int = 0
    """Size of the log when the process that runs now was started."""

    def report(self) -> PartReport:
        """Its public face."""
        return PartReport(
            name=self.part.name,
            kind=self.part.kind,
            pid=self.process.pid if self.process else None,
            state=self.state,
            address=self.part.address,
            lag=self.health.lag,
            detail=self.health.detail,
            restarts=self.restarts.total,
            metrics=self.part.metrics,
            model=self.part.model,
        )


class Supervisor:
    """Runs parts. All methods belong to the event loop that it was made in."""

    def __init__(self, notify: Notify, *, watchdog_s: float, guard: Guard) -> None:
        self._notify = notify
        self._watchdog_s = watchdog_s
        self._guard = guard
        self._parts: dict[str, _Running] = {}
        self._stopping = False

    def reports(self) -> list[PartReport]:
        """All parts, in the order in which they were started."""
        return [running.report() for running in self._parts.values()]

    def groups(self) -> list[int]:
        """The process groups that run now."""
        return [running.process.pid for running in self._parts.values() if running.process is not None]

    async def start(self, parts: Iterable[Part]) -> None:
        """Start the parts, all at once, and return when each has been ready. Raises PartFailed."""
        begun = [_Running(part) for part in parts]
        for running in begun:
            self._parts[running.part.name] = running
            running.keeper = asyncio.create_task(self._keep(running), name=running.part.name)
        waits = [asyncio.create_task(self._await_settled(running)) for running in begun]
        try:
            await asyncio.gather(*waits)
        finally:
            for wait in waits:
                wait.cancel()

    async def stop(self) -> None:
        """Stop all parts, the last stage first; returns when nothing of them runs."""
        self._stopping = True
        for stage in sorted(Stage, reverse=True):
            of_stage = [running for running in self._parts.values() if running.part.stage == stage]
            await asyncio.gather(*(self._stop_one(running) for running in of_stage))

    def kill(self) -> None:
        """Kill every part at once: for a person who cannot wait."""
        self._stopping = True
        for group in self.groups():
            kill_group(group, signal.SIGKILL)

    async def _await_settled(self, running: _Running) -> None:
        part = running.part
        try:
            async with asyncio.timeout(part.start_timeout_s):
                await running.settled.wait()
        except TimeoutError:
            raise PartFailed(
                f"{part.name} was not ready after {part.start_timeout_s:.0f} s"
                f"{': ' + running.health.detail if running.health.detail else ''}; see {part.log}."
            ) from None
        if running.failure is not None:
            raise running.failure

    async def _keep(self, running: _Running) -> None:
        """Spawn, watch and restart one part until it is hopeless or the stack stops."""
        command = running.part.command
        if command is None:
            await self._watch(running, time.monotonic())
            return
        while not self._stopping:
            born = time.monotonic()
            try:
                process = self._spawn(running, command)
            except OSError as failure:
                self._give_up(running, f"{running.part.name} cannot be started: {failure}.")
                return
            watch = asyncio.create_task(self._watch(running, born))
            code = await exit_code(process)
            watch.cancel()
            kill_group(process.pid, signal.SIGKILL)  # what the part may have left behind
            running.process = None
            self._guard.protect(self.groups())
            if self._stopping:
                return
            bad_settings = code == BAD_SETTINGS and running.part.kind not in SERVERS
            decision = after_death(
                running.restarts,
                lived_s=time.monotonic() - born,
                was_ready=running.was_ready,
                was_ever_ready=running.was_ever_ready,
                taken_over=code == TAKEN_OVER,
                bad_settings=bad_settings,
            )
            running.restarts = decision.restarts
            if decision.hopeless:
                why = ": its settings are wrong" if bad_settings else " again and again"
                ended = f"{running.part.name} {how_it_ended(code)}{why}."
                self._give_up(running, ended, self._tail(running))
                return
            delay = f" in {decision.delay_s:g} s" if decision.delay_s else ""
            running.health = Health("starting", f"{how_it_ended(code)}; restarting{delay}")
            self._enter(running, "restarting")
            await asyncio.sleep(decision.delay_s)

    def _spawn(self, running: _Running, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        part = running.part
        if part.status_file is not None:
            part.status_file.unlink(missing_ok=True)
        with part.log.open("ab", buffering=0) as log:
            running.log_start = log.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **part.env},
                process_group=0,
            )
        running.process = process
        self._guard.protect(self.groups())
        running.health = Health("starting")
        running.was_ready = False
        self._enter(running, "starting")
        return process

    async def _watch(self, running: _Running, born: float) -> None:
        """Probe a living part, follow its state, kill it when its status file has gone stale."""
        part = running.part
        while True:
            running.health = await part.probe()
            if self._stopping:
                return
            if running.health.state == "ready":
                running.was_ready = running.was_ever_ready = True
                running.settled.set()
            state: State = running.health.state
            if state in ("starting", "degraded"):
                state = "degraded" if running.was_ready else "starting"
            if state != running.state:
                self._enter(running, state)
            if self._is_stale(part, born) and running.process is not None:
                running.health = Health("degraded", f"said nothing for {self._watchdog_s:.0f} s: killed")
                self._enter(running, "degraded")
                kill_group(running.process.pid, signal.SIGKILL)
                return
            await asyncio.sleep(PROBE_WHEN_READY_S if running.state == "ready" else PROBE_WHILE_STARTING_S)

    def _is_stale(self, part: Part, born: float) -> bool:
        if part.status_file is None or time.monotonic() - born < self._watchdog_s:
            return False
        status = read_status(part.status_file)
        return status is None or time.time() - float(status.get("at_ms", 0)) / 1000 > self._watchdog_s

    async def _stop_one(self, running: _Running) -> None:
        process = running.process
        if process is not None:
            self._enter(running, "stopping")
            kill_group(process.pid, signal.SIGTERM)
            if not await group_gone(process.pid, running.part.grace_s):
                kill_group(process.pid, signal.SIGKILL)
                await exit_code(process)
        if running.keeper is not None:
            running.keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running.keeper
        running.process = None
        running.health = Health("stopping")
        if running.state != "failed":
            self._enter(running, "stopped")

    def _give_up(self, running: _Running, sentence: str, last_words: str = "") -> None:
        running.failure = PartFailed(f"{sentence} {last_words}".rstrip())
        running.health = Health("stopping", sentence)
        self._enter(running, "failed")
        running.settled.set()

    def _enter(self, running: _Running, state: State) -> None:
        running.state = state
        self._notify(running.report())

    def _tail(self, running: _Running) -> str:
        lines = last_lines(running.part.log.read_bytes(), running.log_start, LOG_TAIL_LINES)
        if not lines:
            return f"It said nothing ({running.part.log})."
        return f"Its last words ({running.part.log}):\n  " + "\n  ".join(lines)
