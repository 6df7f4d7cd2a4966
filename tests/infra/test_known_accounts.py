"""What an operator's command refuses, from the records of the topic `accounts`."""

import pytest
import typer

from infra.accounts import demo_changes, issue_key, open_account
from infra.accounts_log import expiry_of
from infra.data_folder import DemoAccount
from infra.errors import StackError
from infra.known_accounts import fold, refuse_existing, the_account, the_key, the_open_account
from schemas.account import Accounts, revocation
from schemas.events import AccountClosed, Event, LimitsChanged, TierChanged
from schemas.ids import key_id
from schemas.topics import ACCOUNTS
from streams.log.catchup import read_all
from streams.log.memory import MemoryLog
from streams.log.steps import Output, Partition, Record

KEY = "tlk_one"
OPENED = open_account("demo", "Demo", "free", 1)
ISSUED = issue_key("demo", KEY, 2)
CLOSED = AccountClosed(account_id="demo", closed_at_ms=3)


def records(*events: Event) -> list[Record]:
    log = MemoryLog()
    writer = log.writer("infra/turnlog")
    for event in events:
        writer.append(Output(event=event)).result(1)
    partitions = [Partition(ACCOUNTS.name, number) for number in range(log.partitions(ACCOUNTS.name))]
    return [record for found in read_all(log, partitions, timeout_s=5).values() for record in found]


def known(*events: Event) -> Accounts:
    return fold(records(*events))


def test_an_account_that_exists_is_not_opened_again() -> None:
    refuse_existing(known(), "demo")
    with pytest.raises(StackError, match=r'The account "demo" exists \(tier free\).*"turnlog keys create demo"'):
        refuse_existing(known(OPENED), "demo")
    with pytest.raises(StackError, match=r'The account "demo" is closed, and its id is not used again'):
        refuse_existing(known(OPENED, CLOSED), "demo")


def test_the_tier_is_the_newest_one() -> None:
    changed = known(OPENED, TierChanged(account_id="demo", tier="paid", changed_at_ms=3))
    assert the_account(changed, "demo").tier == "paid"


def test_a_key_needs_an_account_that_is_not_closed() -> None:
    the_open_account(known(OPENED), "demo")
    with pytest.raises(StackError, match=r'There is no account "nobody".*"turnlog accounts create nobody"'):
        the_open_account(known(OPENED), "nobody")
    with pytest.raises(StackError, match=r'The account "demo" is closed'):
        the_open_account(known(OPENED, CLOSED), "demo")


def test_a_key_without_its_account_opens_no_account() -> None:
    assert known(ISSUED).account("demo") is None


def test_only_a_key_of_the_account_is_revoked() -> None:
    other = open_account("other", "Other", "free", 1)
    here = known(OPENED, other, ISSUED)
    assert the_key(here, "demo", key_id(KEY)) == ISSUED
    with pytest.raises(StackError, match='belongs to the account "demo", not to "other"'):
        the_key(here, "other", key_id(KEY))
    with pytest.raises(StackError, match='"demo" has no key "key_nothing"'):
        the_key(here, "demo", "key_nothing")
    with pytest.raises(StackError, match='no account "nobody"'):
        the_key(here, "nobody", key_id(KEY))


def test_revoking_twice_is_no_failure() -> None:
    revoked = revocation(ISSUED, 3)
    assert the_key(known(OPENED, ISSUED, revoked), "demo", key_id(KEY)) == revoked


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
    assert fold([opened, gone]).account("demo") is None


DEMO = DemoAccount("demo", key_id(KEY), KEY, 5)


def test_the_demo_account_is_made_once_and_what_an_operator_changed_stays() -> None:
    made = demo_changes(DEMO, known())
    assert [type(event).__name__ for event in made] == ["AccountOpened", "KeyIssued", "LimitsChanged"]
    assert demo_changes(DEMO, known(*made)) == []
    revoked, limits = revocation(ISSUED, 6), LimitsChanged(account_id="demo", changed_at_ms=6)
    assert demo_changes(DEMO, known(*made, revoked, limits)) == []
    older = LimitsChanged(account_id="demo", requests_per_minute=6, changed_at_ms=5)
    assert demo_changes(DEMO, known(*made[:2], older)) == [made[2]]


NOW_MS = 1_796_000_000_000


@pytest.mark.parametrize(
    ("text", "expires_at_ms"),
    [
        ("30m", NOW_MS + 1_800_000),
        ("12h", NOW_MS + 43_200_000),
        ("90d", NOW_MS + 90 * 86_400_000),
        ("2w", NOW_MS + 14 * 86_400_000),
        ("2027-06-30", 1_814_313_600_000),
        ("2027-06-30T12:00:00Z", 1_814_356_800_000),
        ("2027-06-30T12:00:00+02:00", 1_814_349_600_000),
    ],
)
def test_an_expiry_is_a_day_a_time_or_a_span(text: str, expires_at_ms: int) -> None:
    assert expiry_of(text, NOW_MS) == expires_at_ms


@pytest.mark.parametrize(
    "text", ["", "0d", "-1d", "5y", "2027-06-30T12:00:00", "2027-13-01", "1970-01-01", "9999999d", "999999w"]
)
def test_what_is_no_expiry_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        expiry_of(text, NOW_MS)
