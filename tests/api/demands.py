"""What sends need, for tests of limits."""

from typing import Any

import msgspec

from api.limits import Demand, Leases
from schemas.tiers import DEFAULT_TIERS, Holder, TierRules, buckets_of, keep_ms

LEASES = Leases(door_ms=15_000, reply_ms=1_860_000)
RULES = msgspec.structs.replace(
    DEFAULT_TIERS["free"], requests_per_minute=60, tokens_per_minute=6_000, burst_tokens=1_000, running_max=10
)


def demand(
    reply_id: str = "rep_1",
    account_id: str = "a",
    rules: TierRules = RULES,
    *,
    conversation_id: str = "conv",
    organisation_id: str | None = None,
    model: str = "m",
    pool: str = "p",
    **members: Any,
) -> Demand:
    """A send's: 10 tokens of prompt and 90 of output where nothing else is said."""
    holder = Holder(account_id, organisation_id)
    needed = {"prompt_tokens": 10, "output_tokens": 90, "context_tokens": 100_000, "leases": LEASES} | members
    return Demand(
        holder=holder,
        reply_id=reply_id,
        conversation_id=conversation_id,
        buckets=buckets_of(rules, model, pool, holder),
        running_max=rules.running_max,
        keep_ms=keep_ms(rules),
        **needed,
    )
