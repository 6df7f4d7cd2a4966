"""The functions of `schemas/tiers/limits.lua` in memory, answer for answer: for the store in memory, and as the measure
of the real ones. Time is handed in; the answers are lists as Redis gives them.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from api.limits import Before, Demand
from schemas.tiers import MICRO, ORGANISATION, REQUESTS, RUNNING, Bucket, Holder, refilled, time_for_us
from schemas.tiers.library import DENIED, GRANTED, KNOWN, TOO_LARGE, UNWEIGHED


class Held(msgspec.Struct):
    """A reservation."""

    micro: int
    names: tuple[str, ...]
    until_us: int


class Said(msgspec.Struct):
    """What a prompt weighs that goes on in a conversation."""

    last: str
    prompt: int
    output: int
    most: int


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """A reply's end, as `SETTLE` takes it."""

    reply_id: str
    conversation_id: str
    done_ms: int
    young: bool = True
    since_us: int = 0
    """Where the buckets are made again from usage: from when on, and two refill times before, all was read; else 0."""
    ended_us: int = 0
    tokens: int
    input_tokens: int
    output_tokens: int
    buckets: tuple[Bucket, ...]


class Levels:
    """A hash of buckets: their levels and times, those that are made again, and when it was begun."""

    def __init__(self) -> None:
        self.levels: dict[str, tuple[int, int]] = {}
        self.again: dict[str, tuple[int, int, int]] = {}
        self.first: int | None = None


class Account(Levels):
    """An account's keys."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, Held] = {}
        self.done: dict[str, int] = {}
        self.said: dict[str, Said] = {}


class LimitsTwin:
    """All accounts of a store."""

    def __init__(self) -> None:
        self._accounts: dict[Holder, Account] = {}
        self._shared: dict[str | None, Levels] = {}

    def reserve(self, demand: Demand, now_us: int) -> list[Any]:
        """As the function; see there."""
        account = self._account(demand.holder)
        self._lapse(demand.holder, now_us)
        levels = self._read(demand.holder, demand.buckets, now_us)
        running = len(account.held)

        def answer(code: int, tokens: int = 0, name: str = "", wait_us: int = 0) -> list[Any]:
            return [now_us, code, tokens, name.encode(), wait_us, running, *(level for level, _ in levels)]

        if demand.reply_id in account.held or account.done.get(demand.reply_id, now_us) > now_us:
            return answer(KNOWN)
        before = _weight(account.said.get(demand.conversation_id), demand.before)
        if before is None:
            return answer(UNWEIGHED)
        tokens = min(demand.prompt_tokens + before + demand.output_tokens, demand.context_tokens)
        lacking, wait_us = "", 0
        for bucket, (level, at_us) in zip(demand.buckets, levels, strict=True):
            cost = _cost(bucket, tokens)
            if cost > bucket.capacity * MICRO:
                return answer(TOO_LARGE, tokens, bucket.name)
            if cost > level:
                time_us = time_for_us(cost - level, bucket.per_minute) + max(at_us - now_us, 0)
                if time_us > wait_us:
                    lacking, wait_us = bucket.name, time_us
        if not lacking and running >= demand.running_max:
            lacking = RUNNING
        if lacking:
            return answer(DENIED, tokens, lacking, wait_us)
        levels = [
            (level - _cost(bucket, tokens), at_us)
            for bucket, (level, at_us) in zip(demand.buckets, levels, strict=True)
        ]
        self._write(demand.holder, demand.buckets, levels)
        names = tuple(bucket.name for bucket in demand.buckets if bucket.name != REQUESTS)
        account.held[demand.reply_id] = Held(tokens * MICRO, names, now_us + demand.leases.door_ms * 1000)
        running += 1
        return answer(GRANTED, tokens)

    def confirm(self, demand: Demand, now_us: int) -> int:
        """As the function; see there."""
        account = self._account(demand.holder)
        held = account.held.get(demand.reply_id)
        if held is not None:
            held.until_us = now_us + demand.leases.reply_ms * 1000
        said = account.said.get(demand.conversation_id)
        if (said is None or said.last != demand.reply_id) and account.done.get(demand.reply_id, now_us) <= now_us:
            before = _weight(said, demand.before) or 0
            most = max(said.prompt + said.output, said.most) if said else 0
            prompt = min(before + demand.prompt_tokens, demand.context_tokens)
            account.said[demand.conversation_id] = Said(demand.reply_id, prompt, demand.output_tokens, most)
        return int(held is not None)

    def release(self, holder: Holder, reply_id: str) -> int:
        """As the function; see there."""
        held = self._account(holder).held.pop(reply_id, None)
        if held is None:
            return 0
        self._add(holder, held.names, held.micro)
        self._add(holder, (REQUESTS,), MICRO)
        return 1

    def settle(self, holder: Holder, end: Settled, now_us: int) -> list[int]:
        """As the function; see there."""
        account = self._account(holder)
        held = account.held.pop(end.reply_id, None)
        used = end.tokens * MICRO
        if held is not None:
            code, back = 1, held.micro - used
            known = {bucket.name: bucket for bucket in end.buckets}
            if back >= 0:
                self._add(holder, held.names, back)
            else:
                buckets = tuple(known[name] for name in held.names if name in known)
                levels = [(level + back, at_us) for level, at_us in self._read(holder, buckets, now_us)]
                self._write(holder, buckets, levels)
                self._add(holder, [name for name in held.names if name not in known], back)
        elif not end.young or account.done.get(end.reply_id, now_us) > now_us:
            return [0, 0, 0]
        else:
            code, back = 2, -used
            if end.since_us:
                for bucket in end.buckets:
                    _charge_again(self._levels(holder, bucket.name), bucket, end, now_us)
            else:
                found = zip(end.buckets, self._read(holder, end.buckets, now_us), strict=True)
                levels = [(level - _cost(bucket, end.tokens), at_us) for bucket, (level, at_us) in found]
                self._write(holder, end.buckets, levels)
        account.done[end.reply_id] = now_us + end.done_ms * 1000
        _weigh(account.said, end)
        return [0 if code == 1 and back >= 0 else now_us, code, back]

    def look(self, holder: Holder, buckets: Sequence[Bucket], now_us: int) -> list[int]:
        """As the function; see there."""
        account = self._account(holder)
        self._lapse(holder, now_us)
        said = [now_us, len(account.held)]
        for bucket, (level, _) in zip(buckets, self._read(holder, buckets, now_us), strict=True):
            said += [level, sum(held.micro for held in account.held.values() if bucket.name in held.names)]
        return said

    def clear(self) -> None:
        """Everything is lost."""
        self._accounts.clear()
        self._shared.clear()

    def _account(self, holder: Holder) -> Account:
        return self._accounts.setdefault(holder, Account())

    def _levels(self, holder: Holder, name: str) -> Levels:
        if name != ORGANISATION:
            return self._account(holder)
        return self._shared.setdefault(holder.organisation_id, Levels())

    def _read(self, holder: Holder, buckets: Sequence[Bucket], now_us: int) -> list[tuple[int, int]]:
        found = []
        for bucket in buckets:
            known = self._levels(holder, bucket.name).levels
            level, at_us = known.get(bucket.name, (bucket.capacity * MICRO, now_us))
            found.append((refilled(level, at_us, bucket, now_us), max(at_us, now_us)))
        return found

    def _write(self, holder: Holder, buckets: Sequence[Bucket], levels: Sequence[tuple[int, int]]) -> None:
        for bucket, (level, at_us) in zip(buckets, levels, strict=True):
            held = self._levels(holder, bucket.name)
            if bucket.name not in held.levels and held.first is None:
                held.first = at_us
            held.levels[bucket.name] = (level, at_us)

    def _add(self, holder: Holder, names: Iterable[str], micro: int) -> None:
        for name in names:
            levels = self._levels(holder, name).levels
            if name in levels:
                level, at_us = levels[name]
                levels[name] = (level + micro, at_us)

    def _lapse(self, holder: Holder, now_us: int) -> None:
        held = self._account(holder).held
        over = [reply_id for reply_id, one in held.items() if one.until_us <= now_us]
        for reply_id in over:
            gone = held.pop(reply_id)
            self._add(holder, gone.names, gone.micro)


def _charge_again(held: Levels, bucket: Bucket, end: Settled, now_us: int) -> None:
    """Rule 7 of `limits.lua`."""
    full, cost, name = bucket.capacity * MICRO, _cost(bucket, end.tokens), bucket.name
    first = now_us if held.first is None else held.first
    if end.ended_us >= first:
        until_us = min(end.ended_us, now_us)
        level, at_us = held.levels.get(name, (full, until_us))
        level = refilled(level, at_us, bucket, until_us)
        held.levels[name] = (max(level - cost, min(level, 0)), max(at_us, until_us))
        return
    span_us = time_for_us(full, bucket.per_minute)
    begun = (0, end.since_us - 2 * span_us, 0)
    if name not in held.again and end.ended_us < begun[1]:
        return
    level, at_us, lately = held.again.get(name, begun)
    before = min(full - refilled(level, at_us, bucket, first), lately)
    level = max(refilled(level, at_us, bucket, end.ended_us) - cost, 0)
    at_us = max(at_us, end.ended_us)
    lately += cost if end.ended_us > first - span_us else 0
    more = min(full - refilled(level, at_us, bucket, first), lately) - before
    there, there_us = held.levels.get(name, (full, first))
    held.first, held.again[name] = first, (level, at_us, lately)
    held.levels[name] = (min(there, full) - more, there_us)


def _cost(bucket: Bucket, tokens: int) -> int:
    return (1 if bucket.name == REQUESTS else tokens) * MICRO


def _weight(said: Said | None, before: Before) -> int | None:
    if isinstance(before, int) or before == "none":
        return before if isinstance(before, int) else 0
    if said is None:
        return None
    last = said.prompt + said.output
    return last if before == "last" else max(last, said.most)


def _weigh(saids: dict[str, Said], end: Settled) -> None:
    said = saids.get(end.conversation_id)
    if said is not None and said.last != end.reply_id:
        said.most = max(said.most, end.input_tokens + end.output_tokens)
    elif said is not None or end.input_tokens > 0:
        prompt = end.input_tokens or (said.prompt if said else 0)
        most = max(said.most if said else 0, prompt + end.output_tokens)
        saids[end.conversation_id] = Said(end.reply_id, prompt, end.output_tokens, most)
