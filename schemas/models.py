"""The models that a deployment serves: pool, limits and price of each. Money is Decimal, written as text."""

import re
from decimal import Decimal

import msgspec

from schemas.values import Usage

MILLION = Decimal(1_000_000)


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A price list entry: amounts per million tokens, in `currency`. The version stands on each usage record."""

    version: str
    """Stands on each usage record: give a new one to each change of an amount."""
    currency: str = "USD"
    input: Decimal
    """Of prompt tokens that were neither cached nor written to the cache. Write amounts as text: `"0.05"`."""
    cached_input: Decimal
    """Of prompt tokens that came from the cache."""
    cache_write: Decimal
    """Of prompt tokens that the engine says it wrote to the cache."""
    cache_write_long: Decimal | None = None
    """The same, to a cache that is kept for an hour or more. Absent: twice `input`."""
    output: Decimal

    @property
    def long_write(self) -> Decimal:
        """What a token that is written to the long cache costs."""
        return 2 * self.input if self.cache_write_long is None else self.cache_write_long


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model by its public name, and the pool of workers that runs it."""

    name: str
    """What clients ask for. The first model of the list answers to `auto` too."""
    pool: str
    """The workers that run it, as their TURNLOG_POOL: lower case letters, digits, `.`, `_`, `-`."""
    context_tokens: int
    """Prompt and output together."""
    output_tokens_max: int
    """The longest output that a client may ask for."""
    output_tokens_default: int
    """The longest output where the client says nothing."""
    price: Price
    """Per million tokens; its members are below."""
    bytes_per_token: float = 3.0
    """For estimates before the model's own tokenizer has seen the text; low is cautious."""
    smaller: str | None = None
    """The model that takes over under high demand: of the same pool, so that one dispatcher sees the load of both."""


AMOUNT_DIGITS = 6
"""Behind the point, of an amount per million tokens: a bill holds twice as many, so that a single token is exact."""
AMOUNT_MAX = 1_000_000_000


def wrong_amount(price: Price) -> str | None:
    """What is wrong with the amounts of a price; None: nothing."""
    amounts = {
        "input": price.input,
        "cached_input": price.cached_input,
        "cache_write": price.cache_write,
        "cache_write_long": price.long_write,
        "output": price.output,
    }
    for name, amount in amounts.items():
        if not (amount.is_finite() and 0 <= amount <= AMOUNT_MAX):
            return f"`{name}` is {amount}, which is no amount from 0 to {AMOUNT_MAX}"
        if amount != round(amount, AMOUNT_DIGITS):
            return f"`{name}` is {amount:f}: give it with at most {AMOUNT_DIGITS} digits behind the point"
    return None


LOCAL_PRICE = Price(
    version="2026-11",
    input=Decimal("0.05"),
    cached_input=Decimal("0.005"),
    cache_write=Decimal("0.0625"),
    output=Decimal("0.20"),
)

SMOLLM2 = Model(
    name="smollm2-135m-instruct",
    pool="default",
    context_tokens=8192,
    output_tokens_max=4096,
    output_tokens_default=512,
    price=LOCAL_PRICE,
)

DEFAULT_MODELS: tuple[Model, ...] = (SMOLLM2,)


def find(models: tuple[Model, ...], name: str) -> Model | None:
    """The model of a name; `auto` is the first one."""
    if name == "auto":
        return models[0] if models else None
    return next((model for model in models if model.name == name), None)


def parse_models(text: str) -> tuple[Model, ...]:
    """The setting TURNLOG_MODELS: a JSON list of models.

    Raises:
        ValueError: not such a list, empty, a name twice, or a member missing, wrong or unknown; names the model.
    """
    try:
        listed = msgspec.json.decode(text, type=tuple[msgspec.Raw, ...])
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise ValueError(f"TURNLOG_MODELS: no JSON list of models: {error}") from error
    models = tuple(_model(entry, place) for place, entry in enumerate(listed, 1))
    if not models or len({model.name for model in models}) != len(models):
        raise ValueError("TURNLOG_MODELS: at least one model, each name once")
    pools = {model.name: model.pool for model in models}
    for model in models:
        if model.smaller is not None and (model.smaller == model.name or pools.get(model.smaller) != model.pool):
            raise ValueError(
                f"TURNLOG_MODELS: `smaller` of {model.name} is {model.smaller!r}, which is no other model of its pool"
            )
    return models


_UNKNOWN = re.compile(r"Object contains unknown field `(?P<member>.*?)`")
_MISSING = re.compile(r"Object missing required field `(?P<member>.*?)`")
_INSIDE = re.compile(r" - at `\$\.?(?P<path>.*)`$")


def _model(entry: msgspec.Raw, place: int) -> Model:
    try:
        model = msgspec.json.decode(entry, type=Model)
    except msgspec.MsgspecError as error:
        raise ValueError(f"TURNLOG_MODELS: {_called(entry, place)}{_said(str(error))}") from error
    wrong = wrong_amount(model.price)
    if wrong is not None:
        raise ValueError(f"TURNLOG_MODELS: {_called(entry, place)}: its price: {wrong}")
    return model


def _called(entry: msgspec.Raw, place: int) -> str:
    """The model by its name; by its place in the list where it has none."""
    try:
        name = msgspec.json.decode(entry, type=dict[str, object]).get("name")
    except msgspec.MsgspecError:
        name = None
    return f"the model {name!r}" if isinstance(name, str) else f"model number {place} of the list"


def _said(text: str) -> str:
    """A refusal of msgspec in the words of the list."""
    inside = _INSIDE.search(text)
    within = f" (in `{inside['path']}`)" if inside else ""
    plain = text[: inside.start()] if inside else text
    if unknown := _UNKNOWN.match(plain):
        kind = Price if inside else Model
        return f"{within} has an unknown member `{unknown['member']}`; members are {', '.join(kind.__struct_fields__)}"
    if missing := _MISSING.match(plain):
        return f"{within} lacks the member `{missing['member']}`"
    return f"{within}: {plain[:1].lower()}{plain[1:]}"


def uncached(usage: Usage) -> int:
    """Prompt tokens that were neither read from a cache nor written to one: what is left of the input."""
    return usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens - usage.cache_write_long_tokens


def cost(usage: Usage, price: Price) -> Decimal:
    """What a usage costs: exact, not rounded. Parts are exclusive: uncached + cached + written = input."""
    return (
        uncached(usage) * price.input
        + usage.cached_input_tokens * price.cached_input
        + usage.cache_write_tokens * price.cache_write
        + usage.cache_write_long_tokens * price.long_write
        + usage.output_tokens * price.output
    ) / MILLION


def plain(amount: Decimal) -> str:
    """A Decimal without exponent and without trailing zeros."""
    text = f"{amount:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text
