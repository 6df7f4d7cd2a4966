"""How many generations of a model an account may have now, beside others (`streams.dispatch.shares`)."""

from collections.abc import Mapping

from streams.dispatch.capacities import Capacities
from streams.dispatch.limits import Limits
from streams.dispatch.shares import Askers, asked, is_alone, most


class Bounds:
    """Of one round, which it does not know: what refers to each other in a circle waits for the garbage collector."""

    def __init__(self, askers: Mapping[str, Askers], capacities: Capacities, flow_ms: int, limits: Limits) -> None:
        self.askers = dict(askers)
        """By model."""
        self._capacities = capacities
        self._flow_ms = flow_ms
        self._limits = limits

    def asks(self, model: str, account: str) -> None:
        """A request of the account for the model has come."""
        self.askers[model] = asked(self.askers.get(model), account, self._flow_ms)

    def most(self, model: str, account: str) -> int | None:
        """So many; None: as many as it likes."""
        if is_alone(self.askers.get(model), account, self._flow_ms, self._limits.others_ms):
            return None
        return most(self._capacities.of(model).slots_alive, self._limits.others_share)
