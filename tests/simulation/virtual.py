"""An event loop in virtual time, as far as the API's readers need one, and tasks that are stepped by hand."""

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from typing import Any


class VirtualLoop:
    """As much of an event loop as a reader asks for, in virtual time. Coroutines are driven by `Task`."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._timers: list[tuple[int, int, Callable[[], object]]] = []
        self._count = 0

    def time(self) -> float:
        return self._now_ms() / 1000

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._timers, (self._now_ms() + round(delay_s * 1000), self._count, callback))

    def run_due(self) -> None:
        """Call what is due."""
        while self._timers and self._timers[0][0] <= self._now_ms():
            heapq.heappop(self._timers)[2]()

    async def after(self, delay_ms: int) -> None:
        """Wait."""
        if delay_ms:
            waiting = self.create_future()
            self.call_later(delay_ms / 1000, lambda: waiting.done() or waiting.set_result(None))
            await waiting


class Task:
    """A coroutine that goes on when it is stepped and what it waits for has come."""

    def __init__(self, loop: VirtualLoop, begin: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._loop = loop
        self._begin = begin
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._waiting: asyncio.Future[Any] | None = None
        self.done = False
        self.result: Any = None

    def step(self) -> bool:
        """Whether it has come to its end. What the coroutine raises is raised."""
        if self.done or (self._waiting is not None and not self._waiting.done()):
            return self.done
        if self._coroutine is None:
            self._coroutine = self._begin()
        asyncio._set_running_loop(self._loop)  # type: ignore[arg-type]
        try:
            self._waiting = self._coroutine.send(None)
        except StopIteration as ended:
            self.done, self.result = True, ended.value
        finally:
            asyncio._set_running_loop(None)
        return self.done

    def close(self) -> None:
        """The client has left."""
        if self._coroutine is not None:
            self._coroutine.close()
