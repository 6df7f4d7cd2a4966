"""Who is served next, and by whom: requests that wait are given to workers until nothing that waits fits.

1. Paid before free, and within a priority as `streams.dispatch.lines` says. The worker is `placement`'s choice.
2. Of every `ageing_share` placements of a model one goes to an aged request, one that has waited `ageing_ms`: a free
   one before a paid one; the next by fairness if it is aged, else the one that has waited longest. So nobody waits for
   ever. Where it finds no room, the emptiest worker is kept for it and gets nothing else until it fits.
3. A free one is given only where slots, and as large a part of the KV cache, are left for the paid traffic to come
   (`load`, rule 5).
4. An account that may have no more beside others (`shares`) is passed over.
5. A request that finds no room holds up those behind it, so that a large one gets its turn; but not one that has to
   run alone among its like (`placement`, rule 2): it lets others pass, and is looked at again in the next round. So
   does one whose `reset` is not known to be in `tokens` yet, and one that was handed back a moment ago.
6. So does one whose `reset` is not known to be in `tokens` yet: a worker's words for its next attempt would come before
   it, and readers would never be told why.
"""

from collections.abc import Callable, Collection, Mapping

from streams.dispatch.lines import Place
from streams.dispatch.placement import Room, choose, is_fresh, slots_left
from streams.dispatch.pool import Request, Worker
from streams.dispatch.round import Round
from streams.dispatch.service import capacity


def place(round_: Round) -> None:
    """Give what can be given."""
    if not round_.queue.waiting:
        return
    round_.queue.look_again()
    models = [model for model in sorted(round_.queue.models()) if round_.capacities.of(model).free_slots]
    if not models:
        return
    able: dict[str, dict[int, Worker]] = {model: {} for model in models}
    for inbox, worker in round_.workers.items():
        alike = able.get(worker.registered.model)
        if alike is not None and not worker.draining and is_fresh(worker, round_.flow_ms, round_.limits):
            alike[inbox] = worker
    for model, alike in able.items():
        _place(round_, model, alike)


def _place(round_: Round, model: str, able: dict[int, Worker]) -> None:
    apart: list[Request] = []
    for_age = True
    slots = round_.capacities.of(model).free_slots
    while slots > 0 and (found := _next(round_, model, able, for_age=for_age)) is not None:
        request, aged = found
        room = None if _must_wait(round_, request) else _chosen(round_, request, able)
        if room is not None:
            able[room.worker.registered.inbox] = after = round_.give(request, room)
            slots += slots_left(after) - slots_left(room.worker)
            round_.unaged[model] = 0 if aged else round_.unaged.get(model, 0) + 1
        elif _must_wait(round_, request) or round_.limits.is_suspect(request.progress.lost):
            round_.queue.step_aside(request)
            apart.append(request)
        elif aged and len(able) > 1:
            slots -= slots_left(able.pop(min(able, key=lambda inbox: (able[inbox].held_tokens, inbox))))
            for_age = False
        else:
            break
    for request in apart:
        round_.queue.step_back(request)


def _must_wait(round_: Round, request: Request) -> bool:
    return request.progress.unwritten or request.progress.not_before_ms > round_.now_ms


def _chosen(round_: Round, request: Request, able: Mapping[int, Worker]) -> Room | None:
    cached = round_.caches.shared(request.blocks)
    had_it = round_.affinity.get(request.admitted.conversation_id)
    return choose(list(able.values()), request, cached, had_it, round_.last_inbox, round_.limits)


def _next(round_: Round, model: str, able: Mapping[int, Worker], *, for_age: bool) -> tuple[Request, bool] | None:
    """The request to be served next, and whether it is for its age. `able`: workers of the model that are there."""
    lines = list(round_.queue.of(model))
    if round_.limits.queueing == "fifo":
        places = [place for _, line in lines if (place := line.oldest()) is not None]
        return (round_.requests[min(places)[1]], False) if places else None
    if for_age and round_.unaged.get(model, 0) >= round_.limits.ageing_share - 1:
        for _, line in reversed(lines):
            for pick in (line.head, line.oldest):
                request = _picked(round_, pick)
                if request is not None and _is_aged(round_, request):
                    return request, True
    for priority, line in lines:
        request = _picked(round_, line.head)
        if request is not None and (priority == "paid" or _is_spare(round_, model, able.values())):
            return request, False
    return None


def _picked(round_: Round, pick: Callable[[], Place | None]) -> Request | None:
    """The one that a line picks, of accounts that may have another one beside others (`shares`)."""
    while (place := pick()) is not None:
        request = round_.requests[place[1]]
        if round_.queue.admits(request):
            return request
    return None


def _is_aged(round_: Round, request: Request) -> bool:
    return round_.now_ms - request.admitted.submitted_at_ms >= round_.limits.ageing_ms


def _is_spare(round_: Round, model: str, able: Collection[Worker]) -> bool:
    """Whether more is left than what is kept for paid traffic."""
    has = capacity(round_, model)
    if not has.reserved:
        return True
    kv_tokens_left = sum(worker.registered.kv_tokens - worker.held_tokens for worker in able)
    kept = has.kv_tokens * has.reserved / has.slots
    return sum(map(slots_left, able)) > has.reserved and (not has.kv_tokens or kv_tokens_left > kept)
