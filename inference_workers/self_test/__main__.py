"""`turnlog worker --self-test`, or `python -m inference_workers.self_test`: the worker's engine, without Kafka.

Exit codes: 0 nothing failed; 1 a check failed, or the engine cannot be used; 2 the settings are wrong.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable

import msgspec
import structlog
import uvloop
from pydantic import ValidationError

from inference_workers.engine import EngineDead, EngineError, EngineUnavailable
from inference_workers.registry import check, make, runs
from inference_workers.self_test.checks import CHECK_S, CHECKS, failed, guarded, ok, streams
from inference_workers.self_test.report import Report, Result, line, report, summary
from inference_workers.self_test.subject import Subject
from inference_workers.settings import WorkerSettings
from streams.log.process import BAD_SETTINGS, FAILED, explain

STREAMS_MAX = 16
CANCEL_MS = 250.0
SHUTDOWN_S = 20.0

Tell = Callable[[Result], None]


async def examine(settings: WorkerSettings, tell: Tell, *, wanted: int = 0, cancel_ms: float = CANCEL_MS) -> Report:
    """Start the engine, check it, stop it. `wanted`: streams at once, 0: as many as there are slots, up to 16.

    Raises:
        pydantic.ValidationError: the engine's settings are wrong.
    """
    results: list[Result] = []

    def add(*more: Result) -> None:
        results.extend(more)
        for result in more:
            tell(result)

    model = runs(settings)
    began = time.monotonic()
    try:
        engine = make(settings)
        await engine.start()
    except (EngineUnavailable, EngineDead) as error:
        add(failed("start", str(error)))
        return report(settings.engine, model, results)
    took_s = time.monotonic() - began
    subject = Subject(engine, cancel_ms)
    info = subject.info
    told = f"loaded in {took_s:.1f} s: {info.slots} slots, {info.context_tokens} tokens of context, KV {info.kv_tokens}"
    add(ok("start", told, load_s=took_s))
    for name, examined in CHECKS.items():
        add(await guarded(name, examined(subject)))
    add(*await _streams(subject, wanted or min(info.slots, STREAMS_MAX)))
    add(await guarded("shutdown", _shutdown(subject)))
    return report(settings.engine, model, results)


async def _streams(subject: Subject, count: int) -> list[Result]:
    try:
        async with asyncio.timeout(CHECK_S):
            return await streams(subject, count)
    except TimeoutError:
        return [failed("streams at once", f"not done after {CHECK_S:.0f} s")]
    except EngineError as error:
        return [failed("streams at once", f"{type(error).__name__}: {error}")]


async def _shutdown(subject: Subject) -> Result:
    began = time.monotonic()
    await subject.engine.shutdown(0.0)
    took_s = time.monotonic() - began
    if took_s > SHUTDOWN_S:
        return failed("shutdown", f"took {took_s:.1f} s", shutdown_s=took_s)
    return ok("shutdown", f"took {took_s:.1f} s", shutdown_s=took_s)


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="turnlog worker --self-test", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object, the last line")
    parser.add_argument("--streams", type=int, default=0, help="generations at once; by default the slots, up to 16")
    parser.add_argument("--cancel-ms", type=float, default=CANCEL_MS, help="how long a cancel may take (%(default)s)")
    options = parser.parse_args(arguments)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        settings = WorkerSettings()
        check(settings)
    except ValidationError as error:
        sys.stderr.write(f"self-test: {explain(error)}\n")
        return BAD_SETTINGS

    def tell(result: Result) -> None:
        if not options.json:
            _say(line(result))

    whole = uvloop.run(examine(settings, tell, wanted=options.streams, cancel_ms=options.cancel_ms))
    _say(msgspec.json.encode(whole).decode() if options.json else summary(whole))
    return 0 if whole.ok else FAILED


def _say(text: str) -> None:
    """Print a line. A reader that has gone, as `| head` does, takes nothing from the test or its exit code."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
