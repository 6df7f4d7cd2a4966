"""The tiers of a deployment: what an account of each may do. Limits of an account of its own go before its tier's."""

from collections.abc import Iterable, Mapping
from decimal import Decimal

import msgspec

from schemas.values import Priority, Tier

REQUESTS_PER_MINUTE_MAX = 60_000_000
TOKENS_MAX = 1_000_000_000
"""Of a bucket, and of its refill in a minute."""
REFILL_MINUTES_MAX = 24 * 60
"""How long an empty bucket may take to be full: what was used in twice that time is read again after a loss."""


class TierRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an account may do, by its tier and its own limits."""

    priority: Priority
    """Which of the workers' queues its requests wait in."""
    requests_per_minute: int
    tokens_per_minute: int
    """Refill of the token bucket: uncached input and output."""
    burst_tokens: int | None = None
    """Capacity of the bucket, at most the refill of a day; absent: of one minute."""
    model_tokens_per_minute: dict[str, int] = {}
    """By model: a bucket of the account for this model alone, of one minute's refill, besides the other."""
    pool_tokens_per_minute: dict[str, int] = {}
    """The same by pool."""
    organisation_tokens_per_minute: int | None = None
    """Of the bucket that all accounts of an organisation share; absent: none. Where their tiers differ, the largest
    holds for all of them."""
    output_tokens_max: int | None = None
    """Of one reply; absent: what the model allows."""
    running_max: int
    """Replies that are accepted and have not ended."""
    models: tuple[str, ...] | None = None
    """Those that it may ask for; absent: all."""
    spend_soft: Decimal | None = None
    """Of a calendar month (UTC), in the currency of its bill: from there on it is told."""
    spend_hard: Decimal | None = None
    """The same: from there on it is refused."""

    @property
    def capacity_tokens(self) -> int:
        """What the token bucket holds when it is full."""
        return self.tokens_per_minute if self.burst_tokens is None else self.burst_tokens

    @property
    def capacity_tokens_max(self) -> int:
        """The most that it may hold: what comes back in `REFILL_MINUTES_MAX`."""
        return self.tokens_per_minute * REFILL_MINUTES_MAX


LIFTABLE = (
    "burst_tokens",
    "model_tokens_per_minute",
    "pool_tokens_per_minute",
    "output_tokens_max",
    "models",
    "spend_soft",
    "spend_hard",
)
"""Members that a tier need not have: what an account may be freed of. An organisation's limit is not one account's."""


def lifted(rules: TierRules, names: Iterable[str]) -> TierRules:
    """The rules as if they did not have these members; names that are none of `LIFTABLE` say nothing."""
    free: dict[str, object] = {name: {} if name.endswith("_per_minute") else None for name in names if name in LIFTABLE}
    return msgspec.structs.replace(rules, **free)


Tiers = Mapping[Tier, TierRules]

DEFAULT_TIERS: Tiers = {
    "free": TierRules(priority="free", requests_per_minute=60, tokens_per_minute=40_000, running_max=20),
    "paid": TierRules(priority="paid", requests_per_minute=60_000, tokens_per_minute=20_000_000, running_max=2_000),
}
UNKNOWN_TIER = DEFAULT_TIERS["free"]
"""For an account whose tier is not configured any more."""


def rules_of(tiers: Tiers, name: Tier) -> TierRules:
    """The rules of a tier; of one that is not configured, those of `free`."""
    return tiers.get(name) or tiers.get("free") or UNKNOWN_TIER


def parse_tiers(text: str) -> Tiers:
    """The setting TURNLOG_TIERS: a JSON object, name of the tier -> members; they go before those of the default.

    Raises:
        ValueError: not such an object, or a member is missing, wrong or unknown; names tier and member.
    """
    try:
        named = msgspec.json.decode(text, type=dict[Tier, dict[str, object]])
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise ValueError(f"TURNLOG_TIERS: no JSON object of tiers by name: {error}") from error
    tiers = dict(DEFAULT_TIERS)
    for name, members in named.items():
        default = DEFAULT_TIERS.get(name)
        given = {field: getattr(default, field) for field in TierRules.__struct_fields__} if default else {}
        try:
            rules = msgspec.convert({**given, **members}, type=TierRules, strict=True)
        except msgspec.MsgspecError as error:
            raise ValueError(f"TURNLOG_TIERS: the tier {name!r}: {error}") from error
        _check(name, rules)
        tiers[name] = rules
    return tiers


def slow_refill(rules: TierRules) -> str:
    """What is wrong with a token bucket that takes too long to refill, for whoever sets it; empty: nothing."""
    if rules.capacity_tokens <= rules.capacity_tokens_max:
        return ""
    return (
        f"burst_tokens is {rules.capacity_tokens}, which takes more than a day to come back at"
        f" {rules.tokens_per_minute} tokens_per_minute; {rules.capacity_tokens_max} at most is possible with that"
    )


def _check(name: str, rules: TierRules) -> None:
    optional = {
        "organisation_tokens_per_minute": rules.organisation_tokens_per_minute,
        "output_tokens_max": rules.output_tokens_max,
    }
    counts = {
        "requests_per_minute": (rules.requests_per_minute, REQUESTS_PER_MINUTE_MAX),
        "tokens_per_minute": (rules.tokens_per_minute, TOKENS_MAX),
        "burst_tokens": (rules.capacity_tokens, TOKENS_MAX),
        **{member: (value, TOKENS_MAX) for member, value in optional.items() if value is not None},
        "running_max": (rules.running_max, TOKENS_MAX),
        **{f"model_tokens_per_minute of {key}": (n, TOKENS_MAX) for key, n in rules.model_tokens_per_minute.items()},
        **{f"pool_tokens_per_minute of {key}": (n, TOKENS_MAX) for key, n in rules.pool_tokens_per_minute.items()},
    }
    for member, (value, most) in counts.items():
        if not 1 <= value <= most:
            raise ValueError(f"TURNLOG_TIERS: the tier {name!r}: {member} is {value}; 1 to {most} is possible")
    if wrong := slow_refill(rules):
        raise ValueError(f"TURNLOG_TIERS: the tier {name!r}: {wrong}")
    for member, amount in (("spend_soft", rules.spend_soft), ("spend_hard", rules.spend_hard)):
        if amount is not None and not (amount.is_finite() and amount >= 0):
            raise ValueError(f"TURNLOG_TIERS: the tier {name!r}: {member} is {amount}; not an amount of money")
    if rules.models is not None and not rules.models:
        raise ValueError(f"TURNLOG_TIERS: the tier {name!r}: models names none; leave it out for all")
