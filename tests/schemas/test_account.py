"""The fold of the topic `accounts`: what it says, and that replay, repetition and compaction change nothing of it."""

import threading
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.account import Accounts, effective, rules_for
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
from schemas.tiers import DEFAULT_TIERS

OPENED = AccountOpened(account_id="acme", name="Acme", tier="free", opened_at_ms=1)
ISSUED = KeyIssued(account_id="acme", key_id="k", key_hash="h", issued_at_ms=2)


def folded(*events: Event) -> Accounts:
    accounts = Accounts()
    for event in events:
        accounts.apply(event.key(), event)
    return accounts


def added(user_id: str = "ada") -> UserAdded:
    return UserAdded(account_id="acme", user_id=user_id, name="Ada", added_at_ms=2)


def removed(user_id: str = "ada") -> UserRemoved:
    return UserRemoved(account_id="acme", user_id=user_id, removed_at_ms=3)


def admits(what: str = "admit") -> UnknownUsersChosen:
    return UnknownUsersChosen(account_id="acme", unknown_users=what, chosen_at_ms=3)


CLOSED = AccountClosed(account_id="acme", closed_at_ms=9)


def test_a_key_opens_its_account_while_nothing_ended_it():
    assert folded(OPENED, ISSUED).opened_by("h", 5) == ISSUED
    assert folded(ISSUED, OPENED).opened_by("h", 5) == ISSUED, "in any order of different facts"
    revoked = KeyRevoked(account_id="acme", key_id="k", revoked_at_ms=3)
    for ended in ((OPENED, ISSUED, revoked), (OPENED, ISSUED, CLOSED), (ISSUED,), (OPENED,)):
        assert folded(*ended).opened_by("h", 5) is None


def test_a_key_expires_to_the_millisecond():
    soon = KeyIssued(account_id="acme", key_id="k", key_hash="h", issued_at_ms=2, expires_at_ms=10)
    assert folded(OPENED, soon).opened_by("h", 9) == soon
    assert folded(OPENED, soon).opened_by("h", 10) is None


def test_a_users_key_opens_while_the_account_has_the_user():
    hers = KeyIssued(account_id="acme", key_id="k", key_hash="h", issued_at_ms=2, user_id="ada")
    assert folded(OPENED, hers).opened_by("h", 5) is None
    assert folded(OPENED, hers, added()).opened_by("h", 5) == hers
    assert folded(OPENED, hers, added(), removed()).opened_by("h", 5) is None
    assert folded(OPENED, hers, admits()).opened_by("h", 5) is None, "a key's user is one that was added"


@pytest.mark.parametrize(
    ("events", "let_in"),
    [
        ((), False),
        ((OPENED,), False),
        ((OPENED, added()), True),
        ((OPENED, added(), removed()), False),
        ((OPENED, added(), removed(), added()), True),
        ((OPENED, admits()), True),
        ((OPENED, admits(), admits("refuse")), False),
        ((OPENED, admits(), removed()), False),
        ((OPENED, admits(), added(), removed()), False),
        ((OPENED, added(), CLOSED), False),
        ((OPENED, admits(), CLOSED), False),
        ((admits(), added()), False),
    ],
)
def test_whom_an_account_lets_in(events, let_in):
    assert folded(*events).lets_in("acme", "ada") is let_in


def test_the_newest_name_tier_and_limits_hold():
    account = folded(
        OPENED,
        AccountRenamed(account_id="acme", name="Acme Ltd", renamed_at_ms=3),
        TierChanged(account_id="acme", tier="paid", changed_at_ms=3),
        LimitsChanged(account_id="acme", running_max=7, spend_hard="10.5", changed_at_ms=3),
        LimitsChanged(account_id="acme", running_max=8, spend_soft="0", changed_at_ms=4),
    ).account("acme")
    assert account is not None
    assert (account.name, account.tier) == ("Acme Ltd", "paid")
    rules = effective(account, DEFAULT_TIERS["paid"])
    assert (rules.running_max, rules.spend_soft, rules.spend_hard) == (8, Decimal(0), None)
    assert rules.tokens_per_minute == DEFAULT_TIERS["paid"].tokens_per_minute


SHARING = {
    "free": replace(DEFAULT_TIERS["free"], organisation_tokens_per_minute=1_000),
    "paid": replace(DEFAULT_TIERS["paid"], organisation_tokens_per_minute=900_000),
    "none": DEFAULT_TIERS["free"],
}


def of_organisation(account_id, tier, organisation_id="o"):
    return AccountOpened(account_id=account_id, name="x", tier=tier, opened_at_ms=1, organisation_id=organisation_id)


def shared_limits(*events):
    accounts = folded(*events)
    return {one.id: rules_for(accounts, one, SHARING).organisation_tokens_per_minute for one in accounts.accounts()}


def test_an_organisation_has_one_limit_whoever_asks_the_largest_of_its_open_accounts_tiers():
    free, paid, none = of_organisation("a", "free"), of_organisation("b", "paid"), of_organisation("c", "none")
    alone = AccountOpened(account_id="d", name="x", tier="free", opened_at_ms=1)
    other = of_organisation("e", "free", "other")
    everyone = (free, paid, none, alone, other)
    assert shared_limits(*everyone) == {"a": 900_000, "b": 900_000, "c": 900_000, "d": 1_000, "e": 1_000}
    lower = TierChanged(account_id="b", tier="free", changed_at_ms=2)
    assert shared_limits(*everyone, lower)["c"] == 1_000
    closed = AccountClosed(account_id="b", closed_at_ms=2)
    assert shared_limits(*everyone, closed)["a"] == 1_000
    assert shared_limits(none) == {"c": None}


def test_of_live_keys_of_one_name_the_first_counts():
    first = KeyIssued(account_id="acme", key_id="k1", key_hash="h1", issued_at_ms=2, name="ci", expires_at_ms=9)
    second = KeyIssued(account_id="acme", key_id="k2", key_hash="h2", issued_at_ms=3, name="ci")
    accounts = folded(OPENED, first, second)
    assert accounts.live_key("acme", "ci", 8) == first
    assert accounts.live_key("acme", "ci", 9) == second
    accounts.apply("acme/key/k2", KeyRevoked(account_id="acme", key_id="k2", revoked_at_ms=9))
    assert accounts.live_key("acme", "ci", 9) is None


def test_accounts_come_by_id_page_by_page():
    ids = ["b", "a", "c-1", "c", "d"]
    accounts = folded(*(AccountOpened(account_id=one, name=one, tier="free", opened_at_ms=1) for one in ids))
    accounts.apply("ca/limits", LimitsChanged(account_id="ca", changed_at_ms=1))  # of no account that was opened
    assert [account.id for account in accounts.accounts()] == sorted(ids)
    assert [account.id for account in accounts.after("b", 2)] == ["c", "c-1"]
    assert [account.id for account in accounts.after("c-1", 5)] == ["d"]
    assert accounts.after("d", 5) == ()


_IDS, _KEYS, _USERS = st.sampled_from(["acme", "other"]), st.sampled_from(["k1", "k2"]), st.sampled_from(["ada", "bob"])
_TIMES = st.integers(min_value=1, max_value=20)
EVENTS = st.one_of(
    st.builds(
        AccountOpened,
        account_id=_IDS,
        name=st.just("x"),
        tier=st.just("free"),
        opened_at_ms=_TIMES,
        organisation_id=st.sampled_from([None, "o"]),
    ),
    st.builds(AccountClosed, account_id=_IDS, closed_at_ms=_TIMES),
    st.builds(AccountRenamed, account_id=_IDS, name=st.sampled_from(["y", "z"]), renamed_at_ms=_TIMES),
    st.builds(TierChanged, account_id=_IDS, tier=st.just("paid"), changed_at_ms=_TIMES),
    st.builds(
        UnknownUsersChosen, account_id=_IDS, unknown_users=st.sampled_from(["refuse", "admit"]), chosen_at_ms=_TIMES
    ),
    st.builds(UserAdded, account_id=_IDS, user_id=_USERS, name=st.just(""), added_at_ms=_TIMES),
    st.builds(UserRemoved, account_id=_IDS, user_id=_USERS, removed_at_ms=_TIMES),
    st.builds(
        KeyIssued,
        account_id=_IDS,
        key_id=_KEYS,
        key_hash=st.sampled_from(["h1", "h2", "h3"]),
        issued_at_ms=_TIMES,
        user_id=st.none() | _USERS,
        expires_at_ms=st.none() | _TIMES,
    ),
    st.builds(KeyRevoked, account_id=_IDS, key_id=_KEYS, revoked_at_ms=_TIMES),
    st.builds(LimitsChanged, account_id=_IDS, changed_at_ms=_TIMES, running_max=st.none() | _TIMES),
)
RECORDS = st.lists(
    st.one_of(
        EVENTS.map(lambda event: (event.key(), event)),
        EVENTS.map(lambda event: (event.key(), None)),
    ),
    max_size=30,
)


def said(accounts: Accounts) -> object:
    """All that can be asked of it."""
    return [
        (
            list(accounts.accounts()),
            accounts.after("b", 1),
            [
                (
                    account_id,
                    sorted(map(repr, accounts.users(account_id))),
                    sorted(map(repr, accounts.keys(account_id))),
                    [accounts.lets_in(account_id, user) for user in ("ada", "bob", "eve")],
                )
                for account_id in ("acme", "other")
            ],
            [accounts.owner(key_id) is None for key_id in ("k1", "k2")],
            sorted(accounts.tiers_of("o")),
        )
    ]


def applied(records) -> Accounts:
    accounts = Accounts()
    for key, event in records:
        accounts.apply(key, event)
    return accounts


@given(RECORDS, st.data())
def test_replay_repetition_and_compaction_change_nothing(records, data):
    once = said(applied(records))
    assert said(applied([*records, *records])) == once, "read twice"
    assert said(applied([record for record in records for _ in range(2)])) == once, "each doubled"
    cut = data.draw(st.integers(min_value=0, max_value=len(records)))
    newest = {key: place for place, (key, _) in enumerate(records)}
    compacted = [one for place, one in enumerate(records) if place >= cut or newest[one[0]] == place]
    assert said(applied(compacted)) == once, "cleaned up to somewhere"


@given(RECORDS)
def test_an_organisation_has_the_tiers_of_its_open_accounts(records):
    accounts = applied(records)
    open_ones = [one for one in accounts.accounts() if one.organisation_id == "o" and one.closed_at_ms is None]
    assert set(accounts.tiers_of("o")) == {one.tier for one in open_ones}


def one_hash_each(records) -> bool:
    hashes: dict[str, str] = {}
    keys = [event for _, event in records if isinstance(event, KeyIssued)]
    return all(hashes.setdefault(key.key_hash, key.key()) == key.key() for key in keys)


@given(RECORDS.filter(one_hash_each))
def test_a_hash_opens_what_a_plain_reading_of_the_facts_says(records):
    accounts = applied(records)
    facts = dict(records)
    for key_hash in ("h1", "h2", "h3"):
        issued = [f for f in facts.values() if isinstance(f, KeyIssued) and f.key_hash == key_hash]
        opens = [
            key
            for key in issued
            if facts.get(f"{key.account_id}/account") is not None
            and facts.get(f"{key.account_id}/closed") is None
            and (key.expires_at_ms is None or key.expires_at_ms > 10)
            and (key.user_id is None or isinstance(facts.get(f"{key.account_id}/user/{key.user_id}"), UserAdded))
        ]
        assert accounts.opened_by(key_hash, 10) == (opens[0] if opens else None)


def test_what_is_written_again_is_never_missing_for_who_asks_meanwhile():
    accounts = folded(OPENED, ISSUED)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            accounts.apply(ISSUED.key(), ISSUED)
            accounts.apply(OPENED.key(), OPENED)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        missing = sum(accounts.opened_by("h", 5) is None for _ in range(50_000))
    finally:
        stop.set()
        writing.join()
    assert missing == 0
