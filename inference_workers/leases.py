"""What a worker says of itself: its lease, renewed, and its release."""

from inference_workers.assignments import Assignments
from inference_workers.engine import EngineInfo, EngineStats
from inference_workers.journal import Place
from inference_workers.prefixes import Prefixes
from schemas.events import GenerationRequested, WorkerLeased, WorkerReleased
from schemas.prefix import blocks, salt_of
from schemas.values import PromptMessage


class Leases:
    """The renewals of one lease.

    Args:
        place: the worker and its lease.
        prefixes: what its engine has cached.
        stats_stale_s: so old the engine's statistics may be; then the worker says that it is full.
    """

    def __init__(self, place: Place, prefixes: Prefixes, stats_stale_s: float) -> None:
        self._place = place
        self._prefixes = prefixes
        self._stats_stale_s = stats_stale_s
        self._renewal = 0

    def cached(self, request: GenerationRequested, reply: str = "") -> None:
        """The engine has the prompt in its cache now, and the reply after it."""
        said = (PromptMessage(role="assistant", content=reply),) if reply else ()
        self._prefixes.used(blocks(salt_of(request.account_id), (*request.prompt, *said)))

    def renewed(self, assignments: Assignments, stats: EngineStats, info: EngineInfo) -> WorkerLeased:
        """The next renewal."""
        self._renewal += 1
        told = self._prefixes.tell(self._renewal)
        return WorkerLeased(
            pool=self._place.pool,
            instance=self._place.instance,
            inbox=self._place.inbox,
            epoch=self._place.epoch,
            renewal=self._renewal,
            free_slots=assignments.free_slots if stats.age_s <= self._stats_stale_s else 0,
            free_kv_tokens=max(0, info.kv_tokens - stats.kv_tokens_used),
            draining=assignments.draining,
            running=assignments.running,
            waiting=assignments.waiting,
            prompt_tokens=stats.prompt_tokens,
            cached_tokens=stats.cached_tokens,
            output_tokens=stats.output_tokens,
            preemptions=stats.preemptions,
            step_ms=stats.step_ms,
            prefixes=told.prefixes,
            dropped=told.dropped,
            whole=told.whole,
        )

    def released(self, reason: str) -> WorkerReleased:
        """The end of the lease."""
        place = self._place
        return WorkerReleased(
            pool=place.pool, instance=place.instance, inbox=place.inbox, epoch=place.epoch, reason=reason
        )
