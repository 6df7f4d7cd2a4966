"""The declared limits of dispatch, and what happens at each."""

from typing import Literal

import msgspec

from schemas.values import Priority
from streams.dispatch.load import Thresholds

Placement = Literal["prefix", "least_requests", "round_robin"]
"""How a worker is chosen. The last two know no prefixes: what other routers do, to compare with."""
Queueing = Literal["fair", "fifo"]
"""How requests wait. `fifo` knows no priorities, no shares and no accounts: to compare with."""
NoWorker = Literal["queue", "refuse"]
"""What becomes of a request whose model no worker runs."""


SUSPECT_FROM = 2


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Durations are milliseconds; of the flow clock for leases and load, else of the wall clock."""

    lease_ms: int = 3_000
    """A worker that has not renewed for so long is dead: its generations are given to others."""
    stale_ms: int = 2_000
    """A worker that has not renewed for so long counts as full: nobody knows how it is."""
    attempts_max: int = 3
    """Attempts that workers may lose; then the reply ends as failed: `poison` where the last one was a suspect's, which
    ran alone among its like, else `worker_lost`."""
    stalls_max: int = 2
    """Attempts in which the engine fell silent; then it ends as failed, `engine_stalled`."""
    returns_max: int = 40
    """Attempts that workers handed back; then it ends as failed, `not_served`."""
    queue_max: int = 10_000
    """Waiting requests of a pool; one more is refused, `queue_full`."""
    queue_chars_max: int = 256_000_000
    """Characters of their prompts; the same."""
    account_waiting_max: int = 1_000
    """Of these, requests of one account; the same: nobody fills the queue for everybody else."""
    ageing_ms: int = 30_000
    """A request that waited so long takes part in the share below."""
    ageing_share: int = 8
    """One placement in so many goes to the aged request that waits longest, free before paid: nobody is starved."""
    running_max_free: int = 16
    """Generations that one account of this tier has at a time; its further requests wait, and hold up nobody else's."""
    running_max_paid: int = 1_024
    others_share: int = 8
    """One slot of a model in so many, and one at least, no account may have while others ask for it (`shares`)."""
    others_ms: int = 60_000
    """Others ask while one of them did within so long."""
    overload: float = 1.2
    """No worker gets more than so many times its share of what runs, while another one has room."""
    slots_max: int = 1_000_000
    """A worker that claims more, or more KV tokens than the next, is not heard."""
    kv_tokens_max: int = 10**12
    inboxes: int = 16
    """Partitions of the priority topics; a worker that claims another one is not heard."""
    recent_max: int = 10_000
    """Ended replies remembered per pool, whose repeated admission is ignored."""
    affinity_max: int = 10_000
    """Conversations per pool whose last worker is remembered; the oldest is forgotten."""
    placement: Placement = "prefix"
    queueing: Queueing = "fair"
    no_worker: NoWorker = "queue"
    no_worker_ms: int = 10_000
    """A model counts as without workers after so long, so that a restart is none."""
    report_ms: int = 1_000
    """How often the load is told, besides when a stage changes."""
    thresholds: Thresholds = Thresholds()

    def is_suspect(self, lost: int) -> bool:
        """Whether a request that was lost so often runs alone among its like: in its last attempt, and never before it
        was lost twice, since one death says nothing about those that were there.
        """
        return lost >= max(SUSPECT_FROM, self.attempts_max - 1)

    def running_max(self, priority: Priority) -> int:
        """Generations of one account at a time."""
        return self.running_max_paid if priority == "paid" else self.running_max_free
