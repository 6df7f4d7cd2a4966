"""The supervisor, with small real children."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from infra.errors import PartFailed
from infra.guard import Guard
from infra.parts import Health, Part, PartReport, Stage
from infra.probes import status_file
from infra.process_groups import exit_code
from infra.supervisor import Supervisor

SLEEPER = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"
)
PARENT = (
    "import subprocess, sys, signal; subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']); "
    "signal.pause()"
)


async def ready() -> Health:
    return Health("ready")


class Bench:
    """A supervisor whose reports are kept."""

    def __init__(self, folder: Path, watchdog_s: float = 60.0) -> None:
        self.folder = folder
        self.seen: list[PartReport] = []
        self.guard = Guard(grace_s=1)
        self.supervisor = Supervisor(self.seen.append, watchdog_s=watchdog_s, guard=self.guard)

    def part(self, name: str, script: str, stage: Stage = Stage.SERVERS, **options: object) -> Part:
        settings: dict[str, object] = {"probe": ready, "grace_s": 2.0, **options}
        return Part(
            name=name,
            kind="streams",
            stage=stage,
            command=(sys.executable, "-c", script),
            log=self.folder / f"{name}.log",
            **settings,  # type: ignore[arg-type]
        )

    def report(self, name: str) -> PartReport:
        (found,) = (report for report in self.supervisor.reports() if report.name == name)
        return found

    def states(self, name: str) -> list[str]:
        return [report.state for report in self.seen if report.name == name]


async def eventually(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - the condition is about other processes
            await asyncio.sleep(0.005)


@pytest.fixture
async def bench(tmp_path: Path):  # type: ignore[no-untyped-def]
    bench = Bench(tmp_path)
    yield bench
    await bench.supervisor.stop()
    bench.guard.dismiss()


async def test_a_killed_part_is_running_again_within_a_fraction_of_a_second(bench: Bench) -> None:
    await bench.supervisor.start([bench.part("one", SLEEPER)])
    first = bench.report("one").pid
    assert first is not None
    killed_at = time.monotonic()
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: bench.report("one").pid not in (None, first))
    assert time.monotonic() - killed_at < 0.5
    await eventually(lambda: bench.report("one").state == "ready")
    assert bench.report("one").restarts == 1
    assert "SIGKILL" in next(report.detail for report in bench.seen if report.state == "restarting")


async def test_a_part_that_cannot_start_fails_the_start_with_its_last_words(bench: Bench) -> None:
    async def never() -> Health:
        return Health("starting")

    with pytest.raises(PartFailed, match=r"(?s)broken ended with exit code 3 again and again.*the reason"):
        await bench.supervisor.start([bench.part("broken", "print('the reason'); raise SystemExit(3)", probe=never)])
    assert bench.report("broken").state == "failed"


async def test_a_part_with_wrong_settings_is_not_started_again(bench: Bench) -> None:
    async def never() -> Health:
        return Health("starting")

    script = "print('TURNLOG_X is wrong'); raise SystemExit(2)"
    with pytest.raises(PartFailed, match=r"(?s)its settings are wrong.*TURNLOG_X is wrong"):
        await bench.supervisor.start([bench.part("wrong", script, probe=never)])
    assert bench.states("wrong").count("starting") == 1


async def test_last_words_are_not_those_of_an_earlier_run(bench: Bench) -> None:
    async def never() -> Health:
        return Health("starting")

    (bench.folder / "wrong.log").write_text("words of yesterday\n")
    with pytest.raises(PartFailed) as failed:
        await bench.supervisor.start([bench.part("wrong", "raise SystemExit(2)", probe=never)])
    assert "yesterday" not in str(failed.value)
    assert "said nothing" in str(failed.value)


async def test_a_part_that_is_never_ready_fails_the_start_by_name(bench: Bench) -> None:
    async def never() -> Health:
        return Health("starting", "still thinking")

    with pytest.raises(PartFailed, match="slow was not ready after 0 s: still thinking"):
        await bench.supervisor.start([bench.part("slow", SLEEPER, probe=never, start_timeout_s=0.3)])


async def test_a_command_that_does_not_exist_fails_the_start(bench: Bench) -> None:
    part = Part("lost", "streams", Stage.SERVERS, ("/not/there",), bench.folder / "lost.log", ready)
    with pytest.raises(PartFailed, match="lost cannot be started"):
        await bench.supervisor.start([part])


async def test_parts_stop_in_reverse_order(bench: Bench) -> None:
    await bench.supervisor.start([bench.part("server", SLEEPER)])
    await bench.supervisor.start([bench.part("front", SLEEPER, Stage.FRONT)])
    await bench.supervisor.stop()
    stopped = [report.name for report in bench.seen if report.state == "stopped"]
    assert stopped == ["front", "server"]


async def test_a_part_that_ignores_sigterm_is_killed_after_its_grace(bench: Bench) -> None:
    await bench.supervisor.start([bench.part("stubborn", STUBBORN, grace_s=0.5)])
    pid = bench.report("stubborn").pid
    assert pid is not None
    await eventually(lambda: (bench.folder / "stubborn.log").read_text() != "")
    await bench.supervisor.stop()
    assert not psutil.pid_exists(pid)


async def test_a_child_that_somebody_else_waited_for_has_its_exit_code_for_all() -> None:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])  # noqa: ASYNC220 - starts at once
    assert await asyncio.gather(exit_code(child), exit_code(child)) == [3, 3]
    assert await exit_code(child) == 3


async def test_the_children_of_a_part_go_with_it(bench: Bench) -> None:
    await bench.supervisor.start([bench.part("parent", PARENT)])
    pid = bench.report("parent").pid
    assert pid is not None
    await eventually(lambda: len(psutil.Process(pid).children()) == 1)
    (child,) = psutil.Process(pid).children()
    await bench.supervisor.stop()
    await eventually(lambda: not is_running(child))


async def test_a_part_whose_status_goes_stale_is_killed_and_restarted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, watchdog_s=0.5)
    status = tmp_path / "status.json"
    script = (
        "import json, pathlib, signal, time\n"
        f"path = pathlib.Path({str(status)!r})\n"
        "path.write_text(json.dumps({'state': 'ready', 'detail': '', 'lag': 7, 'at_ms': time.time() * 1000}))\n"
        "signal.pause()"
    )
    try:
        await bench.supervisor.start([bench.part("mute", script, probe=status_file(status), status_file=status)])
        assert bench.report("mute").lag == 7
        await eventually(lambda: bench.report("mute").restarts >= 1)
        assert any("said nothing" in report.detail for report in bench.seen)
    finally:
        await bench.supervisor.stop()
        bench.guard.dismiss()


async def test_a_part_that_runs_elsewhere_is_watched_and_not_started(bench: Bench) -> None:
    part = Part("kafka", "kafka", Stage.SERVERS, None, bench.folder / "kafka.log", ready, address="10.0.0.1:9092")
    await bench.supervisor.start([part])
    assert bench.report("kafka").state == "ready"
    assert bench.report("kafka").pid is None


def is_running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
