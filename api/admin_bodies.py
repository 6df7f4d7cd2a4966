"""Bodies of the operator's calls."""

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AwareDatetime, ConfigDict, Field, StringConstraints, model_validator

from api.bodies import Body
from schemas.ids import ACCOUNT_ID
from schemas.invoice import ADJUSTMENT_ID, REASON_CHARS_MAX
from schemas.tiers import LIFTABLE, REQUESTS_PER_MINUTE_MAX, TOKENS_MAX
from schemas.values import Priority

NAME_CHARS_MAX = 200
MODELS_MAX = 100
TIER = r"^[a-z0-9][a-z0-9_-]{0,31}$"

AccountName = Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX)]
TierName = Annotated[str, Field(pattern=TIER, description="One that is configured (TURNLOG_TIERS).")]
UnknownUsers = Annotated[
    Literal["refuse", "admit"],
    Field(description="Whether a token (JWT) of a user that was never added opens the account."),
]
Requests = Annotated[int, Field(ge=1, le=REQUESTS_PER_MINUTE_MAX)]
Liftable = Literal[
    "burst_tokens",
    "model_tokens_per_minute",
    "pool_tokens_per_minute",
    "output_tokens_max",
    "models",
    "spend_soft",
    "spend_hard",
]
Tokens = Annotated[int, Field(ge=1, le=TOKENS_MAX)]
Money = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9]{1,15}(\.[0-9]{1,12})?$"),
    Field(description="Of a calendar month (UTC), a decimal number as text.", examples=["100.50"]),
]


class AccountBody(Body):
    """A new account."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "Acme", "tier": "paid"}]})

    name: AccountName
    tier: TierName = "free"
    organisation_id: Annotated[str, Field(pattern=ACCOUNT_ID)] | None = Field(
        default=None, description="Whose limits it shares with its other accounts. It stays as it is."
    )


class AccountChangeBody(Body):
    """What of an account changes."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tier": "paid"}]})

    name: AccountName | None = None
    tier: TierName | None = None
    unknown_users: UnknownUsers | None = None

    @model_validator(mode="after")
    def _something_changes(self) -> "AccountChangeBody":
        if self.name is None and self.tier is None and self.unknown_users is None:
            raise ValueError("give name, tier or unknown_users")
        return self


class LimitsBody(Body):
    """All limits of the account's own, and those that it is freed of; what is absent is as its tier says."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tokens_per_minute": 100_000, "spend_hard": "100"}]})

    requests_per_minute: Requests | None = None
    tokens_per_minute: Tokens | None = None
    burst_tokens: Tokens | None = Field(default=None, description="What the bucket of tokens holds.")
    output_tokens_max: Tokens | None = None
    running_max: Tokens | None = None
    models: Annotated[list[str], Field(min_length=1, max_length=MODELS_MAX)] | None = Field(
        default=None, description="The only ones that it may ask for."
    )
    spend_soft: Money | None = None
    spend_hard: Money | None = None
    priority: Priority | None = Field(default=None, description="Which of the workers' queues its requests wait in.")
    lifted: Annotated[list[Liftable], Field(max_length=len(LIFTABLE))] = Field(
        default=[], description="Limits of its tier that do not hold for it."
    )

    @model_validator(mode="after")
    def _is_lifted_or_given(self) -> "LimitsBody":
        if both := sorted(name for name in set(self.lifted) if getattr(self, name, None) is not None):
            raise ValueError(f"{', '.join(both)}: lifted and given")
        return self

    @model_validator(mode="after")
    def _soft_comes_first(self) -> "LimitsBody":
        if self.spend_soft and self.spend_hard and Decimal(self.spend_soft) > Decimal(self.spend_hard):
            raise ValueError("spend_soft must not be above spend_hard")
        return self


class UserBody(Body):
    """A user of an account."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "Ada"}]})

    name: Annotated[str, Field(max_length=NAME_CHARS_MAX)] = ""


class KeyBody(Body):
    """A new key."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ci", "expires_at": "2027-06-30T00:00:00Z"}]})

    name: Annotated[str, Field(max_length=NAME_CHARS_MAX)] = Field(
        default="", description="Makes the call idempotent: an account has one live key of a name."
    )
    user_id: str | None = Field(default=None, description="One of the account's users; the key ends with it.")
    expires_at: AwareDatetime | None = Field(default=None, description="From then on it opens nothing.")


class AdjustmentBody(Body):
    """A correction of what a reply was charged with."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"id": "ticket-7", "reply_id": "rep_…", "amount": "-0.05", "reason": "The reply was empty."}]
        }
    )

    id: Annotated[str, Field(pattern=f"^{ADJUSTMENT_ID.pattern}$")] | None = Field(
        default=None, description="The same id again is the same correction. Absent: a new one each time."
    )
    reply_id: Annotated[str, Field(min_length=1, max_length=128)]
    amount: Annotated[str, Field(min_length=1, max_length=40)] = Field(
        description="What the charge changes by, a decimal number in its currency: a refund is negative."
    )
    reason: Annotated[str, Field(min_length=1, max_length=REASON_CHARS_MAX)] = Field(description="Stands on the bill.")
