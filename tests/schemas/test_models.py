"""Money is exact, and a bad model list is refused with a sentence."""

from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.models import DEFAULT_MODELS, MILLION, SMOLLM2, Model, Price, cost, find, parse_models
from schemas.values import Usage

AMOUNTS = st.decimals(min_value=0, max_value=10_000, places=6, allow_nan=False, allow_infinity=False)
PRICES = st.builds(
    Price, version=st.just("1"), input=AMOUNTS, cached_input=AMOUNTS, cache_write=AMOUNTS, output=AMOUNTS
)
COUNTS = st.integers(0, 10_000_000)


def usage(uncached: int, cached: int, written: int, output: int) -> Usage:
    return Usage(
        input_tokens=uncached + cached + written,
        output_tokens=output,
        cached_input_tokens=cached,
        cache_write_tokens=written,
    )


@given(PRICES, COUNTS, COUNTS, COUNTS, COUNTS)
def test_a_cost_is_exact(price, uncached, cached, written, output):
    made = cost(usage(uncached, cached, written, output), price)
    assert isinstance(made, Decimal)
    scale = 10**6
    units = (
        uncached * int(price.input * scale)
        + cached * int(price.cached_input * scale)
        + written * int(price.cache_write * scale)
        + output * int(price.output * scale)
    )
    assert made * scale * MILLION == units


@given(PRICES, st.lists(st.tuples(COUNTS, COUNTS, COUNTS, COUNTS), max_size=5))
def test_costs_add_up(price, parts):
    total = usage(*(sum(column) for column in zip(*parts, strict=True))) if parts else usage(0, 0, 0, 0)
    assert sum((cost(usage(*part), price) for part in parts), Decimal(0)) == cost(total, price)


@given(PRICES, COUNTS)
def test_an_explicit_zero_price_stays_zero(price, tokens):
    free = msgspec.structs.replace(price, output=Decimal(0))
    assert cost(usage(0, 0, 0, tokens), free) == 0


def test_the_local_price_of_a_reply():
    assert cost(usage(15, 16, 0, 7), SMOLLM2.price) == Decimal("0.00000223")


def test_models_survive_the_setting():
    text = msgspec.json.encode(DEFAULT_MODELS).decode()
    assert parse_models(text) == DEFAULT_MODELS


def test_prices_are_not_binary_fractions():
    text = msgspec.json.encode(DEFAULT_MODELS).decode().replace('"0.05"', "0.1")
    assert parse_models(text)[0].price.input == Decimal("0.1")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", "[1]", '[{"name": "m"}]', "\ud800"],
)
def test_a_bad_model_list_is_refused_with_the_settings_name(text):
    with pytest.raises(ValueError, match="TURNLOG_MODELS"):
        parse_models(text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"smalller": "x"}, "the model 'm' has an unknown member `smalller`; members are name, pool"),
        ({"price": {"version": "1", "inptu": "1"}}, r"the model 'm' \(in `price`\) has an unknown member `inptu`"),
        ({"price": {"version": "1"}}, r"the model 'm' \(in `price`\) lacks the member `input`"),
        ({"pool": None}, r"the model 'm' \(in `pool`\): expected `str`, got `null`"),
        ({"name": 7}, r"model number 2 of the list \(in `name`\): expected `str`"),
        ({"smaller": "absent"}, "`smaller` of m is 'absent', which is no other model of its pool"),
    ],
)
def test_a_bad_model_is_named_with_what_is_wrong_in_it(change, says):
    whole = msgspec.to_builtins(SMOLLM2)
    listed = [whole, {**whole, "name": "m", **change}]
    with pytest.raises(ValueError, match=f"TURNLOG_MODELS: {says}"):
        parse_models(msgspec.json.encode(listed).decode())


def test_a_member_that_a_model_lacks_is_named_with_the_model():
    whole = msgspec.to_builtins(SMOLLM2)
    for lacking in ("name", "pool"):
        rest = {name: value for name, value in whole.items() if name != lacking}
        called = "model number 1 of the list" if lacking == "name" else f"the model '{SMOLLM2.name}'"
        with pytest.raises(ValueError, match=f"TURNLOG_MODELS: {called} lacks the member `{lacking}`"):
            parse_models(msgspec.json.encode([rest]).decode())


def test_one_name_twice_is_refused():
    with pytest.raises(ValueError, match="each name once"):
        parse_models(msgspec.json.encode(DEFAULT_MODELS * 2).decode())


def test_auto_is_the_first_model():
    other = msgspec.structs.replace(SMOLLM2, name="other")
    models: tuple[Model, ...] = (other, SMOLLM2)
    assert find(models, "auto") is other
    assert find(models, SMOLLM2.name) is SMOLLM2
    assert find(models, "absent") is None
    assert find((), "auto") is None
