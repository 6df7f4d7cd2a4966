"""Takes a guard out of every process that starts with this folder on its path, so that a run can show what it is for.

Python imports this module by its name before anything else. `TURNLOG_CHAOS_WITHOUT` names the guard; the module that
holds it is changed right after its import. The product knows nothing of this.
"""

import asyncio
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

LATE_S = 0.2


def offset_fence(functions: Any) -> None:
    """The function of Redis appends whatever comes."""
    fence = "if skipped ~= 0 or closed == '1' then"
    if fence not in functions.SOURCE:
        raise LookupError("buffer.lua has no such fence")
    functions.SOURCE = functions.SOURCE.replace(fence, "if false then")


def attempt_fence(reply: Any) -> None:
    """The fold takes pieces and ends of any generation."""
    reply._owns = lambda _reply, generation_id, _attempt: generation_id != ""


def subscribe_first(reading: Any) -> None:
    """A reader reads the list, subscribes a moment later, and does not look again."""

    class ListFirst(reading.Reader):
        __slots__ = ("_looks",)

        def follow(self) -> None:
            """Not yet."""

        async def _available(self) -> bytes:
            if self._subscription is None:
                self._looks = False
                frames: bytes = await self._from_list()
                if not frames and not self._again:
                    await asyncio.sleep(LATE_S)
                    super().follow()
                    self._looks, self._again = self._again, False
                return frames
            found: bytes = await super()._available()
            return found

        def _look_again(self) -> None:
            if self._looks:
                super()._look_again()
            self._looks = True

    reading.Reader = ListFirst


GUARDS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "offset-fence": ("projections.redis.functions", offset_fence),
    "attempt-fence": ("schemas.reply", attempt_fence),
    "subscribe-first": ("api.reading", subscribe_first),
}


class AfterImport(importlib.abc.MetaPathFinder):
    """Lets a function at a module when it has been imported."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self._name = name
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, with a loader that changes what it has loaded."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            self._change(module)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


if guard := os.environ.get("TURNLOG_CHAOS_WITHOUT"):
    sys.meta_path.insert(0, AfterImport(*GUARDS[guard]))
