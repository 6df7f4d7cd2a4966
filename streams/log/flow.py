"""The flow clock: time as far as the log could have told us something. For leases; see rule 6 in `steps`.

Rules:

1. It starts at 0 and never goes back.
2. One turn adds at most `TURN_MAX_MS`: if the loop itself was blocked or stopped, that time does not count.
3. Nothing is added while the log cannot be reached, nor for `SETTLE_MS` after it can be again, because those who
   write to it need a moment to come back.
"""

import msgspec

TURN_MAX_MS = 500
SETTLE_MS = 3_000


class Flow(msgspec.Struct, frozen=True):
    """The clock's state. `flow_ms` is its time."""

    flow_ms: int = 0
    last_ms: int | None = None
    """Wall clock of the last turn."""
    settle_ms: int = 0
    """Reachable time that still has to pass before the clock goes on."""


def advance(flow: Flow, now_ms: int, *, reachable: bool) -> Flow:
    """The clock after a turn at this wall-clock time (which may jump in either direction)."""
    passed = 0 if flow.last_ms is None else min(max(now_ms - flow.last_ms, 0), TURN_MAX_MS)
    if not reachable:
        return Flow(flow.flow_ms, now_ms, SETTLE_MS)
    settling = min(passed, flow.settle_ms)
    return Flow(flow.flow_ms + passed - settling, now_ms, flow.settle_ms - settling)
