"""The accounts: a fold of the topic `accounts`, held by every API process (`api.compacted`).

Rules:

1. Per record key the newest record counts, a tombstone takes it away (the topic is compacted). Nothing depends on the
   order of different keys.
2. A key opens its account while it is issued, not revoked, and the account exists. Keys are known by their hash only.
3. The tier's limits hold unless the account has its own.
"""

import msgspec

from api.stores import Rate
from schemas.events import AccountOpened, Event, KeyIssued, LimitsChanged, TierChanged
from schemas.values import Tier


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Whose request it is."""

    account_id: str
    key_id: str
    tier: Tier
    requests_per_minute: int | None
    """The account's own limit; None: the tier's."""


class Accounts:
    """The fold. One thread applies, any thread asks."""

    def __init__(self) -> None:
        self._facts: dict[str, Event] = {}
        self._keys: dict[str, KeyIssued] = {}

    def apply(self, key: str, event: Event | None) -> None:
        """A record of the topic: its key and its event, None for a tombstone."""
        before = self._facts.pop(key, None)
        if isinstance(before, KeyIssued):
            self._keys.pop(before.key_hash, None)
        if event is None:
            return
        self._facts[key] = event
        if isinstance(event, KeyIssued):
            self._keys[event.key_hash] = event

    def caller(self, key_hash: str) -> Caller | None:
        """Who has this key."""
        issued = self._keys.get(key_hash)
        return self._caller(issued) if issued is not None else None

    def caller_of(self, account_id: str, key_id: str) -> Caller | None:
        """Who has the key of this id."""
        issued = self._facts.get(f"{account_id}/key/{key_id}")
        return self._caller(issued) if isinstance(issued, KeyIssued) else None

    def _caller(self, issued: KeyIssued) -> Caller | None:
        account_id = issued.account_id
        opened = self._facts.get(f"{account_id}/account")
        if not isinstance(opened, AccountOpened):
            return None
        changed = self._facts.get(f"{account_id}/tier")
        limits = self._facts.get(f"{account_id}/limits")
        return Caller(
            account_id=account_id,
            key_id=issued.key_id,
            tier=changed.tier if isinstance(changed, TierChanged) else opened.tier,
            requests_per_minute=limits.requests_per_minute if isinstance(limits, LimitsChanged) else None,
        )


def rate_of(caller: Caller, tier_limits: dict[Tier, int]) -> Rate:
    """The caller's limit of requests."""
    return Rate(caller.requests_per_minute or tier_limits[caller.tier])
