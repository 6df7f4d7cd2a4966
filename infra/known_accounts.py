"""What the topic `accounts` says now: an operator's command refuses what would change nothing, or the wrong thing.

The rules of the fold are the API's: per record key the newest record counts, a tombstone takes it away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from infra.errors import StackError
from schemas.events import AccountOpened, Event, KeyIssued, KeyRevoked, TierChanged
from schemas.topics import ACCOUNTS
from schemas.values import Tier
from streams.log.steps import Record

READ_TIMEOUT_S = 20.0
CLIENT = "turnlog-infra"


@dataclass(frozen=True)
class KnownAccounts:
    """The newest event of each record key."""

    facts: Mapping[str, Event]

    def tier(self, account_id: str) -> Tier | None:
        """The account's tier; None when there is no such account."""
        opened, changed = self.facts.get(f"{account_id}/account"), self.facts.get(f"{account_id}/tier")
        if not isinstance(opened, AccountOpened):
            return None
        return changed.tier if isinstance(changed, TierChanged) else opened.tier

    def owner(self, key_id: str) -> str | None:
        """The account that a key was issued for, revoked or not."""
        keys = (fact for fact in self.facts.values() if isinstance(fact, KeyIssued | KeyRevoked))
        return next((key.account_id for key in keys if key.key_id == key_id), None)

    def refuse_existing(self, account_id: str) -> None:
        """Raise StackError when the account exists."""
        if (tier := self.tier(account_id)) is not None:
            raise StackError(
                f'The account "{account_id}" exists (tier {tier}); make another key with '
                f'"turnlog keys create {account_id}".'
            )

    def refuse_unknown(self, account_id: str) -> None:
        """Raise StackError when there is no such account."""
        if self.tier(account_id) is None:
            raise StackError(
                f'There is no account "{account_id}"; make it with "turnlog accounts create {account_id}".'
            )

    def refuse_unknown_key(self, account_id: str, key_id: str) -> None:
        """Raise StackError when the account has, and had, no such key."""
        self.refuse_unknown(account_id)
        if f"{account_id}/key/{key_id}" in self.facts:
            return
        if (owner := self.owner(key_id)) is not None:
            raise StackError(f'The key "{key_id}" belongs to the account "{owner}", not to "{account_id}".')
        raise StackError(
            f'The account "{account_id}" has no key "{key_id}": give the key_id (key_…) that "turnlog keys create" '
            "showed with the key."
        )


def fold(records: Iterable[Record]) -> KnownAccounts:
    """The accounts after these records, in their order per key. A record that cannot be read counts for nothing."""
    from schemas.codec import Undecodable
    from streams.log.encoding import decoded

    facts: dict[str, Event] = {}
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            facts.pop(record.key, None)
            continue
        with contextlib.suppress(Undecodable):
            facts[record.key] = decoded(record).event
    return KnownAccounts(facts)


def read_accounts(bootstrap: str, namespace: str) -> KnownAccounts:
    """All that the log holds of accounts now. Raises StackError."""
    from streams.log.catchup import read_all
    from streams.log.kafka import KafkaLog
    from streams.log.steps import LogError, Partition

    log = KafkaLog(bootstrap, namespace, CLIENT)
    try:
        partitions = [Partition(ACCOUNTS.name, number) for number in range(log.partitions(ACCOUNTS.name))]
        found = read_all(log, partitions, timeout_s=READ_TIMEOUT_S)
    except LogError as failure:
        raise StackError(
            f"The accounts cannot be read from Kafka at {bootstrap} ({failure}); `turnlog provision` makes their topic."
        ) from failure
    finally:
        log.close()
    return fold(record for records in found.values() for record in records)
