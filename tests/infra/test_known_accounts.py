"""What an operator's command refuses, from the records of the topic `accounts`."""

import pytest

from infra.accounts import issue_key, open_account, revoke_key
from infra.data_folder import key_id
from infra.errors import StackError
from infra.known_accounts import KnownAccounts, fold
from schemas.events import Event, TierChanged
from schemas.topics import ACCOUNTS
from streams.log.catchup import read_all
from streams.log.memory import MemoryLog
from streams.log.steps import Output, Partition, Record

KEY = "tlk_one"
OPENED = open_account("demo", "Demo", "free", 1)
ISSUED = issue_key("demo", KEY, 2)


def records(*events: Event) -> list[Record]:
    log = MemoryLog()
    writer = log.writer("infra/turnlog")
    for event in events:
        writer.append(Output(event=event)).result(1)
    partitions = [Partition(ACCOUNTS.name, number) for number in range(log.partitions(ACCOUNTS.name))]
    return [record for found in read_all(log, partitions, timeout_s=5).values() for record in found]


def known(*events: Event) -> KnownAccounts:
    return fold(records(*events))


def test_an_account_that_exists_is_not_opened_again() -> None:
    known().refuse_existing("demo")
    with pytest.raises(StackError, match=r'The account "demo" exists \(tier free\).*"turnlog keys create demo"'):
        known(OPENED).refuse_existing("demo")


def test_the_tier_is_the_newest_one() -> None:
    assert known(OPENED, TierChanged(account_id="demo", tier="paid", changed_at_ms=3)).tier("demo") == "paid"


def test_a_key_needs_an_account() -> None:
    known(OPENED).refuse_unknown("demo")
    with pytest.raises(StackError, match=r'There is no account "nobody".*"turnlog accounts create nobody"'):
        known(OPENED).refuse_unknown("nobody")


def test_a_key_without_its_account_opens_no_account() -> None:
    assert known(ISSUED).tier("demo") is None


def test_only_a_key_of_the_account_is_revoked() -> None:
    other = open_account("other", "Other", "free", 1)
    here = known(OPENED, other, ISSUED)
    here.refuse_unknown_key("demo", key_id(KEY))
    with pytest.raises(StackError, match='belongs to the account "demo", not to "other"'):
        here.refuse_unknown_key("other", key_id(KEY))
    with pytest.raises(StackError, match='"demo" has no key "key_nothing"'):
        here.refuse_unknown_key("demo", "key_nothing")
    with pytest.raises(StackError, match='no account "nobody"'):
        here.refuse_unknown_key("nobody", key_id(KEY))


def test_revoking_twice_is_no_failure() -> None:
    known(OPENED, ISSUED, revoke_key("demo", key_id(KEY), 3)).refuse_unknown_key("demo", key_id(KEY))


def test_a_tombstone_takes_a_record_away() -> None:
    (opened,) = records(OPENED)
    gone = Record(
        topic=opened.topic,
        partition=opened.partition,
        offset=opened.offset + 1,
        key=opened.key,
        value=None,
        headers=[],
        timestamp_ms=2,
    )
    assert fold([opened, gone]).tier("demo") is None
