"""Nothing outlives a supervisor that was killed with SIGKILL."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import psutil

SUPERVISOR = """
import signal, subprocess, sys
from infra.guard import Guard
guard = Guard(grace_s=1)
kind = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], process_group=0)
stubborn = subprocess.Popen(
    [sys.executable, "-c",
     "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ok', flush=True)\\nwhile 1: signal.pause()"],
    process_group=0, stdout=subprocess.PIPE)
stubborn.stdout.readline()
guard.protect([kind.pid, stubborn.pid])
print(guard.pid, kind.pid, stubborn.pid, flush=True)
signal.pause()
"""


def test_the_guard_ends_every_group_when_the_supervisor_is_killed() -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR], stdout=subprocess.PIPE, text=True)
    assert supervisor.stdout is not None
    pids = [int(word) for word in supervisor.stdout.readline().split()]
    processes = [psutil.Process(pid) for pid in pids]
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    eventually(lambda: not any(is_running(process) for process in processes))


def eventually(condition: Callable[[], bool], within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.02)


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
