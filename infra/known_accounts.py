"""What the topic `accounts` says now: an operator's command refuses what would change nothing, or the wrong thing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from infra.errors import StackError
from schemas.account import Account, Accounts
from schemas.events import KeyIssued, KeyRevoked
from schemas.topics import ACCOUNTS
from streams.log.steps import Record

READ_TIMEOUT_S = 20.0
CLIENT = "turnlog-infra"


def fold(records: Iterable[Record]) -> Accounts:
    """The accounts after these records, in their order per key. A record that cannot be read counts for nothing."""
    from schemas.codec import Undecodable
    from streams.log.encoding import decoded

    accounts = Accounts()
    for record in records:
        if record.key is None:
            continue
        with contextlib.suppress(Undecodable):
            accounts.apply(record.key, None if record.value is None else decoded(record).event)
    return accounts


def read_accounts(bootstrap: str, namespace: str) -> Accounts:
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


def refuse_existing(accounts: Accounts, account_id: str) -> None:
    """Raise StackError when there is or was such an account."""
    account = accounts.account(account_id)
    if account is None:
        return
    if account.closed_at_ms is not None:
        raise StackError(f'The account "{account_id}" is closed, and its id is not used again: take another one.')
    raise StackError(
        f'The account "{account_id}" exists (tier {account.tier}); make another key with '
        f'"turnlog keys create {account_id}".'
    )


def the_account(accounts: Accounts, account_id: str) -> Account:
    """The account, closed or not. Raises StackError when there is none."""
    account = accounts.account(account_id)
    if account is None:
        raise StackError(f'There is no account "{account_id}"; make it with "turnlog accounts create {account_id}".')
    return account


def the_open_account(accounts: Accounts, account_id: str) -> Account:
    """The account, which is not closed. Raises StackError."""
    account = the_account(accounts, account_id)
    if account.closed_at_ms is not None:
        raise StackError(f'The account "{account_id}" is closed, for good.')
    return account


def the_key(accounts: Accounts, account_id: str, key_id: str) -> KeyIssued | KeyRevoked:
    """The account's key, revoked or not. Raises StackError when it has, and had, no such key."""
    the_account(accounts, account_id)
    key = accounts.key(account_id, key_id)
    if key is not None:
        return key
    if (owner := accounts.owner(key_id)) is not None:
        raise StackError(f'The key "{key_id}" belongs to the account "{owner}", not to "{account_id}".')
    raise StackError(
        f'The account "{account_id}" has no key "{key_id}": give the key_id (key_…) that "turnlog keys create" '
        f'showed with the key; "turnlog keys list {account_id}" lists them.'
    )
