"""Exit codes and sentences of the command line, without servers."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra.cli import app
from infra.cli_bench import known

COMMANDS = (
    ["up"],
    ["down"],
    ["status"],
    ["logs"],
    ["fetch"],
    ["chat"],
    ["provision"],
    ["api"],
    ["streams"],
    ["worker"],
    ["projections"],
    ["bench"],
    ["rebuild"],
    ["reconcile"],
    ["archive"],
    ["report", "usage"],
    ["report", "latency"],
    *(["accounts", name] for name in ("create", "list", "show", "tier", "limits", "rename", "close")),
    *(["users", name] for name in ("add", "list", "remove", "unknown")),
    *(["keys", name] for name in ("create", "list", "revoke")),
)


def turnlog(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNLOG_")}
    return subprocess.run(
        [sys.executable, "-m", "infra", *arguments],
        env=kept | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, "--help"])
    assert done.exit_code == 0
    assert "Usage: " in done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["up", "--workers", "many"],
        ["up", "--engine", "steam"],
        ["up", "--port", "70000"],
        ["streams"],
        ["streams", "sideways"],
        ["projections"],
        ["accounts", "create", "Not An Id"],
        ["accounts", "create", "me", "--tier", "gold"],
        ["accounts", "create", "me", "--organisation", "No Id"],
        ["accounts", "tier", "me", "gold"],
        ["accounts", "limits", "me"],
        ["accounts", "limits", "me", "--tokens-per-minute", "0"],
        ["accounts", "limits", "me", "--spend-hard", "much"],
        ["accounts", "limits", "me", "--spend-hard", "-1"],
        ["accounts", "limits", "me", "--spend-hard=-0"],
        ["accounts", "limits", "me", "--spend-hard", "1e-13"],
        ["accounts", "limits", "me", "--models", ","],
        ["accounts", "limits", "me", "--priority", "urgent"],
        ["accounts", "limits", "me", "--lift", ","],
        ["accounts", "limits", "me", "--lift", "running_max"],
        ["accounts", "limits", "me", "--lift", "spend_hard", "--spend-hard", "1"],
        ["accounts", "limits", "me", "--models", "gpt-0"],
        ["users", "add", "me", ""],
        ["users", "unknown", "me", "perhaps"],
        ["keys", "create", "me", "--expires", "soon"],
        ["keys", "create", "me", "--expires", "2020-01-01"],
        ["keys", "create", "me", "--expires", "2090-01-01T00:00:00"],
        ["provision"],
        ["bench", "nonsense"],
    ],
    ids=" ".join,
)
def test_bad_usage_exits_with_2_and_says_why(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("TURNLOG_")]:
        monkeypatch.delenv(name)
    done = CliRunner().invoke(app, arguments, env={"TURNLOG_DATA": str(tmp_path)})
    assert done.exit_code == 2, done.output
    assert done.stderr
    assert isinstance(done.exception, SystemExit)


def test_a_wrong_setting_is_named_with_its_variable(tmp_path: Path) -> None:
    done = turnlog("up", TURNLOG_DATA=str(tmp_path), TURNLOG_API_PORT="none")
    assert done.returncode == 2
    assert "TURNLOG_API_PORT" in done.stderr


def test_where_nothing_runs_status_fails_and_down_does_not(tmp_path: Path) -> None:
    assert turnlog("status", "--json", "--data", str(tmp_path)).stdout.strip() == '{"parts": []}'
    assert turnlog("down", "--data", str(tmp_path)).returncode == 0


def test_chat_without_a_stack_says_how_to_get_one(tmp_path: Path) -> None:
    done = turnlog("chat", "--data", str(tmp_path))
    assert done.returncode == 1
    assert "turnlog up" in done.stderr


def test_a_key_without_a_broker_says_how_to_name_one(tmp_path: Path) -> None:
    done = turnlog("keys", "create", "demo", "--data", str(tmp_path))
    assert done.returncode == 1
    assert "TURNLOG_KAFKA_BOOTSTRAP" in done.stderr
    assert str(tmp_path) in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--port", "99999"], "--port is 99999"),
        (["--workers", "500"], "--workers is '500': a pool has at most 16 workers."),
        (["--workers", "nothing=1"], "TURNLOG_MODELS has no model 'nothing'; it has smollm2-135m-instruct."),
        (["--api", "0"], "--api is 0"),
        (["--engine", "steam"], "--engine is 'steam'"),
    ],
)
def test_a_wrong_option_is_named_as_it_was_typed(arguments: list[str], sentence: str) -> None:
    done = CliRunner().invoke(app, ["up", *arguments])
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_a_setting_that_a_part_would_refuse_is_refused_before_anything_starts(tmp_path: Path) -> None:
    data = tmp_path / "new"
    done = turnlog("up", "--detach", "--data", str(data), TURNLOG_BUFFER_RETENTION_S="5")
    assert done.returncode == 2
    assert "TURNLOG_BUFFER_RETENTION_S is '5'" in done.stderr
    assert not data.exists()


@pytest.mark.parametrize("extra", [[], ["--detach"]])
def test_a_used_port_is_refused_before_a_new_folder_is_made(tmp_path: Path, extra: list[str]) -> None:
    data = tmp_path / "new"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = turnlog("up", "--data", str(data), "--engine", "scripted", "--port", port, *extra)
    assert done.returncode == 1
    assert done.stdout.startswith(f"Error: Port {port} for the API is in use")
    assert not data.exists()


@pytest.mark.parametrize("command", [["up", "--servers-only"], ["status"]])
def test_a_file_as_data_folder_is_called_a_file(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "file").write_text("")
    done = turnlog(*command, "--data", str(tmp_path / "file"))
    assert done.returncode == 1
    assert "is a file" in done.stdout + done.stderr


def test_provisioning_a_broker_that_is_not_there_is_one_sentence() -> None:
    nowhere = {
        "TURNLOG_KAFKA_BOOTSTRAP": "127.0.0.1:1",
        "TURNLOG_REDIS_URL": "redis://127.0.0.1:1/0",
        "TURNLOG_CLICKHOUSE_URL": "http://127.0.0.1:1",
    }
    done = turnlog("provision", **nowhere)
    assert done.returncode == 1
    assert "Kafka at 127.0.0.1:1 does not answer" in done.stderr


def test_settings_come_from_a_env_file_but_the_environment_wins(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TURNLOG_API_PORT=seventy\nTURNLOG_DATA=from-file\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNLOG_")}
    command = [sys.executable, "-m", "infra", "up"]
    done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "'seventy'" in done.stderr
    kept["TURNLOG_API_PORT"] = "eighty"
    done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=60, check=False)
    assert "'eighty'" in done.stderr


def test_benchmarks_are_the_modules_that_can_be_run(tmp_path: Path) -> None:
    (tmp_path / "resume.py").write_text('if __name__ == "__main__":\n    pass\n')
    (tmp_path / "table.py").write_text("")
    assert known(tmp_path) == ["resume"]
    assert known(tmp_path / "absent") == []
