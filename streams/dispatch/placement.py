"""Which request comes next, and which worker gets it.

1. Paid before free. Of every `ageing_share` placements one goes to a free request that has waited `ageing_ms`.
2. Within a priority: in the order of admission, also after a lost attempt.
3. A worker has room when it is alive, not draining, runs the model, and has a slot and the KV tokens left, both by
   what it said last and by what we know it holds. The stricter one counts.
4. The worker that had the conversation gets it again if it has room (its prefix cache is warm); else the one with
   the largest free share; ties break by a hash of conversation and inbox, the same in every process.
"""

import zlib
from collections.abc import Iterable

from streams.dispatch.limits import Limits
from streams.dispatch.pool import Request, Worker, tokens_held


def slots_left(worker: Worker) -> int:
    """Generations that the worker can take now."""
    if not worker.alive or worker.draining:
        return 0
    return min(worker.registered.slots - worker.held, worker.free_slots)


def has_room(worker: Worker, request: Request) -> bool:
    """Whether the worker can take this request now."""
    if worker.registered.model != request.admitted.model or slots_left(worker) <= 0:
        return False
    total = worker.registered.kv_tokens
    if total == 0 or worker.held == 0:
        return True
    return tokens_held(worker, request) <= min(total - worker.held_tokens, worker.free_tokens)


def choose(workers: Iterable[Worker], request: Request, had_it: int | None) -> Worker | None:
    """The worker that gets the request, None when none has room."""
    able = [worker for worker in workers if has_room(worker, request)]
    for worker in able:
        if worker.registered.inbox == had_it:
            return worker
    return max(able, key=lambda worker: _score(worker, request.admitted.conversation_id), default=None)


def _score(worker: Worker, conversation_id: str) -> tuple[float, int]:
    share = slots_left(worker) / worker.registered.slots
    return share, zlib.crc32(f"{conversation_id}/{worker.registered.inbox}".encode())


def next_of(
    paid: Request | None, free: Request | None, *, paid_in_row: int, limits: Limits, now_ms: int
) -> Request | None:
    """Which of the two heads of queues is served."""
    if paid is None or free is None:
        return paid or free
    aged = now_ms - free.admitted.submitted_at_ms >= limits.ageing_ms
    return free if aged and paid_in_row >= limits.ageing_share - 1 else paid
