"""What is asked of a pool, and what is expected: the topic `demand`."""

from schemas.events.base import Event
from schemas.values import Tier, TimeMs


class DemandForecast(Event, frozen=True):
    """Demand of a pool and tier in the last window, and what is expected of the next.

    Version 2 added `service_ms_mean` and `seasonal`.
    """

    TOPIC = "demand"
    KEY = "pool"
    VERSION = 2

    pool: str
    tier: Tier
    window_start_ms: TimeMs
    window_ms: int
    arrivals: int
    input_tokens: int
    output_tokens: int
    queue_ms_mean: float
    forecast_arrivals: float
    forecast_output_tokens: float
    service_ms_mean: float = 0.0
    """How long a generation had its slot, on average."""
    seasonal: bool = False
    """The forecast knows this time of the day from days before."""

    def identity(self) -> str:
        return f"{self.pool}/{self.tier}/{self.window_start_ms}"

    def key(self) -> str:
        return f"{self.pool}/{self.tier}"


class ReplicasDesired(Event, frozen=True):
    """How many workers a pool should have for the demand that is expected of the next window: for an autoscaler."""

    TOPIC = "demand"
    KEY = "pool"

    pool: str
    window_start_ms: TimeMs
    window_ms: int
    workers: int
    """Those that renewed their lease in the window."""
    slots_needed: float
    """Generations at a time, headroom included."""
    slots_per_worker: float
    replicas: int

    def identity(self) -> str:
        return f"{self.pool}/replicas/{self.window_start_ms}"

    def key(self) -> str:
        return f"{self.pool}/replicas"
