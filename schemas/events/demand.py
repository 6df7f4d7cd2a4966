"""What is asked of the models of a pool, and what is expected: the topic `demand`."""

from schemas.events.base import Event
from schemas.values import Tier, TimeMs


class DemandForecast(Event, frozen=True):
    """Demand of a model in a pool, of one tier, in the last window, and what is expected of the next.

    Version 2 added `service_ms_mean` and `seasonal`; version 3 `model`.
    """

    TOPIC = "demand"
    KEY = "pool"
    VERSION = 3

    pool: str
    tier: Tier
    window_start_ms: TimeMs
    window_ms: int
    arrivals: int
    """Requests admitted for the model, and those given to it in place of another one, when they finish."""
    input_tokens: int
    output_tokens: int
    queue_ms_mean: float
    forecast_arrivals: float
    forecast_output_tokens: float
    service_ms_mean: float = 0.0
    """How long a generation had its slot, on average."""
    seasonal: bool = False
    """The forecast knows this time of the day from days before."""
    model: str = ""
    """Empty before version 3: of all models of the pool together."""

    def identity(self) -> str:
        return f"{_fleet(self.pool, self.model)}/{self.tier}/{self.window_start_ms}"

    def key(self) -> str:
        return f"{_fleet(self.pool, self.model)}/{self.tier}"


class ReplicasDesired(Event, frozen=True):
    """How many workers of a model a pool should have for the demand that is expected of the next window: for an
    autoscaler.

    Version 2 added `model`.
    """

    TOPIC = "demand"
    KEY = "pool"
    VERSION = 2

    pool: str
    window_start_ms: TimeMs
    window_ms: int
    workers: int
    """Those that renewed their lease in the window."""
    slots_needed: float
    """Generations at a time, headroom included."""
    slots_per_worker: float
    replicas: int
    model: str = ""
    """Empty before version 2: of all models of the pool together."""

    def identity(self) -> str:
        return f"{_fleet(self.pool, self.model)}/replicas/{self.window_start_ms}"

    def key(self) -> str:
        return f"{_fleet(self.pool, self.model)}/replicas"


def _fleet(pool: str, model: str) -> str:
    return f"{pool}/{model}" if model else pool
