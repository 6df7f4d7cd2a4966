"""Which worker gets a request.

1. A worker has room when it is alive, its lease is fresh, it is not draining, runs the model, and has a slot and the
   KV tokens left (prompt and longest output, less the prefix that it has cached), both by what it said last and by
   what we know it holds. The stricter one counts. A request that is larger than the worker goes to it alone.
2. A suspect, lost in all attempts but its last and twice at least, runs alone among such: if its worker dies again, it
   is known why.
3. Bounded load (Mirrokni, Thorup and Zadimoghaddam, 2016): no worker gets more than `overload` times its share of
   what runs, while another one has room. Here stickiness breaks.
4. Among those the score is the part of the prompt that the worker has cached, less the part of it that is taken. The
   worker that had the conversation last counts as having half of it at least: its cache is warm, if not block by block.
   Its successor in the same inbox does not.
5. Ties break by a hash of conversation and inbox: the same choice in every process.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from schemas.prefix import BLOCK_BYTES
from streams.dispatch.limits import Limits
from streams.dispatch.pool import Lease, Request, Worker

AFFINITY = 0.5


def is_fresh(worker: Worker, flow_ms: int, limits: Limits) -> bool:
    """Whether what the worker said last still counts."""
    return worker.alive and flow_ms - worker.renewed_flow_ms < limits.stale_ms


def slots_left(worker: Worker) -> int:
    """Generations that the worker can take now, if its lease is fresh."""
    if not worker.alive or worker.draining or worker.closed:
        return 0
    return max(0, min(worker.registered.slots - worker.held, worker.free_slots))


class Room(NamedTuple):
    """A worker that can take a request now."""

    worker: Worker
    cached: float
    """The part of the prompt that it has cached, 0 to 1."""
    kv_tokens: int
    """What the request takes of its KV tokens."""


def room_for(worker: Worker, request: Request, cached_blocks: int, limits: Limits) -> Room | None:
    """The room for a request at a worker that has so many of its blocks cached, None where it cannot take it now."""
    if worker.registered.model != request.admitted.model or slots_left(worker) <= 0:
        return None
    if worker.isolated and limits.is_suspect(request.progress.lost):
        return None
    cached, total = _cached(request, cached_blocks), worker.registered.kv_tokens
    needed = min(request.tokens - int(cached * request.admitted.prompt_tokens_estimate), total)
    if total == 0 or worker.held == 0 or needed <= min(total - worker.held_tokens, worker.free_tokens):
        return Room(worker, cached, needed)
    return None


def choose(
    workers: Sequence[Worker],
    request: Request,
    cached: Mapping[int, int],
    had_it: Lease | None,
    last: int,
    limits: Limits,
) -> Room | None:
    """The worker that gets the request, None when none has room.

    Args:
        workers: those with a fresh lease.
        request: what is to be given.
        cached: by inbox, how many blocks of its prompt are cached there (`streams.dispatch.caches`).
        had_it: the worker that had the conversation last.
        last: the inbox that got the request before this one, for `round_robin`.
        limits: how to choose.
    """
    rooms = (room_for(worker, request, cached.get(worker.registered.inbox, 0), limits) for worker in workers)
    able = [room for room in rooms if room is not None]
    if not able:
        return None
    if limits.placement == "round_robin":
        return min(able, key=lambda room: (room.worker.registered.inbox - last - 1) % limits.inboxes)
    conversation_id = request.admitted.conversation_id
    if limits.placement == "least_requests":
        return _best(able, [-room.worker.held for room in able], conversation_id)
    within = _within_bound(workers, able, request.admitted.model, limits.overload)
    scores = [_warmth(room, had_it) - taken(room.worker) for room in within]
    return _best(within, scores, conversation_id)


def taken(worker: Worker) -> float:
    """The part of the worker that is taken, 0 to 1: of slots or of KV tokens, the scarcer one."""
    slots = worker.held / worker.registered.slots
    return max(slots, worker.held_tokens / worker.registered.kv_tokens) if worker.registered.kv_tokens else slots


def _cached(request: Request, blocks: int) -> float:
    return blocks * BLOCK_BYTES / request.prompt_bytes if blocks else 0.0


def _warmth(room: Room, had_it: Lease | None) -> float:
    same = had_it == (room.worker.registered.inbox, room.worker.epoch)
    return max(room.cached, AFFINITY) if same else room.cached


def _within_bound(workers: Sequence[Worker], able: list[Room], model: str, overload: float) -> list[Room]:
    alike = [worker for worker in workers if worker.registered.model == model]
    slots = sum([worker.registered.slots for worker in alike])
    held = sum([worker.held for worker in alike])
    most = overload * (held + 1) / slots
    return [room for room in able if room.worker.held + 1 <= math.ceil(most * room.worker.registered.slots)] or able


def _best(able: Sequence[Room], scores: Sequence[float], conversation_id: str) -> Room:
    most = max(scores)
    best = [room for room, one in zip(able, scores, strict=True) if one == most]
    if len(best) == 1:
        return best[0]
    inboxes = [room.worker.registered.inbox for room in best]
    weights = _weights(conversation_id, max(inboxes) + 1)
    return max(zip(best, inboxes, strict=True), key=lambda one: weights[8 * one[1] : 8 * one[1] + 8])[0]


def _weights(conversation_id: str, inboxes: int) -> bytes:
    """Highest random weight (Thaler and Ravishankar, 1996): eight bytes for each inbox, the same however many are asked
    for, from one hash. A checksum is none: of its weights some never win.
    """
    return hashlib.shake_128(conversation_id.encode()).digest(8 * inboxes)
