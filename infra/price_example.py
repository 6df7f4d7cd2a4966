"""What a conversation costs, turn by turn, with a prompt cache and without. Pure.

Each turn's prompt is the whole conversation so far. With a cache, what the turn before has left is read (0.1 times the
input's price by default), and only what is new is written (1.25 times). So ten turns from 500 tokens on, growing by
300, are 18,500 tokens without a cache, and cost as 5,530 with one.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal

from schemas.models import Price, cost
from schemas.values import Usage

_EXACT = Context(prec=60)


@dataclass(frozen=True)
class Turn:
    """One turn: what it reads and writes, and what it costs."""

    number: int
    input_tokens: int
    read_tokens: int
    written_tokens: int
    output_tokens: int
    cost: Decimal
    cost_uncached: Decimal


@dataclass(frozen=True)
class Example:
    """All turns."""

    price: Price
    turns: tuple[Turn, ...]

    @property
    def input_tokens(self) -> int:
        """Input of all prompts."""
        return sum(turn.input_tokens for turn in self.turns)

    @property
    def input_equivalents(self) -> Decimal | None:
        """With the cache: the input costs as much as so many tokens of uncached input. None: input is free."""
        if not self.price.input:
            return None
        paid = sum(
            (t.read_tokens * self.price.cached_input + t.written_tokens * self.price.cache_write for t in self.turns),
            Decimal(0),
        )
        return _EXACT.divide(paid, self.price.input)

    @property
    def cost(self) -> Decimal:
        """With a cache."""
        return sum((turn.cost for turn in self.turns), Decimal(0))

    @property
    def cost_uncached(self) -> Decimal:
        """Without."""
        return sum((turn.cost_uncached for turn in self.turns), Decimal(0))


def example(price: Price, *, turns: int, first: int, grow: int, output: int) -> Example:
    """A conversation of so many turns.

    Args:
        price: what tokens cost.
        turns: how many.
        first: tokens of the first prompt.
        grow: tokens by which each further prompt is longer, the reply before it included.
        output: tokens of each reply.
    """
    made = []
    before = 0
    for number in range(1, turns + 1):
        tokens = first + grow * (number - 1)
        cached = Usage(
            input_tokens=tokens, output_tokens=output, cached_input_tokens=before, cache_write_tokens=tokens - before
        )
        plain = Usage(input_tokens=tokens, output_tokens=output)
        made.append(
            Turn(
                number=number,
                input_tokens=tokens,
                read_tokens=before,
                written_tokens=tokens - before,
                output_tokens=output,
                cost=cost(cached, price),
                cost_uncached=cost(plain, price),
            )
        )
        before = tokens
    return Example(price, tuple(made))
