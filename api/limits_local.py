"""What this process grants by itself while Redis cannot say what is left: a declared share of each bucket.

Nothing is given back: what a reply does not use stays taken, and the buckets in Redis are charged with what it used
once they are there again. How many replies run is not known here, and not limited.
"""

from typing import Literal

from api.limits import Demand, Denied, Granted, Level, Standing, TooLarge
from schemas.tiers import MICRO, ORGANISATION, REQUESTS, Bucket, Holder, refilled, time_for_us

WithoutRedis = Literal["local", "refuse"]
ACCOUNTS_MAX = 20_000
Owner = tuple[Literal["account", "organisation"], str]


class LocalShare:
    """Buckets of a share of the capacity and of the refill: each account's, and each organisation's for all of its own.

    At most `ACCOUNTS_MAX` owners' are kept: those that have been left alone the longest are forgotten, as if they were
    full.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._levels: dict[Owner, dict[str, tuple[int, int]]] = {}

    def take(self, demand: Demand, now_us: int) -> Granted | Denied | TooLarge:
        """Of all buckets or of none. `before` that is not a number counts as the whole of what the model takes."""
        buckets = [self._shared_out(bucket) for bucket in demand.buckets]
        held = [self._held(_owner(demand.holder, bucket)) for bucket in buckets]
        known = {"none": 0}.get(str(demand.before), demand.before)
        before = known if isinstance(known, int) else demand.context_tokens
        tokens = min(demand.prompt_tokens + before + demand.output_tokens, demand.context_tokens)
        costs = [(1 if bucket.name == REQUESTS else tokens) * MICRO for bucket in buckets]
        now = [_level(levels, bucket, now_us) for levels, bucket in zip(held, buckets, strict=True)]
        standing = Standing(
            levels=tuple(Level(bucket=bucket, micro=level) for bucket, level in zip(buckets, now, strict=True)),
            running=0,
            running_max=demand.running_max,
        )
        waits = [(0, "")]
        for bucket, cost, level in zip(buckets, costs, now, strict=True):
            if cost > bucket.capacity * MICRO:
                return TooLarge(lacking=bucket.name, tokens=tokens, capacity=bucket.capacity, standing=standing)
            if cost > level:
                waits.append((time_for_us(cost - level, bucket.per_minute), bucket.name))
        wait_us, lacking = max(waits)
        if lacking:
            return Denied(lacking=lacking, retry_after_ms=-(-wait_us // 1000), standing=standing)
        for levels, bucket, cost, level in zip(held, buckets, costs, now, strict=True):
            levels[bucket.name] = (level - cost, now_us)
        return Granted(fresh=False, standing=standing)

    def _held(self, owner: Owner) -> dict[str, tuple[int, int]]:
        levels = self._levels.pop(owner, {})
        self._levels[owner] = levels
        if len(self._levels) > ACCOUNTS_MAX:
            del self._levels[next(iter(self._levels))]
        return levels

    def _shared_out(self, bucket: Bucket) -> Bucket:
        capacity, per_minute = int(bucket.capacity * self._share), int(bucket.per_minute * self._share)
        return Bucket(bucket.name, max(capacity, 1), max(per_minute, 1))


def _owner(holder: Holder, bucket: Bucket) -> Owner:
    if bucket.name == ORGANISATION and holder.organisation_id is not None:
        return ("organisation", holder.organisation_id)
    return ("account", holder.account_id)


def _level(held: dict[str, tuple[int, int]], bucket: Bucket, now_us: int) -> int:
    level, at_us = held.get(bucket.name, (bucket.capacity * MICRO, now_us))
    return refilled(level, at_us, bucket, now_us)
