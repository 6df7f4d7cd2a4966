"""A generation in the model of a GPU server, and what one step of the server gives to those that run."""

import msgspec

from inference_workers.engines.kv_blocks import Chain


class Sequence(msgspec.Struct, kw_only=True):
    """One generation in the model; what follows `silent` is changed by `Batch` only."""

    id: str
    prompt_tokens: int
    prompt: Chain = Chain((), ())
    first: int = 0
    """The link before the first block: its salt's root."""
    output: tuple[int, ...] | bytes = b""
    """What stands for the tokens that it gives in the names of blocks; may be left out where nobody continues it."""
    length: int
    """Tokens that it will give, unless stopped before."""
    limit: int = 0
    """Tokens that it was allowed to give."""
    silent: bool = False
    """It gives nothing more, and keeps what it has."""
    given: int = 0
    cached: int = 0
    """Prompt tokens that were not read when it first entered."""
    unread: int = 0
    room: int = 0
    """Tokens that its blocks still take."""
    running: bool = False
    entered: bool = False
    names: list[int] = []
    named: int = 0
    """How many of the names it references."""
    held: int = 0
    """Its blocks without a name."""


class Step(msgspec.Struct, frozen=True):
    """What one engine step does: how long it takes, and the sequences that are given their next token."""

    duration_s: float
    produced: list[Sequence]
