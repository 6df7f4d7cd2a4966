"""Accounts and keys, as events: an operator's command appends them, every API process folds them."""

from __future__ import annotations

from collections.abc import Sequence

from infra.data_folder import DemoAccount
from schemas.account import Accounts
from schemas.events import AccountOpened, Event, KeyIssued, LimitsChanged
from schemas.ids import key_hash, key_id, key_prefix
from schemas.values import Tier


def open_account(
    account_id: str, name: str, tier: Tier, now_ms: int, organisation_id: str | None = None
) -> AccountOpened:
    """An account that exists from now on."""
    return AccountOpened(
        account_id=account_id, name=name, tier=tier, opened_at_ms=now_ms, organisation_id=organisation_id
    )


def issue_key(
    account_id: str,
    key: str,
    now_ms: int,
    *,
    name: str = "",
    user_id: str | None = None,
    expires_at_ms: int | None = None,
) -> KeyIssued:
    """A key that opens the account from now on; the event holds its hash and its first characters only."""
    return KeyIssued(
        account_id=account_id,
        key_id=key_id(key),
        key_hash=key_hash(key),
        issued_at_ms=now_ms,
        name=name,
        prefix=key_prefix(key),
        user_id=user_id,
        expires_at_ms=expires_at_ms,
    )


DEMO_REQUESTS_PER_MINUTE = 6_000_000
DEMO_TOKENS_PER_MINUTE = 1_000_000_000
DEMO_RUNNING_MAX = 1_000_000
"""Out of the way of load tests on one machine."""


def demo_changes(demo: DemoAccount, known: Accounts) -> Sequence[Event]:
    """What the demo account lacks. What an operator has changed stays: a revoked key, other limits."""
    return [event for event in demo_events(demo) if _is_lacking(known.fact(event.key()), event)]


def _is_lacking(fact: Event | None, event: Event) -> bool:
    if fact is None:
        return True
    if not isinstance(fact, LimitsChanged) or not isinstance(event, LimitsChanged):
        return False
    return fact.changed_at_ms == event.changed_at_ms and fact != event  # of an earlier version of this program


def demo_events(demo: DemoAccount) -> Sequence[Event]:
    """The demo account of a local deployment."""
    return (
        open_account(demo.account_id, "Demo", "paid", demo.created_at_ms),
        KeyIssued(
            account_id=demo.account_id,
            key_id=demo.key_id,
            key_hash=key_hash(demo.key),
            issued_at_ms=demo.created_at_ms,
            name="demo",
            prefix=key_prefix(demo.key),
        ),
        LimitsChanged(
            account_id=demo.account_id,
            requests_per_minute=DEMO_REQUESTS_PER_MINUTE,
            tokens_per_minute=DEMO_TOKENS_PER_MINUTE,
            running_max=DEMO_RUNNING_MAX,
            changed_at_ms=demo.created_at_ms,
        ),
    )
