"""Answers to the operator's calls."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal

from pydantic import Field

from api.shapes import Shape, timestamp
from schemas.account import Account, effective, key_state
from schemas.events import KeyIssued, KeyRevoked, LimitsChanged, UserAdded
from schemas.tiers import TierRules, Tiers, rules_of

_MONEY = ("spend_soft", "spend_hard")


class AccountLimitsView(Shape):
    """Limits; null: none, or as the tier says."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    burst_tokens: int | None
    output_tokens_max: int | None
    running_max: int | None
    models: list[str] | None
    spend_soft: str | None
    spend_hard: str | None
    priority: Literal["paid", "free"] | None


class OwnLimitsView(AccountLimitsView):
    """Limits of the account's own; null: as the tier says."""

    lifted: list[str] = Field(description="Limits of its tier that do not hold for it.")


class AccountView(Shape):
    """An account."""

    id: str
    name: str
    tier: str
    organisation_id: str | None
    unknown_users: Literal["refuse", "admit"]
    opened_at: str
    closed_at: str | None
    own_limits: OwnLimitsView = Field(description="Where it differs from its tier.")
    limits: AccountLimitsView = Field(description="What holds for it: its own, else its tier's.")


class AccountPage(Shape):
    """Accounts, by id."""

    data: list[AccountView]
    next_cursor: str | None


class AdjustmentView(Shape):
    """A correction of what a reply was charged with."""

    id: str
    account_id: str
    reply_id: str
    usage_day: str = Field(description="The day of the reply's own record.")
    amount: str
    currency: str
    reason: str
    adjusted_at: str


class UserView(Shape):
    """A user of an account."""

    id: str
    name: str
    added_at: str


class UserPage(Shape):
    """Users, by id."""

    data: list[UserView]
    next_cursor: str | None


class KeyView(Shape):
    """A key."""

    id: str
    state: Literal["live", "expired", "revoked"]
    name: str | None
    prefix: str | None = Field(description="Its first characters.")
    user_id: str | None
    issued_at: str | None
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None = Field(description="To about a minute; null: not lately, or not known any more.")


class IssuedKeyView(KeyView):
    """A key, with itself where it is new."""

    api_key: str | None = Field(description="Shown this once; null where the call repeats an earlier one.")


class KeyPage(Shape):
    """Keys, by id."""

    data: list[KeyView]
    next_cursor: str | None


def account_view(account: Account, tiers: Tiers) -> AccountView:
    """An account as the operator sees it."""
    own = account.limits
    return AccountView(
        id=account.id,
        name=account.name,
        tier=account.tier,
        organisation_id=account.organisation_id,
        unknown_users=account.unknown_users,
        opened_at=timestamp(account.opened_at_ms),
        closed_at=_time(account.closed_at_ms),
        own_limits=OwnLimitsView(**_limits(own), lifted=[] if own is None else list(own.lifted)),
        limits=AccountLimitsView(**_limits(effective(account, rules_of(tiers, account.tier)))),
    )


def user_view(user: UserAdded) -> UserView:
    """A user as the operator sees it."""
    return UserView(id=user.user_id, name=user.name, added_at=timestamp(user.added_at_ms))


def key_view(key: KeyIssued | KeyRevoked, used_ms: Mapping[str, int], now_ms: int) -> KeyView:
    """A key as the operator sees it."""
    return KeyView(
        id=key.key_id,
        state=key_state(key, now_ms),
        name=key.name,
        prefix=key.prefix or None,
        user_id=key.user_id,
        issued_at=_time(key.issued_at_ms),
        expires_at=_time(key.expires_at_ms),
        revoked_at=timestamp(key.revoked_at_ms) if isinstance(key, KeyRevoked) else None,
        last_used_at=_time(used_ms.get(key.key_id)),
    )


def _limits(limits: LimitsChanged | TierRules | None) -> dict[str, Any]:
    members: dict[str, Any] = {name: getattr(limits, name, None) for name in AccountLimitsView.model_fields}
    models = members["models"]
    money = {name: None if (held := members[name]) is None else f"{Decimal(held):f}" for name in _MONEY}
    return members | money | {"models": None if models is None else list(models)}


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else timestamp(at_ms)
