"""Headless Chromium, driven by `programs/chromium.mjs`: tabs, and what their pages say on the console.

A page says something by `console.log(JSON.stringify({…}))`.
"""

import itertools
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from clients.programs import Program, Said, node, required


class Tab:
    """One tab, with storage of its own."""

    def __init__(self, program: Program, name: str) -> None:
        self._program = program
        self._name = name
        self._answers = itertools.count(1)

    @property
    def said(self) -> list[Said]:
        """Everything that its pages have said, also before a reload."""
        return [said["said"] for said in self._program.said if said.get("tab") == self._name and "said" in said]

    def open(self, url: str, **parameters: str) -> None:
        """Go to a page, which finds the parameters behind its `#`."""
        self._do("open", url=f"{url}#{urlencode(parameters)}" if parameters else url)

    def reload(self) -> None:
        """As the user does."""
        self._do("reload")

    def close(self) -> None:
        """Close it."""
        self._do("close")

    def run(self, code: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        return self._do("run", code=code)

    def until(self, what: str, condition: Callable[[list[Said]], Any], *, within_s: float = 30.0) -> Any:
        """The first true value of a condition on what its pages have said."""
        return self._program.until(what, lambda _: condition(self.said), within_s=within_s)

    def _do(self, what: str, **how: Any) -> Any:
        number = f"{self._name}.{next(self._answers)}"
        self._program.tell(number=number, tab=self._name, do=what, **how)

        def answered(said: list[Said]) -> Said | None:
            return next((one for one in said if one.get("answer") == number), None)

        answer = self._program.until(f"the browser does {what} {how}", answered)
        assert "failed" not in answer, answer["failed"]
        return answer.get("value")


class Chromium:
    """A running browser. A context manager, which ends it."""

    def __init__(self) -> None:
        self._program = node("chromium.mjs", str(required("chromium")))
        self._tabs = itertools.count(1)
        self._program.until("the browser is there", lambda said: any(one.get("ready") for one in said))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._program.end()

    def tab(self) -> Tab:
        """A new, empty tab."""
        return Tab(self._program, f"tab{next(self._tabs)}")
