"""What a self-test found, for people and for programs."""

import platform
import time
from collections import Counter
from typing import Literal

import msgspec

Outcome = Literal["ok", "failed", "skipped"]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One check. `measured` are its numbers, the unit in each name."""

    name: str
    outcome: Outcome
    detail: str
    measured: dict[str, float] = {}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole self-test; `ok` when nothing failed."""

    engine: str
    model: str
    ok: bool
    machine: str
    at: str
    checks: tuple[Result, ...]


def report(engine: str, model: str, results: list[Result]) -> Report:
    """The results together."""
    return Report(
        engine=engine,
        model=model,
        ok=all(result.outcome != "failed" for result in results),
        machine=f"{platform.platform()}, Python {platform.python_version()}",
        at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        checks=tuple(results),
    )


def line(result: Result) -> str:
    """One line."""
    return f"{result.outcome:8} {result.name:18} {result.detail}"


def summary(whole: Report) -> str:
    """The last line."""
    count = Counter(check.outcome for check in whole.checks)
    told = ", ".join(f"{number} {outcome}" for outcome, number in count.items())
    return f"{'passed' if whole.ok else 'FAILED'}: {whole.engine} with {whole.model}: {told}"
