"""The declared limits of dispatch, and what happens at each."""

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Durations are milliseconds; of the flow clock for leases, else of the wall clock."""

    lease_ms: int = 3_000
    """A worker that has not renewed for so long is dead: its generations are given to others."""
    attempts_max: int = 3
    """Attempts that workers lost; then the reply ends as failed, `worker_lost`."""
    returns_max: int = 20
    """Attempts that workers handed back; then the same."""
    queue_max: int = 10_000
    """Waiting requests of a pool; one more is refused, `queue_full`."""
    queue_chars_max: int = 256_000_000
    """Characters of their prompts; the same."""
    ageing_ms: int = 30_000
    """A free request that waited so long takes part in the share below."""
    ageing_share: int = 8
    """One placement in so many goes to an aged free request, so that it is never starved."""
    inboxes: int = 16
    """Partitions of the priority topics; a worker that claims another one is not heard."""
    recent_max: int = 10_000
    """Ended replies remembered per pool, whose repeated admission is ignored."""
    affinity_max: int = 10_000
    """Conversations per pool whose last worker is remembered; the oldest is forgotten."""
