"""The models that a deployment serves: pool, limits and price of each. Money is Decimal, written as text."""

from decimal import Decimal

import msgspec

from schemas.values import Usage

MILLION = Decimal(1_000_000)


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """A price list entry: amounts per million tokens, in `currency`. The version stands on each usage record."""

    version: str
    currency: str = "USD"
    input: Decimal
    cached_input: Decimal
    cache_write: Decimal
    output: Decimal


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model by its public name, and the pool of workers that runs it."""

    name: str
    pool: str
    context_tokens: int
    """Prompt and output together."""
    output_tokens_max: int
    output_tokens_default: int
    price: Price
    bytes_per_token: float = 3.0
    """For estimates before the model's own tokenizer has seen the text; low is cautious."""
    smaller: str | None = None
    """The model that takes over under high demand: of the same pool, so that one dispatcher sees the load of both."""


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
        ValueError: not such a list, empty, or a name twice.
    """
    try:
        models = msgspec.json.decode(text, type=tuple[Model, ...])
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise ValueError(f"TURNLOG_MODELS: {error}") from error
    if not models or len({model.name for model in models}) != len(models):
        raise ValueError("TURNLOG_MODELS: at least one model, each name once")
    pools = {model.name: model.pool for model in models}
    for model in models:
        if model.smaller is not None and (model.smaller == model.name or pools.get(model.smaller) != model.pool):
            raise ValueError(
                f"TURNLOG_MODELS: `smaller` of {model.name} is {model.smaller!r}, which is no other model of its pool"
            )
    return models


def cost(usage: Usage, price: Price) -> Decimal:
    """What a usage costs: exact, not rounded. Buckets are exclusive: uncached + cached + written = input."""
    uncached = usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens
    return (
        uncached * price.input
        + usage.cached_input_tokens * price.cached_input
        + usage.cache_write_tokens * price.cache_write
        + usage.output_tokens * price.output
    ) / MILLION
