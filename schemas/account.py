"""The fold of the topic `accounts`: who there is, and what each may do. Used by the API and the command line.

Rules:

1. Per record key the newest record counts, a tombstone takes it away (the topic is compacted). Nothing depends on the
   order of different keys.
2. A key opens its account while it is issued, not revoked and not expired, the account is open, and the user that it
   belongs to, if any, is one of the account's. Keys are known by their hash only.
3. A token of an issuer opens its account while the account is open and lets its user in: one of its users, or, where it
   admits unknown users, one that it has never removed.
4. The tier's rules hold, each limit that the account has of its own before the tier's.
5. The limit that an organisation's accounts share is the organisation's own: the largest that the tier of one of its
   open accounts gives. It is the same for all of them, whoever asks, also for one whose tier gives none.

At no moment does a thread that asks see less than was there before or is there now: what replaces a fact takes its
place at once.
"""

from bisect import bisect_right, insort
from collections.abc import Iterator
from decimal import Decimal
from typing import Literal

import msgspec

from schemas.events import (
    AccountClosed,
    AccountOpened,
    AccountRenamed,
    Event,
    KeyIssued,
    KeyRevoked,
    LimitsChanged,
    TierChanged,
    UnknownUsersChosen,
    UserAdded,
    UserRemoved,
)
from schemas.tiers import TierRules, Tiers, lifted, rules_of
from schemas.values import Tier


def revocation(key: KeyIssued, at_ms: int) -> KeyRevoked:
    """That a key opens nothing from now on."""
    return KeyRevoked(
        account_id=key.account_id,
        key_id=key.key_id,
        revoked_at_ms=at_ms,
        issued_at_ms=key.issued_at_ms,
        name=key.name,
        prefix=key.prefix,
        user_id=key.user_id,
        expires_at_ms=key.expires_at_ms,
    )


def key_state(key: KeyIssued | KeyRevoked, now_ms: int) -> Literal["live", "expired", "revoked"]:
    """What became of a key by itself, whatever its account and user are."""
    if isinstance(key, KeyRevoked):
        return "revoked"
    return "expired" if key.expires_at_ms is not None and now_ms >= key.expires_at_ms else "live"


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """An account now."""

    id: str
    name: str
    tier: Tier
    organisation_id: str | None
    opened_at_ms: int
    closed_at_ms: int | None
    limits: LimitsChanged | None
    """Its own; None: the tier's alone."""
    unknown_users: Literal["refuse", "admit"] = "refuse"
    """What becomes of tokens of users that were never added."""


class Accounts:
    """The fold. One thread applies, any thread asks."""

    def __init__(self) -> None:
        self._facts: dict[str, Event] = {}
        self._of: dict[str, dict[str, None]] = {}
        """Record keys by account, in the order in which they came."""
        self._ids: list[str] = []
        """Of accounts, sorted."""
        self._keys: dict[str, KeyIssued] = {}
        """By hash."""
        self._tiers: dict[str, dict[Tier, int]] = {}
        """How many open accounts of each tier an organisation has."""

    def apply(self, key: str, event: Event | None) -> None:
        """A record of the topic: its key and its event, None for a tombstone."""
        before = self._facts.get(key)
        account_id = key.partition("/")[0]
        moves = isinstance(event or before, AccountOpened | AccountClosed | TierChanged)
        place = self._place(account_id) if moves else None
        if event is None:
            self._facts.pop(key, None)
            self._of.get(account_id, {}).pop(key, None)
        else:
            if account_id not in self._of:
                self._of[account_id] = {}
                insort(self._ids, account_id)
            self._facts[key] = event
            self._of[account_id].setdefault(key, None)
        if isinstance(event, KeyIssued):
            self._keys[event.key_hash] = event
        if isinstance(before, KeyIssued) and not (isinstance(event, KeyIssued) and event.key_hash == before.key_hash):
            self._keys.pop(before.key_hash, None)
        if moves and (now := self._place(account_id)) != place:
            self._count(now, 1)
            self._count(place, -1)

    def fact(self, key: str) -> Event | None:
        """The newest event of a record key."""
        return self._facts.get(key)

    def knows(self, event: Event) -> bool:
        """Whether this event is the newest one of its record key."""
        return self._facts.get(event.key()) == event

    def account(self, account_id: str) -> Account | None:
        """The account, closed or not; None where there never was one."""
        opened = self._facts.get(f"{account_id}/account")
        if not isinstance(opened, AccountOpened):
            return None
        closed = self._facts.get(f"{account_id}/closed")
        changed = self._facts.get(f"{account_id}/tier")
        limits = self._facts.get(f"{account_id}/limits")
        renamed = self._facts.get(f"{account_id}/name")
        unknown = self._facts.get(f"{account_id}/unknown-users")
        return Account(
            id=account_id,
            name=renamed.name if isinstance(renamed, AccountRenamed) else opened.name,
            tier=changed.tier if isinstance(changed, TierChanged) else opened.tier,
            organisation_id=opened.organisation_id,
            opened_at_ms=opened.opened_at_ms,
            closed_at_ms=closed.closed_at_ms if isinstance(closed, AccountClosed) else None,
            limits=limits if isinstance(limits, LimitsChanged) else None,
            unknown_users=unknown.unknown_users if isinstance(unknown, UnknownUsersChosen) else "refuse",
        )

    def accounts(self) -> Iterator[Account]:
        """All, by id."""
        last = ""
        while page := self.after(last, 1000):
            yield from page
            last = page[-1].id

    def after(self, account_id: str, limit: int) -> tuple[Account, ...]:
        """Those behind this id, by id; at most so many."""
        found: list[Account] = []
        place = bisect_right(self._ids, account_id)
        while len(found) < limit and (ids := self._ids[place : place + limit]):
            found += [account for one in ids if (account := self.account(one)) is not None]
            place += limit
        return tuple(found[:limit])

    def tiers_of(self, organisation_id: str) -> tuple[Tier, ...]:
        """Those that the organisation's open accounts have."""
        return tuple(self._tiers.get(organisation_id, ()))

    def users(self, account_id: str) -> tuple[UserAdded, ...]:
        """The account's users, in the order in which they were added."""
        return tuple(fact for fact in self._facts_of(account_id) if isinstance(fact, UserAdded))

    def user(self, account_id: str, user_id: str) -> UserAdded | None:
        """One of them."""
        added = self._facts.get(f"{account_id}/user/{user_id}")
        return added if isinstance(added, UserAdded) else None

    def is_removed(self, account_id: str, user_id: str) -> bool:
        """Whether the account has removed this user, and not added it again."""
        return isinstance(self._facts.get(f"{account_id}/user/{user_id}"), UserRemoved)

    def lets_in(self, account_id: str, user_id: str) -> bool:
        """Whether a good token of this user opens the account. See rule 3."""
        account = self.account(account_id)
        if account is None or account.closed_at_ms is not None or self.is_removed(account_id, user_id):
            return False
        return account.unknown_users == "admit" or self.user(account_id, user_id) is not None

    def keys(self, account_id: str) -> tuple[KeyIssued | KeyRevoked, ...]:
        """The account's keys, revoked ones too, in the order in which they were issued or revoked."""
        return tuple(fact for fact in self._facts_of(account_id) if isinstance(fact, KeyIssued | KeyRevoked))

    def key(self, account_id: str, key_id: str) -> KeyIssued | KeyRevoked | None:
        """One of them."""
        fact = self._facts.get(f"{account_id}/key/{key_id}")
        return fact if isinstance(fact, KeyIssued | KeyRevoked) else None

    def live_key(self, account_id: str, name: str, now_ms: int) -> KeyIssued | None:
        """The account's key of this name that is not revoked and not expired; of several the one that came first."""
        for key in self.keys(account_id):
            if isinstance(key, KeyIssued) and key.name == name and self.opens(key, now_ms):
                return key
        return None

    def owner(self, key_id: str) -> str | None:
        """The account that a key was issued for, revoked or not."""
        return next((one for one in list(self._of) if self.key(one, key_id) is not None), None)

    def opened_by(self, key_hash: str, now_ms: int) -> KeyIssued | None:
        """The key of this hash, if it opens its account now."""
        issued = self._keys.get(key_hash)
        return issued if issued is not None and self.opens(issued, now_ms) else None

    def opens(self, issued: KeyIssued, now_ms: int) -> bool:
        """Whether a key that is not revoked opens its account now. See rule 2."""
        if key_state(issued, now_ms) != "live":
            return False
        if issued.user_id is not None and self.user(issued.account_id, issued.user_id) is None:
            return False
        account = self.account(issued.account_id)
        return account is not None and account.closed_at_ms is None

    def _place(self, account_id: str) -> tuple[str, Tier] | None:
        """An open account's organisation, and its tier there."""
        account = self.account(account_id)
        if account is None or account.organisation_id is None or account.closed_at_ms is not None:
            return None
        return account.organisation_id, account.tier

    def _count(self, place: tuple[str, Tier] | None, more: int) -> None:
        if place is None:
            return
        organisation_id, tier = place
        counts = self._tiers.get(organisation_id, {})
        counts = {name: n for name, n in {**counts, tier: counts.get(tier, 0) + more}.items() if n}
        if counts:
            self._tiers[organisation_id] = counts
        else:
            self._tiers.pop(organisation_id, None)

    def _facts_of(self, account_id: str) -> list[Event]:
        return [fact for key in list(self._of.get(account_id, ())) if (fact := self._facts.get(key)) is not None]


def rules_for(accounts: Accounts, account: Account, tiers: Tiers) -> TierRules:
    """What holds for an account. See rules 4 and 5."""
    rules = effective(account, rules_of(tiers, account.tier))
    if account.organisation_id is None:
        return rules
    of_tiers = (
        rules_of(tiers, tier).organisation_tokens_per_minute for tier in accounts.tiers_of(account.organisation_id)
    )
    shared = max((most for most in of_tiers if most is not None), default=None)
    return msgspec.structs.replace(rules, organisation_tokens_per_minute=shared)


def effective(account: Account, rules: TierRules) -> TierRules:
    """The tier's rules with the account's own limits in them.

    A token bucket that would take more than a day to refill, because the tier gives less now, holds what comes back in
    a day.
    """
    if account.limits is None:
        return rules
    own = with_own(rules, account.limits)
    if own.capacity_tokens <= own.capacity_tokens_max:
        return own
    return msgspec.structs.replace(own, burst_tokens=own.capacity_tokens_max)


def with_own(rules: TierRules, own: LimitsChanged) -> TierRules:
    """The rules with an account's own limits in them, as they were given, and without those that it is freed of."""
    limits = {
        "priority": own.priority,
        "requests_per_minute": own.requests_per_minute,
        "tokens_per_minute": own.tokens_per_minute,
        "burst_tokens": own.burst_tokens,
        "output_tokens_max": own.output_tokens_max,
        "running_max": own.running_max,
        "models": own.models,
        "spend_soft": None if own.spend_soft is None else Decimal(own.spend_soft),
        "spend_hard": None if own.spend_hard is None else Decimal(own.spend_hard),
    }
    given = {name: value for name, value in limits.items() if value is not None}
    return msgspec.structs.replace(lifted(rules, own.lifted), **given)
