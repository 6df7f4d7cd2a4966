"""What every process of ours has around its work: settings, logging, signals, its status file, its exit code.

A process is a settings class and a function of (settings, process):

    def serve(settings: TurnsSettings, process: Process) -> None:
        log = KafkaLog(settings.kafka_bootstrap, settings.namespace, process.name)
        run(log, Turns(...), ..., stop=process.stop, on_turn=lambda loop: process.turned(loop.lag()))

    if __name__ == "__main__":
        sys.exit(main("streams-turns", TurnsSettings, serve, sys.argv[1:]))

Exit codes: 0 stopped in order; 1 failed, start again; 2 the settings are wrong; 3 another instance has taken over,
start again; 4 an operator has to decide (`OffsetExpired`, `TooManyDead`), starting again will not help.
"""

import argparse
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import TypeVar

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, start_http_server
from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from streams.log.log import Expired
from streams.log.logs import configure_logging
from streams.log.status import State, StatusFile
from streams.log.steps import Fenced, LogError, OffsetExpired, TooManyDead

FAILED, BAD_SETTINGS, TAKEN_OVER, UNDECIDED = 1, 2, 3, 4


def database_of(namespace: str) -> str:
    """The ClickHouse database of a namespace: a name that needs no quotes."""
    return namespace.replace("-", "_").replace(".", "_")


class ProcessSettings(BaseSettings):
    """Settings that all processes have, from `TURNLOG_…` variables."""

    model_config = SettingsConfigDict(env_prefix="TURNLOG_", frozen=True, extra="ignore")

    namespace: str = Field(default="turnlog", pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    kafka_bootstrap: str = Field(default="127.0.0.1:9092", min_length=1)
    replica: int = Field(default=0, ge=0, le=9999)
    """Ordinal among the processes of this kind; the same again after a restart."""
    log_level: str = Field(default="INFO", pattern="(?i)^(debug|info|warning|error)$")
    log_json: bool = True
    status_file: Path | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """0: no metrics are served."""
    offset_expired: Expired = "stop"
    """What to do when the log has lost records that were not processed yet: `stop`, or go on at the `earliest`."""


S = TypeVar("S", bound=ProcessSettings)


class Process:
    """The running process, as its work sees it."""

    def __init__(self, name: str, status: StatusFile, stop: Flag) -> None:
        self.name = name
        self.stop = stop
        self._status = status

    def turned(self, lag: int | None = None, *, detail: str = "", degraded: bool = False) -> None:
        """The work goes on: call this in each turn. Without it for a minute the process is taken for hung."""
        if self.stop.is_set():
            self._status.report("stopping", detail, lag)
        else:
            self._status.report("degraded" if degraded else "ready", detail, lag)

    def starting(self, detail: str = "") -> None:
        """Not ready yet, but getting there."""
        self._status.report("starting", detail, None)


def stop_on_signals() -> Flag:
    """A flag that SIGTERM and SIGINT set.

    In a thread: a handler runs in the middle of whatever the main thread does, which may be to wait for this flag with
    its lock in hand; setting it there would wait for that lock for ever.
    """
    stop = Flag()

    def ask(_: int, __: object) -> None:
        Thread(target=stop.set, name="stop", daemon=True).start()

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    return stop


def main(
    name: str,
    settings_class: type[S],
    serve: Callable[[S, Process], None],
    arguments: Sequence[str],
    registry: CollectorRegistry = REGISTRY,
    also: Callable[[S], None] = lambda _: None,
) -> int:
    """Run a process to its end; its exit code. `--check` validates the settings and connects to nothing.

    `also` validates what the settings lead to, and raises `pydantic.ValidationError`.
    """
    parser = argparse.ArgumentParser(prog=name)
    parser.add_argument("--check", action="store_true", help="validate the settings and exit")
    only_check = parser.parse_args(arguments).check
    try:
        settings = settings_class()
        also(settings)
    except ValidationError as error:
        sys.stderr.write(f"{name}: {explain(error)}\n")
        return BAD_SETTINGS
    if only_check:
        sys.stdout.write(f"{name}: settings are good\n")
        return 0
    configure_logging(name, settings.log_level, json=settings.log_json)
    logger = structlog.get_logger(name)
    status = StatusFile(settings.status_file)
    process = Process(name, status, stop_on_signals())
    process.starting()
    if settings.metrics_port:
        start_http_server(settings.metrics_port, settings.metrics_host, registry)
    logger.info("started", replica=settings.replica, namespace=settings.namespace)
    code, state, detail = _outcome(lambda: serve(settings, process))
    if code:
        logger.critical("ended", code=code, reason=detail)
    else:
        logger.info("stopped")
    status.report(state, detail, None, now=True)
    return code


def _outcome(work: Callable[[], None]) -> tuple[int, State, str]:
    try:
        work()
    except (OffsetExpired, TooManyDead) as error:
        return UNDECIDED, "degraded", str(error)
    except Fenced as error:
        return TAKEN_OVER, "stopping", str(error)
    except LogError as error:
        return FAILED, "stopping", str(error)
    return 0, "stopping", ""


_NAMES_ITS_SETTING = re.compile(r"TURNLOG_[A-Z_]+: ")


def explain(error: ValidationError) -> str:
    """One sentence per wrong setting, by the name of its variable. Values are not shown."""
    return "; ".join(_explained(one) for one in error.errors())


def _explained(error: ErrorDetails) -> str:
    if error["type"] == "missing":
        return f"{variable(error)} is not set"
    reason = reason_of(error)
    return reason if stands_alone(error) else f"{variable(error)}: {reason}"


def variable(error: ErrorDetails) -> str:
    """The variable that an error is about: `TURNLOG_API_PORT`, and inside of a list `TURNLOG_…[0].base_url`."""
    name, *inside = error["loc"] or ("",)
    places = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in inside)
    return f"TURNLOG_{str(name).upper()}{''.join(places)}"


def reason_of(error: ErrorDetails) -> str:
    """What is wrong, without pydantic's own words."""
    return error["msg"].removeprefix("Value error, ")


def stands_alone(error: ErrorDetails) -> bool:
    """The reason is the whole sentence: it is about several settings together, or names another one than its own."""
    return not error["loc"] or _NAMES_ITS_SETTING.match(reason_of(error)) is not None
