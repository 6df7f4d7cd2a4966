"""The price list: what counts, what is refused, and that amounts are exact."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from infra.price_example import example
from schemas.invoice import amount_of
from schemas.models import AMOUNT_MAX, LOCAL_PRICE, SMOLLM2, Price, cost, parse_models, plain, uncached
from schemas.prices import PriceEntry, entry_of, parse_prices, price_of
from schemas.values import Usage


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def entry(version: str, since: str, tier: str | None = None, **amounts: str) -> dict[str, object]:
    made: dict[str, object] = {"version": version, "model": SMOLLM2.name, "valid_from": f"{since}T00:00:00Z"}
    return made | ({"tier": tier} if tier else {}) | {"input": "1", "output": "2"} | amounts


def listed(*entries: dict[str, object]) -> tuple[PriceEntry, ...]:
    return parse_prices(json.dumps(entries))


LIST = listed(
    entry("a", "2026-01-01"), entry("b", "2026-07-01"), entry("p", "2026-03-01", tier="paid"), entry("z", "2027-01-01")
)


@pytest.mark.parametrize(
    ("tier", "at", "version"),
    [
        ("free", "2025-12-31T23:59:59.999", LOCAL_PRICE.version),
        ("free", "2026-01-01T00:00:00", "a"),
        ("free", "2026-06-30T23:59:59.999", "a"),
        ("free", "2026-07-01T00:00:00", "b"),
        ("paid", "2026-02-28T23:59:59.999", "a"),
        ("paid", "2026-03-01T00:00:00", "p"),
        ("paid", "2026-12-31T23:59:59.999", "p"),
        ("paid", "2027-01-01T00:00:00", "p"),
        ("free", "2027-01-01T00:00:00", "z"),
    ],
)
def test_the_entry_counts_that_holds_when_the_reply_was_accepted_a_tiers_own_first(
    tier: str, at: str, version: str
) -> None:
    assert price_of(LIST, SMOLLM2, tier, ms(at)).version == version


def test_the_order_of_the_list_does_not_matter_and_other_models_have_no_part_in_it() -> None:
    assert price_of(tuple(reversed(LIST)), SMOLLM2, "free", ms("2026-08-01")).version == "b"
    assert price_of(LIST, replace(SMOLLM2, name="other"), "free", ms("2026-08-01")) == LOCAL_PRICE
    assert entry_of(LIST, "other", "free", ms("2026-08-01")) is None


def test_cached_tokens_cost_a_part_of_the_input_unless_the_entry_says_and_zero_stays_zero() -> None:
    [left_out] = listed(entry("a", "2026-01-01", input="0.8"))
    price = left_out.price
    assert (price.cached_input, price.cache_write, price.long_write) == (Decimal("0.08"), Decimal(1), Decimal("1.6"))
    [zero] = listed(entry("a", "2026-01-01", cached_input="0", cache_write="0", cache_write_long="0", output="0"))
    price = zero.price
    assert (price.cached_input, price.cache_write, price.long_write, price.output) == (0, 0, 0, 0)
    assert replace(LOCAL_PRICE, cache_write_long=Decimal(0)).long_write == 0


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ("nonsense", "no JSON list"),
        ("{}", "no JSON list"),
        (json.dumps([entry("a", "2026-01-01") | {"discount": 1}]), "discount"),
        (json.dumps([{"version": "a"}]), "missing"),
        (json.dumps([entry("a", "2026-01-01") | {"valid_from": "2026-01-01T00:00:00"}]), "offset"),
        (json.dumps([entry("a", "2026-01-01") | {"currency": "usd"}]), "three letters"),
        (json.dumps([entry("a", "2026-01-01", input="-1")]), "entry 1 .*`input` is -1"),
        (json.dumps([entry("a", "2026-01-01", output="NaN")]), "`output` is NaN"),
        (json.dumps([entry("a", "2026-01-01", output=str(AMOUNT_MAX + 1))]), "`output`"),
        (json.dumps([entry("a", "2026-01-01", output="0.0000001")]), "6 digits"),
        (json.dumps([entry("a", "2026-01-01", input="0.00001")]), "`cache_write` is 0.0000125"),
        (json.dumps([entry("a", "2026-01-01"), entry("a", "2026-02-01")]), "entry 2 .* has this version"),
        (json.dumps([entry("a", "2026-01-01"), entry("b", "2026-01-01")]), "entry 2 .* has this valid_from"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused_and_the_entry_is_named(entries: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_prices(entries)


def test_the_smallest_and_the_largest_amounts_are_taken() -> None:
    amounts = {"cached_input": "0", "cache_write": "0", "cache_write_long": "0"}
    [small] = listed(entry("a", "2026-01-01", input="0.000001", output=str(AMOUNT_MAX), **amounts))
    used = Usage(input_tokens=1, output_tokens=1)
    assert cost(used, small.price) == Decimal("1000.000000000001")


def test_a_model_whose_price_no_bill_can_hold_is_refused_by_name() -> None:
    members = {"name": "m", "pool": "p", "context_tokens": 1, "output_tokens_max": 1, "output_tokens_default": 1}
    price = {"version": "1", "input": "0.0000001", "cached_input": "0", "cache_write": "0", "output": "0"}
    with pytest.raises(ValueError, match=r"the model .m.: its price: `input` is 0\.0000001"):
        parse_models(json.dumps([{**members, "price": price}]))
    with pytest.raises(ValueError, match="`input` is -1"):
        parse_models(json.dumps([{**members, "price": {**price, "input": "-1"}}]))


MONEY = st.decimals(0, 1_000_000, places=6, allow_nan=False)
COUNTS = st.integers(0, 10**12)


@given(st.tuples(MONEY, MONEY, MONEY, MONEY, MONEY), st.tuples(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS))
def test_a_cost_is_exact_and_bills_can_hold_it(
    prices: tuple[Decimal, ...], counts: tuple[int, int, int, int, int]
) -> None:
    names = ("input", "cached_input", "cache_write", "cache_write_long", "output")
    price = Price(version="1", **dict(zip(names, prices, strict=True)))
    fresh, read, written, long_written, output = counts
    used = Usage(
        input_tokens=fresh + read + written + long_written,
        cached_input_tokens=read,
        cache_write_tokens=written,
        cache_write_long_tokens=long_written,
        output_tokens=output,
    )
    assert uncached(used) == fresh
    exact = sum((Fraction(one) * count for one, count in zip(prices, counts, strict=True)), Fraction(0)) / 1_000_000
    amount = cost(used, price)
    assert Fraction(amount) == exact
    held = amount_of(plain(amount))
    assert held is not None
    assert Fraction(held) == exact


def test_ten_turns_from_500_tokens_growing_by_300_cost_as_18500_tokens_without_a_cache_and_5530_with_one() -> None:
    made = example(LOCAL_PRICE, turns=10, first=500, grow=300, output=0)
    assert made.input_tokens == 18_500
    assert made.input_equivalents == 5_530
    assert made.cost == 5_530 * LOCAL_PRICE.input / 1_000_000
    assert made.cost_uncached == 18_500 * LOCAL_PRICE.input / 1_000_000


def test_an_example_at_no_price_and_of_no_tokens_has_no_ratio_and_no_cost() -> None:
    free = replace(LOCAL_PRICE, input=Decimal(0))
    assert example(free, turns=1, first=500, grow=0, output=0).input_equivalents is None
    assert example(LOCAL_PRICE, turns=2, first=0, grow=0, output=0).cost == 0
