"""Runs client programs: each is a file of its own, written as its library's documentation says.

A program is told where the service is by `TURNLOG_URL` and `TURNLOG_API_KEY`, may read lines from its input, and
prints one JSON object a line. What it prints to its error output is shown when it fails.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from system.product import eventually

from tests.node import NODE

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
Said = dict[str, Any]


def required(name: str) -> Path:
    """A program of the system, or of the environment. Fails when it is missing: these tests are never skipped."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin")
    assert found, f"{name} is missing: run tests/clients/install.sh"
    return Path(found)


class Program:
    """A client program that runs. A context manager, which ends it."""

    def __init__(self, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        self._child = subprocess.Popen(
            [str(word) for word in command],
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.said: list[Said] = []
        """Everything that it has printed, one object a line; a line that is no JSON is {"line": …}."""
        self._errors: list[str] = []
        self._listeners = [
            threading.Thread(target=work, daemon=True) for work in (self._listen, self._listen_to_errors)
        ]
        for listener in self._listeners:
            listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end()

    def tell(self, **message: Any) -> None:
        """One JSON object to the program's input."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(message) + "\n")
        self._child.stdin.flush()

    def until(self, what: str, condition: Callable[[list[Said]], Any], *, within_s: float = 30.0) -> Any:
        """The first true value of a condition on what it has said. Fails when the program ends before."""

        def look() -> Any:
            over = self._child.poll() is not None
            if over:
                for listener in self._listeners:
                    listener.join(5)
            found = condition(self.said)
            assert found or not over, f"{what}: the program has ended\n{self._told()}"
            return found

        try:
            return eventually(what, look, within_s=within_s)
        except AssertionError as failure:
            raise AssertionError(f"{failure}\n{self._told()}") from failure

    def wait(self, *, within_s: float = 60.0) -> list[Said]:
        """Until it ends by itself, and well; everything that it said."""
        try:
            code = self._child.wait(within_s)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"the program did not end within {within_s} s\n{self._told()}") from None
        for listener in self._listeners:
            listener.join(5)
        assert code == 0, f"the program exits with {code}\n{self._told()}"
        return self.said

    def end(self) -> None:
        """Close its input, which is the sign to stop, and kill it when it does not."""
        if self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.close()
        try:
            self._child.wait(3)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(10)

    def _listen(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                said = None
            self.said.append(said if isinstance(said, dict) else {"line": line.rstrip("\n")})

    def _listen_to_errors(self) -> None:
        assert self._child.stderr is not None
        self._errors += self._child.stderr

    def _told(self) -> str:
        said = "\n".join(json.dumps(said, ensure_ascii=False) for said in self.said[-20:])
        return f"it said (the last of {len(self.said)}):\n{said}\nand on its error output:\n{''.join(self._errors)}"


def node(program: str | Path, *arguments: str, env: Mapping[str, str] | None = None) -> Program:
    """Start a program on Node.js, by its name in the folder `programs` or by its path."""
    assert NODE.exists(), f"{NODE} is missing: run make setup"
    assert (HERE / "node_modules").is_dir(), "tests/clients/node_modules is missing: run tests/clients/install.sh"
    return Program([NODE, PROGRAMS / program, *arguments], env)


def python(program: str | Path, *arguments: str, env: Mapping[str, str] | None = None) -> Program:
    """Start a program in Python, by its name in the folder `programs` or by its path."""
    return Program([sys.executable, "-u", PROGRAMS / program, *arguments], env)


def shell(script: str | Path, *arguments: str, env: Mapping[str, str] | None = None) -> Program:
    """Start a shell script, by its name in the folder `programs` or by its path; it may use curl."""
    required("curl")
    return Program(["sh", "-eu", PROGRAMS / script, *arguments], env)


def run_node(
    program: str | Path, *arguments: str, env: Mapping[str, str] | None = None, within_s: float = 60.0
) -> list[Said]:
    """Run a program on Node.js to its end: the objects that it printed."""
    with node(program, *arguments, env=env) as running:
        return running.wait(within_s=within_s)


def run_python(
    program: str | Path, *arguments: str, env: Mapping[str, str] | None = None, within_s: float = 60.0
) -> list[Said]:
    """Run a program in Python to its end: the objects that it printed."""
    with python(program, *arguments, env=env) as running:
        return running.wait(within_s=within_s)
