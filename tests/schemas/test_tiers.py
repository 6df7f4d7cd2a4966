"""Tiers: what the setting may say, and what holds where it says nothing."""

import json
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.account import Account, effective, with_own
from schemas.events import LimitsChanged
from schemas.tiers import DEFAULT_TIERS, LIFTABLE, parse_tiers, rules_of
from schemas.tiers.rules import REQUESTS_PER_MINUTE_MAX, TOKENS_MAX

WHOLE = {"priority": "free", "requests_per_minute": 1, "tokens_per_minute": 1, "running_max": 1}


def parsed(name: str, **members: Any) -> Any:
    return parse_tiers(json.dumps({name: members}))[name]


def test_what_is_not_given_is_as_in_the_default_and_other_tiers_stay() -> None:
    tiers = parse_tiers('{"free": {"requests_per_minute": 7}}')
    assert tiers["free"].requests_per_minute == 7
    assert tiers["free"].tokens_per_minute == DEFAULT_TIERS["free"].tokens_per_minute
    assert tiers["paid"] == DEFAULT_TIERS["paid"]


def test_a_tier_of_ones_own_needs_its_members_and_an_unknown_one_has_those_of_free() -> None:
    assert parsed("trial", **WHOLE).capacity_tokens == 1
    with pytest.raises(ValueError, match="'trial': Object missing required field `priority`"):
        parsed("trial")
    assert rules_of(parse_tiers("{}"), "gone") == DEFAULT_TIERS["free"]


def test_a_bucket_holds_a_minute_unless_it_is_told() -> None:
    assert parsed("trial", **WHOLE | {"tokens_per_minute": 50}).capacity_tokens == 50
    assert parsed("trial", **WHOLE | {"burst_tokens": 70}).capacity_tokens == 70


COUNTS = {
    "requests_per_minute": REQUESTS_PER_MINUTE_MAX,
    "tokens_per_minute": TOKENS_MAX,
    "burst_tokens": TOKENS_MAX,
    "organisation_tokens_per_minute": TOKENS_MAX,
    "output_tokens_max": TOKENS_MAX,
    "running_max": TOKENS_MAX,
}


@pytest.mark.parametrize(("member", "most"), COUNTS.items())
def test_a_count_is_from_one_to_its_limit(member: str, most: int) -> None:
    fast = {"tokens_per_minute": most} if member == "burst_tokens" else {}
    for value in (1, most):
        assert getattr(parsed("free", **{member: value}, **fast), member) == value
    for value in (-1, 0, most + 1):
        with pytest.raises(ValueError, match=rf"'free': {member} is {value}; 1 to {most} is possible"):
            parsed("free", **{member: value})


def test_a_token_bucket_refills_in_a_day_at_most() -> None:
    for burst in (9 * 1_440 - 1, 9 * 1_440):
        assert parsed("free", tokens_per_minute=9, burst_tokens=burst).capacity_tokens == burst
    with pytest.raises(
        ValueError, match="'free': burst_tokens is 12961, which takes more than a day to come back at 9 "
    ):
        parsed("free", tokens_per_minute=9, burst_tokens=9 * 1_440 + 1)


@pytest.mark.parametrize(("burst", "held"), [(12_959, 12_959), (12_960, 12_960), (12_961, 12_960)])
def test_an_accounts_own_burst_is_cut_to_what_its_tier_refills_in_a_day(burst: int, held: int) -> None:
    own = LimitsChanged(account_id="a", changed_at_ms=1, burst_tokens=burst)
    account = Account(
        id="a", name="A", tier="free", organisation_id=None, opened_at_ms=1, closed_at_ms=None, limits=own
    )
    assert effective(account, replace(DEFAULT_TIERS["free"], tokens_per_minute=9)).capacity_tokens == held


FULL = {
    "burst_tokens": 1_000,
    "model_tokens_per_minute": {"m": 5},
    "pool_tokens_per_minute": {"p": 5},
    "output_tokens_max": 5,
    "models": ["m"],
    "spend_soft": "1",
    "spend_hard": "2",
}


@pytest.mark.parametrize("name", LIFTABLE)
def test_what_is_lifted_does_not_hold_for_the_account_and_all_else_does(name: str) -> None:
    tier, bare = parsed("free", **FULL), parsed("free")
    own = LimitsChanged(account_id="a", changed_at_ms=1, lifted=(name, "running_max", "unknown"), priority="paid")
    rules = with_own(tier, own)
    assert getattr(rules, name) == getattr(bare, name) != getattr(tier, name)
    assert rules == replace(tier, priority="paid", **{name: getattr(bare, name)})
    assert set(FULL) == set(LIFTABLE)


@pytest.mark.parametrize("member", ["model_tokens_per_minute", "pool_tokens_per_minute"])
def test_a_bucket_by_model_or_pool_is_named_where_it_is_wrong(member: str) -> None:
    assert getattr(parsed("free", **{member: {"large": 5}}), member) == {"large": 5}
    with pytest.raises(ValueError, match=f"{member} of large is 0"):
        parsed("free", **{member: {"large": 0}})


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"spend_hard": "-1"}, "spend_hard is -1; not an amount"),
        ({"spend_soft": "NaN"}, "spend_soft is NaN"),
        ({"models": []}, "models names none"),
        ({"limit": 1}, "unknown field `limit`"),
        ({"priority": "urgent"}, "priority"),
        ({"running_max": "many"}, "running_max"),
    ],
)
def test_a_wrong_member_is_refused_by_name(members: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parsed("free", **members)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"Free": {}}', '{"": {}}', '{"free": 1}'])
def test_what_is_no_object_of_tiers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="TURNLOG_TIERS: no JSON object of tiers by name"):
        parse_tiers(text)


def test_an_accounts_own_limits_go_before_its_tiers() -> None:
    own = LimitsChanged(account_id="a", changed_at_ms=1, running_max=3, spend_hard="12.5", models=("m",))
    account = Account(
        id="a", name="A", tier="free", organisation_id=None, opened_at_ms=1, closed_at_ms=None, limits=own
    )
    rules = effective(account, DEFAULT_TIERS["free"])
    assert (rules.running_max, rules.spend_hard, rules.models) == (3, Decimal("12.5"), ("m",))
    assert rules.requests_per_minute == DEFAULT_TIERS["free"].requests_per_minute
