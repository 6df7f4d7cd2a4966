"""Demand as the tests hear it: windows, an emitter, and what it says as they close."""

from collections.abc import Callable, Mapping

from schemas.events import DemandForecast, Event, LoadMeasured, ReplicasDesired
from schemas.values import Usage
from streams.demand.emitter import Emitter
from streams.demand.fleet import Fleet, Rules, Said
from streams.demand.forecast import Smoothing
from streams.demand.heard import Heard
from streams.demand.scaling import Scaling
from streams.demand.windows import Window, after
from tests.streams.events import MODEL, admitted, finished, registered

WINDOW_MS = 10_000
FLEET = Fleet("default", MODEL)
RULES = Rules(
    smoothing=Smoothing(headroom=1.0),
    scaling=Scaling(replicas_min=0, target_utilisation=1.0, scale_down_windows=3, backlog_s=10),
)


def counted(*events: object) -> Window:
    window: Window | None = None
    for event in events:
        window = after(window, event, "paid")  # type: ignore[arg-type]
    assert window is not None
    return window


def busy(arrivals: int, ran_ms: int = 2_000, slots: int = 4) -> Window:
    """So many arrivals of paid traffic, one worker, and one finish if there are any."""
    done = [finished(1, ran_ms=ran_ms, usage=Usage(input_tokens=1, output_tokens=20))] if arrivals else []
    return counted(registered(slots=slots), *(admitted(n, tier="paid") for n in range(arrivals)), *done)


def measured(waiting: int, at_ms: int = 0, *, model: str = MODEL, workers: int = 0, slots: int = 0) -> LoadMeasured:
    return LoadMeasured(
        pool="default",
        model=model,
        measured_at_ms=at_ms,
        workers=workers,
        slots=slots,
        free_slots=0,
        kv_tokens=0,
        kv_tokens_held=0,
        running=0,
        waiting_paid=waiting,
        waiting_free=0,
        wait_paid_ms=None,
        wait_free_ms=None,
        stage_paid="full",
        stage_free="full",
    )


class Told:
    """An emitter, and what it says of windows as they close."""

    def __init__(self, kept: dict[str, bytes] | None = None, rules: Rules = RULES) -> None:
        self.kept = {} if kept is None else kept
        self.emitter = Emitter(rules, self.kept)

    def of(self, *windows: Window | None, start_ms: int = 0, fleet: Fleet = FLEET) -> list[Said]:
        said: list[Said] = []
        for number, window in enumerate(windows):
            at_ms = start_ms + number * WINDOW_MS
            if window is not None:
                self.emitter.hear(fleet, at_ms)
            said.extend(self.emitter.say(at_ms, reader({at_ms: window} if window else {}, fleet)))
        return said


class Counting:
    """Records of `requests` and `workers`, counted into the window of each fleet as the application does it."""

    def __init__(self, kept: dict[str, bytes] | None = None) -> None:
        self.heard = Heard({} if kept is None else kept)
        self.windows: dict[Fleet, Window] = {}

    def take(self, event: Event, offset: int = 0) -> Fleet | None:
        fleet = self.heard.fleet(event, offset)
        if fleet is not None:
            self.windows[fleet] = self.heard.counted(self.windows.get(fleet), fleet, event)
        return fleet


def reader(windows: Mapping[int, Window], fleet: Fleet = FLEET) -> Callable[[Fleet, int], Window | None]:
    return lambda name, start_ms: windows.get(start_ms) if name == fleet else None


def desired(said: list[Said]) -> list[ReplicasDesired]:
    return [event for event in said if isinstance(event, ReplicasDesired)]


def paid(said: list[Said]) -> list[DemandForecast]:
    return [event for event in said if isinstance(event, DemandForecast) and event.tier == "paid"]
