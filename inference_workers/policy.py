"""A worker's times and bounds."""

import msgspec

from inference_workers.outcomes import Patience


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The worker's times and bounds."""

    grace_s: float = 20.0
    lease_s: float = 1.0
    tick_s: float = 0.1
    abort_s: float = 10.0
    """How long the engine may take to give up a slot before it counts as stuck."""
    hand_back_s: float = 5.0
    """How long handing back and releasing may take at the end."""
    stats_stale_s: float = 5.0
    """So old the engine's statistics may be; then the worker says that it is full."""
    waiting_max: int = 64
    cancellations_from_ms: int = 300_000
    """How far back cancellations are read at the start."""
    patience: Patience = Patience(first_token_s=300.0, token_s=60.0)
