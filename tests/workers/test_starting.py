"""A worker that is told to stop while its engine loads ends at once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deployment import Deployment

WITHIN_S = 60
AT_ONCE_S = 2

HOLDING = """
import asyncio, hashlib, sys, uvloop
from pathlib import Path
from inference_workers.__main__ import starting
from streams.log.process import Process, stop_on_signals
from streams.log.status import StatusFile

process = Process("worker", StatusFile(Path(sys.argv[1])), stop_on_signals())

async def load() -> None:
    with starting(process, "starting the engine"):
        if sys.argv[2] == "loop":
            await asyncio.sleep(600)
        elif sys.argv[2] == "thread":
            await asyncio.to_thread(hashlib.pbkdf2_hmac, "sha256", b"", b"", 2**31 - 1)
        else:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)

uvloop.run(load())
"""
"""A load that waits, that works in a thread, or that holds the main thread outside of the interpreter."""


def state(status: Path) -> tuple[str, str]:
    try:
        told = json.loads(status.read_text())
    except FileNotFoundError:
        return "", ""
    return told["state"], told["detail"]


def ends_at_once(process: "subprocess.Popen[bytes]", status: Path, number: signal.Signals) -> None:
    """Once its engine is starting, the signal ends it."""
    try:
        deadline = time.monotonic() + WITHIN_S
        while not state(status)[1].startswith("starting the engine"):
            assert process.poll() is None
            assert time.monotonic() < deadline
        process.send_signal(number)
        assert process.wait(AT_ONCE_S) == 0
        assert state(status)[0] == "stopping"
    finally:
        process.kill()
        process.wait(WITHIN_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
@pytest.mark.parametrize("holds", ["loop", "thread", "process"])
def test_a_signal_during_the_load_ends_the_process_whatever_the_load_holds(
    holds: str, number: signal.Signals, tmp_path: Path
) -> None:
    status = tmp_path / "status.json"
    process = subprocess.Popen([sys.executable, "-c", HOLDING, str(status), holds])
    ends_at_once(process, status, number)


@pytest.mark.servers
def test_a_worker_that_is_told_to_stop_while_it_loads_is_gone_at_once(provisioned: Deployment, tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    environment = {
        **os.environ,
        **provisioned.environment(),
        "TURNLOG_STATUS_FILE": str(status),
        "TURNLOG_ENGINE": "simulated",
        "TURNLOG_SIMULATED_START_S": "15",
    }
    process = subprocess.Popen([sys.executable, "-m", "inference_workers"], env=environment)
    ends_at_once(process, status, signal.SIGTERM)
