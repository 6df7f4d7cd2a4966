"""Who may do what: the topic `accounts`, compacted.

Each fact has a key of its own, and all of one account are in one partition.
"""

from typing import Literal

from schemas.events.base import Event
from schemas.values import Priority, Tier, TimeMs


class AccountOpened(Event, frozen=True):
    """An account exists. Version 2 added `organisation_id`."""

    TOPIC = "accounts"
    KEY = "account_id"
    VERSION = 2

    account_id: str
    name: str
    tier: Tier
    opened_at_ms: TimeMs
    organisation_id: str | None = None
    """Whose buckets it draws from too, together with its other accounts; None: nobody's."""

    def identity(self) -> str:
        return f"{self.account_id}/account"

    def key(self) -> str:
        return self.identity()


class AccountClosed(Event, frozen=True):
    """Nothing opens the account any more. What it used stays."""

    TOPIC = "accounts"
    KEY = "account_id"

    account_id: str
    closed_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.account_id}/closed"

    def key(self) -> str:
        return self.identity()


class AccountRenamed(Event, frozen=True):
    """What the account is called from now on; its id stays."""

    TOPIC = "accounts"
    KEY = "account_id"

    account_id: str
    name: str
    renamed_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.account_id}/name/{self.renamed_at_ms}"

    def key(self) -> str:
        return f"{self.account_id}/name"


class UnknownUsersChosen(Event, frozen=True):
    """Whether tokens (JWT) of users that the account has never added open it. Until it is chosen they are refused."""

    TOPIC = "accounts"
    KEY = "account_id"

    account_id: str
    unknown_users: Literal["refuse", "admit"]
    chosen_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.account_id}/unknown-users/{self.chosen_at_ms}"

    def key(self) -> str:
        return f"{self.account_id}/unknown-users"


class TierChanged(Event, frozen=True):
    """The account's tier from now on."""

    TOPIC = "accounts"
    KEY = "account_id"

    account_id: str
    tier: Tier
    changed_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.account_id}/tier/{self.changed_at_ms}"

    def key(self) -> str:
        return f"{self.account_id}/tier"


class UserAdded(Event, frozen=True):
    """A person (or program) of an account, to whom keys can belong."""

    TOPIC = "accounts"
    KEY = "account_id"

    account_id: str
    user_id: str
    """Unique within its account; the `sub` of a JWT."""
    name: str
    added_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.account_id}/user/{self.user_id}"

    def key(self) -> str:
        return self.identity()


class UserRemoved(Event, frozen=True):
    """The user's keys and tokens open nothing any more."""

    TOPIC = "accounts"
    KEY = "account_id"

    account_id: str
    user_id: str
    removed_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.account_id}/user/{self.user_id}/removed"

    def key(self) -> str:
        return f"{self.account_id}/user/{self.user_id}"


class KeyIssued(Event, frozen=True):
    """An API key exists. Only its hash is known to us; the key was shown once.

    Version 2 added `name`, `prefix`, `user_id` and `expires_at_ms`.
    """

    TOPIC = "accounts"
    KEY = "account_id"
    VERSION = 2

    account_id: str
    key_id: str
    key_hash: str
    """SHA-256 (hex) of the whole key. Keys have 128 random bits or more, so no salt is needed."""
    issued_at_ms: TimeMs
    name: str = ""
    """What its owner calls it."""
    prefix: str = ""
    """Its first characters, to recognise it by."""
    user_id: str | None = None
    expires_at_ms: TimeMs | None = None
    """From then on it opens nothing; None: never."""

    def identity(self) -> str:
        return f"{self.account_id}/key/{self.key_id}"

    def key(self) -> str:
        return self.identity()


class KeyRevoked(Event, frozen=True):
    """A key opens nothing any more.

    It takes the place of `KeyIssued` in the compacted topic, so it says what that said. Version 2 added all but the
    first three members.
    """

    TOPIC = "accounts"
    KEY = "account_id"
    VERSION = 2

    account_id: str
    key_id: str
    revoked_at_ms: TimeMs
    issued_at_ms: TimeMs | None = None
    name: str = ""
    prefix: str = ""
    user_id: str | None = None
    expires_at_ms: TimeMs | None = None

    def identity(self) -> str:
        return f"{self.account_id}/key/{self.key_id}/revoked"

    def key(self) -> str:
        return f"{self.account_id}/key/{self.key_id}"


class LimitsChanged(Event, frozen=True):
    """What the account may, where it differs from its tier (`schemas.tiers`). None: as the tier says.

    All of them at once: a later record replaces an earlier one. Version 2 added all but `requests_per_minute`; version
    3 `priority` and `lifted`.
    """

    TOPIC = "accounts"
    KEY = "account_id"
    VERSION = 3

    account_id: str
    changed_at_ms: TimeMs
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    burst_tokens: int | None = None
    output_tokens_max: int | None = None
    running_max: int | None = None
    models: tuple[str, ...] | None = None
    spend_soft: str | None = None
    """Decimal, of a calendar month (UTC)."""
    spend_hard: str | None = None
    priority: Priority | None = None
    """Which of the workers' queues its requests wait in."""
    lifted: tuple[str, ...] = ()
    """Limits of the tier that do not hold for it, by their names there."""

    def identity(self) -> str:
        return f"{self.account_id}/limits/{self.changed_at_ms}"

    def key(self) -> str:
        return f"{self.account_id}/limits"
