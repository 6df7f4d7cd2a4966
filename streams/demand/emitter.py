"""What is said about each closed window of the pools, in order and once. Pure but for its memory."""

from collections.abc import Callable, MutableMapping

from schemas.events import LoadMeasured
from streams.demand.kept import forget, load, save
from streams.demand.pool import Pool, Rules, Said, said
from streams.demand.windows import Window

POOLS_MAX = 200
"""Pools that are remembered; the one that was silent longest is forgotten. With slots of 10 minutes and 5 days each
has 4 * 144 * 5 numbers, about 0.1 MB."""


class Emitter:
    """Says each window of each pool once, in order of time; also after a restart, from what is kept."""

    def __init__(self, rules: Rules, kept: MutableMapping[str, bytes]) -> None:
        """Nothing is read from `kept` before a pool is heard.

        Args:
            rules: of forecasts and wishes.
            kept: a table that outlives the process.
        """
        self._rules = rules
        self._window_ms = rules.smoothing.window_ms
        self._kept = kept
        self._pools: dict[str, Pool] = {}
        self._loads: dict[str, dict[str, LoadMeasured]] = {}

    def hear(self, pool: str, window_start_ms: int) -> None:
        """Something was heard of the pool in this window."""
        if pool in self._pools:
            return
        known = load(self._kept, pool, self._rules.smoothing)
        self._pools[pool] = known or Pool(said_ms=window_start_ms - self._window_ms)
        if len(self._pools) > POOLS_MAX:
            silent = min((one for one in self._pools if one != pool), key=lambda one: self._pools[one].said_ms)
            del self._pools[silent]
            self._loads.pop(silent, None)
            forget(self._kept, silent)

    def measured(self, load: LoadMeasured) -> None:
        """How many wait. Of a pool that was never heard otherwise it is news only when something waits."""
        if _waiting(load):
            self.hear(load.pool, load.measured_at_ms // self._window_ms * self._window_ms)
        if load.pool in self._pools:
            self._loads.setdefault(load.pool, {})[load.model] = load

    def say(self, until_ms: int, read: Callable[[str, int], Window | None]) -> list[Said]:
        """The windows up to the one that begins at `until_ms`, of those that exist; at most the last three.

        Args:
            until_ms: start of the newest closed window.
            read: the window of a pool that begins at a time, None when nothing was heard.
        """
        told: list[Said] = []
        for name in list(self._pools):
            before = self._pools[name]
            oldest_ms = max(before.said_ms + self._window_ms, until_ms - 2 * self._window_ms)
            for start_ms in range(oldest_ms, until_ms + 1, self._window_ms):
                waiting = self._waiting(name, start_ms)
                window = read(name, start_ms) or (Window() if waiting else None)
                if window is None:
                    continue
                after, events = said(name, self._pools[name], window, start_ms, waiting, self._rules)
                self._pools[name] = after
                told.extend(events)
            if self._pools[name] is not before:
                save(self._kept, name, before, self._pools[name], self._rules.smoothing)
        return told

    def _waiting(self, pool: str, start_ms: int) -> int:
        """As measured in the window or after it; who has not measured for so long does not count."""
        loads = self._loads.get(pool, {}).values()
        return sum(_waiting(load) for load in loads if load.measured_at_ms >= start_ms)


def _waiting(load: LoadMeasured) -> int:
    return load.waiting_paid + load.waiting_free
