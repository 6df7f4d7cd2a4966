"""What is around every process: settings, status, exit codes, logs, traces."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import structlog
from pydantic import model_validator

from schemas.codec import Envelope
from schemas.events import ConversationDeleted
from streams.log.logs import concerning, configure_logging
from streams.log.process import (
    BAD_SETTINGS,
    FAILED,
    TAKEN_OVER,
    UNDECIDED,
    Process,
    ProcessSettings,
    main,
    stop_on_signals,
)
from streams.log.status import StatusFile
from streams.log.steps import Fenced, LogError, OffsetExpired, TooManyDead
from streams.log.trace import child, new_trace, trace_id


@pytest.fixture(autouse=True)
def _restored():
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    for number, handler in signals.items():
        signal.signal(number, handler)


def _serve(error: Exception | None):
    def serve(settings: ProcessSettings, process: Process) -> None:
        if error is not None:
            raise error

    return serve


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (LogError("x"), FAILED),
        (Fenced("x"), TAKEN_OVER),
        (OffsetExpired("x"), UNDECIDED),
        (TooManyDead("x"), UNDECIDED),
    ],
)
def test_the_exit_code_says_what_to_do(error: Exception | None, code: int) -> None:
    assert main("test", ProcessSettings, _serve(error), []) == code


def test_check_names_each_wrong_setting_and_starts_nothing(monkeypatch, capsys) -> None:
    monkeypatch.setenv("TURNLOG_REPLICA", "-1")
    monkeypatch.setenv("TURNLOG_NAMESPACE", "Not Good")
    assert main("test", ProcessSettings, _serve(AssertionError()), ["--check"]) == BAD_SETTINGS
    said = capsys.readouterr().err
    assert "TURNLOG_REPLICA" in said
    assert "TURNLOG_NAMESPACE" in said


class _Together(ProcessSettings):
    entries: tuple[dict[str, int], ...] = ()
    needed: str

    @model_validator(mode="after")
    def _never(self) -> "_Together":
        raise ValueError("TURNLOG_A and TURNLOG_B belong together")


def test_a_sentence_about_several_settings_stands_alone(monkeypatch, capsys) -> None:
    monkeypatch.setenv("TURNLOG_NEEDED", "x")
    assert main("test", _Together, _serve(None), ["--check"]) == BAD_SETTINGS
    assert capsys.readouterr().err == "test: TURNLOG_A and TURNLOG_B belong together\n"


def test_a_missing_setting_and_one_inside_of_a_list_are_named(monkeypatch, capsys) -> None:
    monkeypatch.setenv("TURNLOG_ENTRIES", '[{}, {"a": "x"}]')
    assert main("test", _Together, _serve(None), ["--check"]) == BAD_SETTINGS
    told = capsys.readouterr().err
    assert "TURNLOG_ENTRIES[1].a: Input should be a valid integer" in told
    assert "TURNLOG_NEEDED is not set" in told


def test_check_of_good_settings_starts_nothing(capsys) -> None:
    assert main("test", ProcessSettings, _serve(AssertionError()), ["--check"]) == 0
    assert "good" in capsys.readouterr().out


def test_the_status_file_holds_the_newest_state_and_the_lag(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    status = StatusFile(path)
    status.report("starting", "", None)
    status.report("ready", "fine", 7)
    status.report("ready", "not written, a second has not passed", 8)
    told = json.loads(path.read_text())
    assert (told["state"], told["detail"], told["lag"]) == ("ready", "fine", 7)
    assert abs(told["at_ms"] - time.time() * 1000) < 5_000
    assert list(tmp_path.iterdir()) == [path]


PROGRAM = """
import sys
from streams.log.process import ProcessSettings, main
def serve(settings, process):
    while not process.stop.wait(0.01):
        process.turned(3)
sys.exit(main("test", ProcessSettings, serve, sys.argv[1:]))
"""


def test_a_process_is_ready_while_it_turns_and_stops_on_sigterm(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    environment = {**os.environ, "TURNLOG_STATUS_FILE": str(path)}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        while not (path.exists() and json.loads(path.read_text())["state"] == "ready"):
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 0
    assert json.loads(path.read_text())["state"] == "stopping"
    assert [json.loads(line)["event"] for line in said.splitlines()] == ["started", "stopped"]


def test_a_stop_that_comes_while_the_flag_is_looked_at_is_heard(monkeypatch) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        stop = stop_on_signals()
        with stop._cond:  # as the main thread has it inside of `wait`
            signal.raise_signal(signal.SIGTERM)
        assert stop.wait(20)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_log_lines_carry_the_ids_of_the_event_in_hand(capfd) -> None:
    configure_logging("test")
    event = ConversationDeleted(conversation_id="conv_1", account_id="a", deleted_at_ms=0)
    trace = new_trace()
    with concerning(Envelope(event=event, source="s", traceparent=trace)):
        structlog.get_logger("x").info("seen")
        logging.getLogger("library").warning("also seen")
    structlog.get_logger("x").info("after")
    seen, also, after = (json.loads(line) for line in capfd.readouterr().err.splitlines())
    for line in (seen, also):
        assert line["conversation_id"] == "conv_1"
        assert line["trace_id"] == trace_id(trace)
        assert line["process"] == "test"
    assert "conversation_id" not in after


def test_a_child_stays_in_its_trace() -> None:
    trace = new_trace()
    assert trace_id(child(trace)) == trace_id(trace)
    assert child(trace) != trace


@pytest.mark.parametrize(
    "bad", [None, "", "00-0-0-0", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "00-" + "a" * 32 + "-" + "b" * 16 + "-01x"]
)
def test_a_bad_traceparent_begins_a_new_trace(bad: str | None) -> None:
    assert trace_id(bad) is None
    assert trace_id(child(bad)) is not None
