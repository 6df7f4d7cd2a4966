"""`turnlog price`: the price list, worked out on a conversation."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from infra.cli_accounts import tier_of
from infra.cli_options import AsJson, settings_from
from infra.errors import StackError
from infra.price_example import Example, example
from schemas.models import Model, Price, find, plain
from schemas.prices import PriceEntry, price_of

Name = Annotated[str | None, typer.Argument(help="The model; without one the first of TURNLOG_MODELS.")]
Tier = Annotated[str, typer.Option(help="The tier.")]
Version = Annotated[str | None, typer.Option("--price-version", help="A version of the price list, whenever it holds.")]
At = Annotated[str | None, typer.Option(help="The price that holds then: RFC 3339, or a day (UTC). [default: now]")]
TURNS_MAX = 10_000
TOKENS_MAX = 1_000_000_000


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(price)


def price(
    model: Name = None,
    tier: Tier = "free",
    version: Version = None,
    at: At = None,
    turns: Annotated[int, typer.Option(min=1, max=TURNS_MAX, help="Turns of the conversation.")] = 10,
    first: Annotated[int, typer.Option(min=0, max=TOKENS_MAX, help="Tokens of the first prompt.")] = 500,
    grow: Annotated[int, typer.Option(min=0, max=TOKENS_MAX, help="Tokens that each turn adds.")] = 300,
    output: Annotated[int, typer.Option(min=0, max=TOKENS_MAX, help="Tokens of each reply.")] = 0,
    as_json: AsJson = False,
) -> None:
    """What a conversation costs with a prompt cache and without, turn by turn, by the prices that are set."""
    from infra.price_settings import PriceSettings

    settings = settings_from(PriceSettings, {})
    named = find(settings.models, model or "auto")
    if named is None:
        raise typer.BadParameter(f"there is no model {model!r}: {', '.join(one.name for one in settings.models)}.")
    tier_of(tier, also=(entry.tier for entry in settings.prices if entry.tier))
    chosen = _price(settings.prices, named, tier, version, at)
    made = example(chosen, turns=turns, first=first, grow=grow, output=output)
    typer.echo(json.dumps(_object(made, named, tier)) if as_json else _text(made, named, tier))


def _price(prices: tuple[PriceEntry, ...], model: Model, tier: str, version: str | None, at: str | None) -> Price:
    if version is None:
        return price_of(prices, model, tier, _time_ms(at))
    entries = [entry for entry in prices if entry.model == model.name and entry.version == version]
    for wanted in (tier, None):
        for entry in entries:
            if entry.tier == wanted:
                return entry.price
    if version == model.price.version:
        return model.price
    known = sorted({entry.version for entry in prices if entry.model == model.name} | {model.price.version})
    raise StackError(f'"{model.name}" has no price of version "{version}" for {tier}; there are {", ".join(known)}.')


def _time_ms(at: str | None) -> int:
    if at is None:
        return time.time_ns() // 1_000_000
    try:
        moment = datetime.fromisoformat(at)
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(f"--at is {at!r}: write 2026-11-01 or 2026-11-01T12:00:00Z.") from error


def _object(made: Example, model: Model, tier: str) -> dict[str, object]:
    price, equivalents = made.price, made.input_equivalents
    return {
        "model": model.name,
        "tier": tier,
        "price": {
            "version": price.version,
            "currency": price.currency,
            "input": plain(price.input),
            "cached_input": plain(price.cached_input),
            "cache_write": plain(price.cache_write),
            "cache_write_long": plain(price.long_write),
            "output": plain(price.output),
        },
        "turns": [
            {
                "turn": turn.number,
                "input_tokens": turn.input_tokens,
                "cache_read_input_tokens": turn.read_tokens,
                "cache_write_input_tokens": turn.written_tokens,
                "output_tokens": turn.output_tokens,
                "cost": plain(turn.cost),
                "cost_uncached": plain(turn.cost_uncached),
            }
            for turn in made.turns
        ],
        "input_tokens": made.input_tokens,
        "input_equivalents": None if equivalents is None else plain(equivalents),
        "cost": plain(made.cost),
        "cost_uncached": plain(made.cost_uncached),
    }


def _text(made: Example, model: Model, tier: str) -> str:
    price, equivalents = made.price, made.input_equivalents
    head = (
        f"{model.name}, {tier}, price {price.version} ({price.currency} per million tokens): "
        f"input {plain(price.input)}, cache read {plain(price.cached_input)}, cache write {plain(price.cache_write)} "
        f"(an hour or more: {plain(price.long_write)}), output {plain(price.output)}"
    )
    lines = [
        head,
        "",
        f"{'turn':>6}{'input':>10}{'read':>10}{'written':>10}{'output':>10}{'cost':>18}{'without cache':>18}",
    ]
    lines += [
        f"{turn.number:>6}{turn.input_tokens:>10}{turn.read_tokens:>10}{turn.written_tokens:>10}"
        f"{turn.output_tokens:>10}{plain(turn.cost):>18}{plain(turn.cost_uncached):>18}"
        for turn in made.turns
    ]
    total = f"{'total':>6}{made.input_tokens:>10}{'':>40}{plain(made.cost):>18}{plain(made.cost_uncached):>18}"
    lines.append(total.replace(" " * 40, " " * 30, 1))
    if equivalents is not None:
        lines += [
            "",
            f"Input: {made.input_tokens} tokens; with the cache it costs as {plain(equivalents)} uncached ones.",
        ]
    return "\n".join(lines)
