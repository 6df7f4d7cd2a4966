"""`turnlog up` with the real servers: the command line as a person uses it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra import leftovers

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]


def environment(**more: str) -> dict[str, str]:
    """Nothing of the machine's own servers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNLOG_")}
    return kept | ({"TURNLOG_CACHE": cache} if (cache := os.environ.get("TURNLOG_CACHE")) else {}) | more


def turnlog(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "infra", *arguments],
        env=env or environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def status(data: Path) -> dict[str, dict[str, Any]]:
    return {part["name"]: part for part in json.loads(turnlog("status", "--json", "--data", str(data)).stdout)["parts"]}


def eventually(condition: Callable[[], Any], within_s: float = 60.0) -> Any:
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline
        pause.wait(0.05)
    return value


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    data = tmp_path_factory.mktemp("stack")
    done = turnlog("up", "--servers-only", "--detach", "--json", "--data", str(data))
    assert done.returncode == 0, done.stdout + done.stderr
    yield data
    turnlog("down", "--data", str(data))


def test_status_names_each_part_with_its_members(running: Path) -> None:
    parts = status(running)
    assert list(parts) == ["kafka", "redis", "clickhouse"] or set(parts) == {"kafka", "redis", "clickhouse"}
    for part in parts.values():
        assert {"name", "kind", "pid", "state", "address", "lag"} <= part.keys()
        assert part["state"] == "ready"
        assert psutil.pid_exists(part["pid"])


def test_every_server_listens_on_the_loopback_interface_only(running: Path) -> None:
    for part in status(running).values():
        family = [psutil.Process(part["pid"]), *psutil.Process(part["pid"]).children(recursive=True)]
        bound = {c.laddr.ip for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
        assert {address.removeprefix("::ffff:") for address in bound} == {"127.0.0.1"}, part["name"]


def test_a_second_up_on_the_same_folder_is_refused_in_one_sentence(running: Path) -> None:
    for extra in ([], ["--detach"]):
        second = turnlog("up", "--servers-only", "--data", str(running), *extra)
        assert second.returncode == 1
        (sentence,) = (second.stdout + second.stderr).splitlines()
        assert "already running" in sentence
        assert "turnlog down" in sentence


@pytest.mark.parametrize("name", ["kafka", "redis", "clickhouse"])
def test_a_killed_server_comes_back_on_the_same_address(running: Path, name: str) -> None:
    before = status(running)[name]
    os.kill(before["pid"], signal.SIGKILL)

    def back() -> bool:
        now = status(running)[name]
        return bool(now["state"] == "ready" and now["pid"] not in (None, before["pid"]))

    eventually(back)
    now = status(running)[name]
    assert now["address"] == before["address"]
    assert now["restarts"] == before["restarts"] + 1


def test_logs_of_a_part_can_be_read(running: Path) -> None:
    assert "KafkaRaftServer" in turnlog("logs", "kafka", "--data", str(running)).stdout
    unknown = turnlog("logs", "nothing", "--data", str(running))
    assert unknown.returncode == 1
    assert "kafka" in unknown.stderr


def test_nothing_is_left_after_down_and_the_data_and_ports_are_kept(tmp_path: Path) -> None:
    up = ["up", "--servers-only", "--detach", "--json", "--data", str(tmp_path)]
    first = json.loads(turnlog(*up).stdout.splitlines()[-1])
    pids = [part["pid"] for part in status(tmp_path).values()]
    assert turnlog("down", "--data", str(tmp_path)).returncode == 0
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not leftovers.find(tmp_path)
    assert turnlog("status", "--json", "--data", str(tmp_path)).returncode == 1
    again = json.loads(turnlog(*up).stdout.splitlines()[-1])
    assert again["environment"] == first["environment"]
    assert turnlog("down", "--data", str(tmp_path)).returncode == 0
    assert turnlog("down", "--data", str(tmp_path)).returncode == 0, "nothing to stop is no failure"


def test_ctrl_c_stops_everything_and_exits_with_0(tmp_path: Path) -> None:
    up = subprocess.Popen(
        [sys.executable, "-m", "infra", "up", "--servers-only", "--json", "--data", str(tmp_path)],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert up.stdout is not None
    for line in up.stdout:
        if json.loads(line)["event"] == "ready":
            break
    up.send_signal(signal.SIGINT)
    last = up.stdout.read().splitlines()[-1]
    assert up.wait(60) == 0
    assert json.loads(last) == {"event": "stopped"}
    assert not leftovers.find(tmp_path)


def test_nothing_outlives_a_supervisor_that_is_killed_and_the_next_up_works(tmp_path: Path) -> None:
    up = ["up", "--servers-only", "--detach", "--json", "--data", str(tmp_path)]
    assert turnlog(*up).returncode == 0
    supervisor = int((tmp_path / "lock").read_text())
    os.kill(supervisor, signal.SIGKILL)
    # At once, while the parts of the killed one are still stopping.
    assert turnlog(*up).returncode == 0
    os.kill(int((tmp_path / "lock").read_text()), signal.SIGKILL)
    eventually(lambda: not [process for process in leftovers.find(tmp_path) if is_running(process)])


def is_running(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("setting", "part"),
    [("TURNLOG_KAFKA_PORT", "kafka"), ("TURNLOG_REDIS_PORT", "redis"), ("TURNLOG_CLICKHOUSE_PORT", "clickhouse")],
)
def test_a_port_that_is_taken_is_named(tmp_path: Path, setting: str, part: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = turnlog("up", "--servers-only", "--data", str(tmp_path), env=environment(**{setting: str(port)}))
    assert done.returncode == 1
    assert f"Port {port} for {part} is in use" in done.stdout
    assert setting in done.stdout


def test_the_api_port_that_is_taken_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = turnlog("up", "--data", str(tmp_path), "--port", str(port), "--engine", "scripted")
    assert done.returncode == 1
    assert f"Port {port} for the API is in use" in done.stdout
    assert not (tmp_path / "kafka").exists()


def test_a_data_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = turnlog("up", "--data", str(tmp_path / "file"))
    assert done.returncode == 1
    assert "--data" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_servers_that_are_there_are_used_and_not_started(running: Path, tmp_path: Path) -> None:
    there = {part["name"]: part["address"] for part in status(running).values()}
    env = environment(
        TURNLOG_KAFKA_BOOTSTRAP=there["kafka"],
        TURNLOG_REDIS_URL=there["redis"],
        TURNLOG_CLICKHOUSE_URL=there["clickhouse"],
    )
    assert turnlog("up", "--servers-only", "--detach", "--data", str(tmp_path), env=env).returncode == 0
    try:
        assert {(part["pid"], part["state"]) for part in status(tmp_path).values()} == {(None, "ready")}
    finally:
        turnlog("down", "--data", str(tmp_path))
    assert {part["state"] for part in status(running).values()} == {"ready"}
