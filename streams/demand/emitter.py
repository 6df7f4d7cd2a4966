"""What is said about each closed window of the fleets, in order and once. Pure but for its memory."""

from collections.abc import Callable, MutableMapping

from schemas.events import LoadMeasured
from streams.demand.fleet import Fleet, Known, Rules, Said, said, waiting_of
from streams.demand.kept import forget, load, save
from streams.demand.windows import Window

FLEETS_MAX = 200
"""Fleets that are remembered; the one that was silent longest is forgotten. With slots of 10 minutes and 5 days each
has 4 * 144 * 5 numbers, about 0.1 MB."""


class Emitter:
    """Says each window of each fleet once, in order of time; also after a restart, from what is kept."""

    def __init__(self, rules: Rules, kept: MutableMapping[str, bytes]) -> None:
        """Nothing is read from `kept` before a fleet is heard.

        Args:
            rules: of forecasts and wishes.
            kept: a table that outlives the process.
        """
        self._rules = rules
        self._window_ms = rules.smoothing.window_ms
        self._kept = kept
        self._fleets: dict[Fleet, Known] = {}
        self._loads: dict[Fleet, LoadMeasured] = {}

    def hear(self, fleet: Fleet, window_start_ms: int) -> None:
        """Something was heard of the fleet in this window."""
        if fleet in self._fleets:
            return
        known = load(self._kept, fleet, self._rules.smoothing)
        self._fleets[fleet] = known or Known(said_ms=window_start_ms - self._window_ms)
        if len(self._fleets) > FLEETS_MAX:
            silent = min((one for one in self._fleets if one != fleet), key=lambda one: self._fleets[one].said_ms)
            del self._fleets[silent]
            self._loads.pop(silent, None)
            forget(self._kept, silent)

    def measured(self, load: LoadMeasured) -> None:
        """How many wait, and who works. Of a fleet that was never heard otherwise, nobody and nothing is no news."""
        fleet = Fleet(load.pool, load.model)
        if _is_news(load):
            self.hear(fleet, load.measured_at_ms // self._window_ms * self._window_ms)
        if fleet in self._fleets:
            self._loads[fleet] = load

    def say(self, until_ms: int, read: Callable[[Fleet, int], Window | None]) -> list[Said]:
        """The windows up to the one that begins at `until_ms`, of those that exist; at most the last three.

        Args:
            until_ms: start of the newest closed window.
            read: the window of a fleet that begins at a time, None when nothing was heard.
        """
        told: list[Said] = []
        for fleet in list(self._fleets):
            before = self._fleets[fleet]
            oldest_ms = max(before.said_ms + self._window_ms, until_ms - 2 * self._window_ms)
            for start_ms in range(oldest_ms, until_ms + 1, self._window_ms):
                load = self._load(fleet, start_ms)
                window = read(fleet, start_ms) or (Window() if load and _is_news(load) else None)
                if window is None:
                    continue
                after, events = said(fleet, self._fleets[fleet], window, start_ms, load, self._rules)
                self._fleets[fleet] = after
                told.extend(events)
            if self._fleets[fleet] is not before:
                save(self._kept, fleet, before, self._fleets[fleet], self._rules.smoothing)
        return told

    def _load(self, fleet: Fleet, start_ms: int) -> LoadMeasured | None:
        """As measured in the window or after it; who has not measured for so long does not count."""
        load = self._loads.get(fleet)
        return load if load and load.measured_at_ms >= start_ms else None


def _is_news(load: LoadMeasured) -> bool:
    return load.workers > 0 or waiting_of(load) > 0
