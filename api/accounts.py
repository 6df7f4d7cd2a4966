"""Whose request it is, and what it may do: from the fold of the topic `accounts` and the tiers of the deployment."""

import msgspec

from schemas.account import Accounts, rules_for
from schemas.events import KeyIssued
from schemas.tiers import Holder, TierRules, Tiers
from schemas.values import Tier


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Whose request it is."""

    account_id: str
    key_id: str
    """Empty: it came with a token of an issuer, not with a key."""
    user_id: str | None = None
    organisation_id: str | None = None
    tier: Tier
    rules: TierRules
    """Its tier's, with the account's own limits in them, and its organisation's."""

    until_ms: int | None = None
    """When its token expires; None: it came with a key."""

    @property
    def holder(self) -> Holder:
        """Whose buckets it takes from."""
        return Holder(self.account_id, self.organisation_id)


def caller_of(accounts: Accounts, tiers: Tiers, issued: KeyIssued, now_ms: int) -> Caller | None:
    """Who has this key, while it opens its account."""
    account = accounts.account(issued.account_id)
    if account is None or not accounts.opens(issued, now_ms):
        return None
    return Caller(
        account_id=account.id,
        key_id=issued.key_id,
        user_id=issued.user_id,
        organisation_id=account.organisation_id,
        tier=account.tier,
        rules=rules_for(accounts, account, tiers),
    )


def caller_of_user(
    accounts: Accounts, tiers: Tiers, account_id: str, user_id: str, until_ms: int | None = None
) -> Caller | None:
    """Who came with a token of an issuer, if the account lets the user in."""
    account = accounts.account(account_id)
    if account is None or not accounts.lets_in(account_id, user_id):
        return None
    return Caller(
        account_id=account_id,
        key_id="",
        user_id=user_id,
        organisation_id=account.organisation_id,
        tier=account.tier,
        rules=rules_for(accounts, account, tiers),
        until_ms=until_ms,
    )
