"""Which worker gets a request.

1. A worker has room when it is alive, its lease is fresh, it is not draining, runs the model, and has a slot and the
   KV tokens left (prompt and longest output, less the prefix that it has cached), both by what it said last and by
   what we know it holds. The stricter one counts. A request that is larger than the worker goes to it alone.
2. A request that has been lost twice runs alone among such: if its worker dies again, it is known why.
3. Bounded load (Mirrokni, Thorup and Zadimoghaddam, 2016): no worker gets more than `overload` times its share of
   what runs, while another one has room. Here stickiness breaks.
4. Among those the score is the part of the prompt that the worker has cached, less the part of it that is taken. The
   worker that had the conversation last counts as having half of it at least: its cache is warm, if not block by block.
5. Ties break by a hash of conversation and inbox: the same choice in every process.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence

from schemas.prefix import BLOCK_BYTES, shared
from streams.dispatch.limits import Limits
from streams.dispatch.pool import Request, Worker

AFFINITY = 0.5
ISOLATED_FROM = 2
"""Lost attempts from which on a request runs alone among its like."""


def is_fresh(worker: Worker, flow_ms: int, limits: Limits) -> bool:
    """Whether what the worker said last still counts."""
    return worker.alive and flow_ms - worker.renewed_flow_ms < limits.stale_ms


def slots_left(worker: Worker) -> int:
    """Generations that the worker can take now, if its lease is fresh."""
    if not worker.alive or worker.draining or worker.closed:
        return 0
    return max(0, min(worker.registered.slots - worker.held, worker.free_slots))


def cached_share(worker: Worker, request: Request) -> float:
    """The part of the prompt that the worker has cached, 0 to 1."""
    first = request.blocks[:1]
    if not first or (first[0] not in worker.prefixes and first[0] not in worker.fresh):
        return 0.0
    return min(1.0, shared(request.blocks, worker.prefixes, worker.fresh) * BLOCK_BYTES / max(1, request.chars))


def tokens_needed(worker: Worker, request: Request) -> int:
    """What the request takes of the worker's KV tokens."""
    cached = int(cached_share(worker, request) * request.admitted.prompt_tokens_estimate)
    return min(request.tokens - cached, worker.registered.kv_tokens)


def has_room(worker: Worker, request: Request) -> bool:
    """Whether the worker can take this request now."""
    if worker.registered.model != request.admitted.model or slots_left(worker) <= 0:
        return False
    if request.progress.lost >= ISOLATED_FROM and worker.isolated:
        return False
    total = worker.registered.kv_tokens
    if total == 0 or worker.held == 0:
        return True
    return tokens_needed(worker, request) <= min(total - worker.held_tokens, worker.free_tokens)


def choose(workers: Sequence[Worker], request: Request, had_it: int | None, last: int, limits: Limits) -> Worker | None:
    """The worker that gets the request, None when none has room.

    Args:
        workers: those with a fresh lease.
        request: what is to be given.
        had_it: the inbox that had the conversation last.
        last: the inbox that got the request before this one, for `round_robin`.
        limits: how to choose.
    """
    able = [worker for worker in workers if has_room(worker, request)]
    if not able:
        return None
    if limits.placement == "round_robin":
        return min(able, key=lambda worker: (worker.registered.inbox - last - 1) % limits.inboxes)
    conversation_id = request.admitted.conversation_id
    if limits.placement == "least_requests":
        return _best(able, conversation_id, lambda worker: -worker.held)
    within = _within_bound(workers, able, request.admitted.model, limits.overload)

    def score(worker: Worker) -> float:
        warm = max(cached_share(worker, request), AFFINITY if worker.registered.inbox == had_it else 0.0)
        return warm - taken(worker)

    return _best(within, conversation_id, score)


def taken(worker: Worker) -> float:
    """The part of the worker that is taken, 0 to 1: of slots or of KV tokens, the scarcer one."""
    slots = worker.held / worker.registered.slots
    return max(slots, worker.held_tokens / worker.registered.kv_tokens) if worker.registered.kv_tokens else slots


def _within_bound(workers: Iterable[Worker], able: list[Worker], model: str, overload: float) -> list[Worker]:
    alike = [worker for worker in workers if worker.registered.model == model]
    slots = sum(worker.registered.slots for worker in alike)
    held = sum(worker.held for worker in alike)
    most = overload * (held + 1) / slots
    return [worker for worker in able if worker.held + 1 <= math.ceil(most * worker.registered.slots)] or able


def _best(workers: Sequence[Worker], conversation_id: str, score: Callable[[Worker], float]) -> Worker:
    scores = [score(worker) for worker in workers]
    most = max(scores)
    best = [worker for worker, one in zip(workers, scores, strict=True) if one == most]
    return best[0] if len(best) == 1 else max(best, key=lambda worker: _tie(worker, conversation_id))


def _tie(worker: Worker, conversation_id: str) -> bytes:
    """Highest random weight (Thaler and Ravishankar, 1996). A checksum is no hash here: some inboxes never win."""
    return hashlib.blake2b(f"{conversation_id}/{worker.registered.inbox}".encode(), digest_size=8).digest()
