"""Demand as the tests hear it: windows, an emitter, and what it says as they close."""

from collections.abc import Callable, Mapping

from schemas.events import DemandForecast, LoadMeasured, ReplicasDesired
from schemas.values import Usage
from streams.demand.emitter import Emitter
from streams.demand.forecast import Smoothing
from streams.demand.pool import Rules, Said
from streams.demand.scaling import Scaling
from streams.demand.windows import Window, after
from tests.streams.events import admitted, finished, registered

WINDOW_MS = 10_000
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


def measured(waiting: int, at_ms: int = 0) -> LoadMeasured:
    return LoadMeasured(
        pool="default",
        model="m",
        measured_at_ms=at_ms,
        workers=0,
        slots=0,
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

    def of(self, *windows: Window | None, start_ms: int = 0, pool: str = "default") -> list[Said]:
        said: list[Said] = []
        for number, window in enumerate(windows):
            at_ms = start_ms + number * WINDOW_MS
            if window is not None:
                self.emitter.hear(pool, at_ms)
            said.extend(self.emitter.say(at_ms, reader({at_ms: window} if window else {}, pool)))
        return said


def reader(windows: Mapping[int, Window], pool: str = "default") -> Callable[[str, int], Window | None]:
    return lambda name, start_ms: windows.get(start_ms) if name == pool else None


def desired(said: list[Said]) -> list[ReplicasDesired]:
    return [event for event in said if isinstance(event, ReplicasDesired)]


def paid(said: list[Said]) -> list[DemandForecast]:
    return [event for event in said if isinstance(event, DemandForecast) and event.tier == "paid"]
