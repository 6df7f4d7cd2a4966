"""The buckets of an account: what each holds, how it refills, whose they are. `limits.lua` keeps them in Redis. Pure.

Rules:

1. A bucket holds `capacity` and refills evenly, `per_minute` in a minute, up to that. It is counted in millionths, in
   whole numbers: what is granted is never more than its capacity and what has come back since.
2. A request takes of all its buckets or of none: one request, and its tokens of the account's bucket, of the account's
   for the model and for the pool where the tier has such, and of the organisation's.
3. A bucket that has been left alone for the time that it takes to refill is full, whatever was taken before. The
   longest such time of an account is its window: what is older than that need not be known to say what is in there.
"""

import msgspec

from schemas.tiers.rules import TierRules

MICRO = 1_000_000
REQUESTS, TOKENS, ORGANISATION, RUNNING = "requests", "tokens", "organisation", "running"
"""Names; others are `model:<name>`, `pool:<name>`. `running` is no bucket: replies that have not ended."""

KEEP_LEAST_MS = 3_600_000
KEEP_MOST_MS = 400 * 86_400_000


class Bucket(msgspec.Struct, frozen=True):
    """A limit that refills evenly."""

    name: str
    capacity: int
    per_minute: int

    @property
    def refill_ms(self) -> int:
        """How long an empty one takes to be full."""
        return -(-self.capacity * 60_000 // self.per_minute)


class Holder(msgspec.Struct, frozen=True):
    """Whose buckets they are. All of an organisation's accounts share a hash tag: one slot of a cluster."""

    account_id: str
    organisation_id: str | None = None

    def keys(self, namespace: str) -> tuple[bytes, bytes]:
        """The two keys from which `limits.lua` derives all others: the account's, and what its tag shares."""
        tag = f"a/{self.account_id}" if self.organisation_id is None else f"o/{self.organisation_id}"
        shared = f"{namespace}:limits:{{{tag}}}"
        return f"{shared}:{self.account_id}".encode(), shared.encode()


def buckets_of(rules: TierRules, model: str, pool: str, holder: Holder) -> tuple[Bucket, ...]:
    """Those that a request for a model takes from. See rule 2."""
    found = [_requests(rules), _tokens(rules)]
    if (of_model := rules.model_tokens_per_minute.get(model)) is not None:
        found.append(Bucket(f"model:{model}", of_model, of_model))
    if (of_pool := rules.pool_tokens_per_minute.get(pool)) is not None:
        found.append(Bucket(f"pool:{pool}", of_pool, of_pool))
    return (*found, *_organisation(rules, holder))


def all_buckets(rules: TierRules, holder: Holder) -> tuple[Bucket, ...]:
    """Every one that the account has."""
    models = [Bucket(f"model:{name}", n, n) for name, n in sorted(rules.model_tokens_per_minute.items())]
    pools = [Bucket(f"pool:{name}", n, n) for name, n in sorted(rules.pool_tokens_per_minute.items())]
    return (_requests(rules), _tokens(rules), *models, *pools, *_organisation(rules, holder))


def window_ms(rules: TierRules) -> int:
    """See rule 3."""
    shared = rules.organisation_tokens_per_minute
    one_minute = 60_000 if shared or rules.model_tokens_per_minute or rules.pool_tokens_per_minute else 0
    return max(_requests(rules).refill_ms, _tokens(rules).refill_ms, one_minute)


def keep_ms(rules: TierRules) -> int:
    """How long the state of buckets is kept that nobody touches: longer than they need to be full, from any debt that
    is not larger than they are."""
    return min(2 * window_ms(rules) + KEEP_LEAST_MS, KEEP_MOST_MS)


def time_for_us(micro: int, per_minute: int) -> int:
    """How long it takes until so many millionths have come back, in microseconds, rounded up."""
    return -(-micro * 60 // per_minute)


def refilled(level: int, at_us: int, bucket: Bucket, now_us: int) -> int:
    """What a bucket holds now, in millionths, that held `level` at some time. A clock that went back adds nothing."""
    return min(bucket.capacity * MICRO, level + max(now_us - at_us, 0) * bucket.per_minute // 60)


def _requests(rules: TierRules) -> Bucket:
    return Bucket(REQUESTS, rules.requests_per_minute, rules.requests_per_minute)


def _tokens(rules: TierRules) -> Bucket:
    return Bucket(TOKENS, rules.capacity_tokens, rules.tokens_per_minute)


def _organisation(rules: TierRules, holder: Holder) -> tuple[Bucket, ...]:
    shared = rules.organisation_tokens_per_minute
    return () if shared is None or holder.organisation_id is None else (Bucket(ORGANISATION, shared, shared),)
