"""All streams of a process: how many there may be, their heartbeats and send timeouts, and their end at shutdown.

Rules:

1. What is done at one time is bounded, however many streams are open: each tick looks at a share of them, and wakes
   a share of those that are due. Ten thousand that fell silent together do not beat together.
2. A stop ends streams share by share over half of its time, so that their clients do not come back all at once.
"""

import asyncio
import contextlib
import math
from typing import Protocol

from api.metrics import Metrics
from api.problems import unavailable
from api.reading import Patience

LAP_S_MAX = 1.0
LAPS = 16
"""Every stream is looked at this often within the shorter of the heartbeat and the send timeout."""
TICKS = 20
"""Of one lap."""
TICK_S_MIN = 0.002
STOP_TICK_S = 0.05
STOP_SHARE_MIN = 100
"""So many streams are ended at a time at least."""
GOLDEN = (math.sqrt(5) - 1) / 2


class Stoppable(Protocol):
    """As much of a source as matters here."""

    def stop(self) -> None:
        """End at the next boundary."""


class Open(Protocol):
    """A stream that is being sent: an `EventStream`, or a feed's response."""

    @property
    def source(self) -> Stoppable:
        """Where its bytes come from."""

    def tick(self, now_s: float, patience: Patience) -> bool | None:
        """Time has passed; true: it was woken for a heartbeat."""


class OpenStreams:
    """See the rules of this module."""

    def __init__(self, patience: Patience, metrics: Metrics, streams_max: int) -> None:
        self.lap_s = min(LAP_S_MAX, min(patience.heartbeat_s, patience.send_timeout_s) / LAPS)
        """Between two looks at the same stream, where no more beat than usual."""
        self._tick_s = max(TICK_S_MIN, self.lap_s / TICKS)
        self._patience = patience
        self._metrics = metrics
        self._streams_max = streams_max
        self._open: dict[Open, None] = {}
        self._lap: list[Open] = []
        self._phase = 0.0
        self._none_open = asyncio.Event()
        self._stopping = False

    def admit(self) -> None:
        """Raises `Problem` 503 when this process takes no more streams."""
        full = len(self._open) >= self._streams_max
        if full or self._stopping:
            detail = "This process takes no more streams now." if full else "This process is stopping."
            raise unavailable("streams", detail, 1.0)

    def phase(self) -> float:
        """A number from 0 to 1 for a new stream, so that any run of them is spread evenly."""
        self._phase = (self._phase + GOLDEN) % 1.0
        return self._phase

    def add(self, stream: Open) -> None:
        """A stream begins."""
        self._open[stream] = None
        self._none_open.clear()
        self._metrics.streams_open.inc()
        if self._stopping:
            stream.source.stop()

    def remove(self, stream: Open) -> None:
        """A stream is over."""
        self._open.pop(stream, None)
        if not self._open:
            self._none_open.set()
        self._metrics.streams_open.dec()

    def cut_off(self) -> None:
        """A stream's client took nothing for too long."""
        self._metrics.streams_cut_off.inc()

    async def keep(self) -> None:
        """Look after the streams, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._tick_s if self._open else max(self._tick_s, self.lap_s))
            self.look(loop.time())

    def look(self, now_s: float) -> int:
        """One tick: look at the next share of the streams; how many were woken."""
        if not (self._lap and self._open):
            self._lap = list(self._open)
        woken = 0
        beats_max = math.ceil(2 * len(self._open) * self._tick_s / self._patience.heartbeat_s)
        for _ in range(min(len(self._lap), math.ceil(len(self._open) * self._tick_s / self.lap_s))):
            stream = self._lap.pop()
            if stream in self._open and stream.tick(now_s, self._patience):
                woken += 1
                if woken >= beats_max:
                    break
        return woken

    async def stop(self, timeout_s: float) -> None:
        """End all streams at a boundary of events; those that do not end in time are dropped with the process."""
        self._stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._end(timeout_s / 2)

    async def _end(self, over_s: float) -> None:
        streams = list(self._open)
        share = max(STOP_SHARE_MIN, math.ceil(len(streams) * STOP_TICK_S / over_s))
        for first in range(0, len(streams), share):
            if first:
                await asyncio.sleep(STOP_TICK_S)
            for stream in streams[first : first + share]:
                stream.source.stop()
        if self._open:
            await self._none_open.wait()
