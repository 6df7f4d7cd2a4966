"""Values that several events carry. All are frozen, compared by value, and encoded as JSON objects."""

from typing import Annotated, Literal

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the values: immutable, keyword-only; unknown members are ignored on decoding."""


TimeMs = Annotated[int, msgspec.Meta(ge=0, lt=253_402_300_800_000)]
"""A wall clock's milliseconds since the epoch, UTC, before the year 10000: everything can be computed with it."""

Tier = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
"""The name of a class of accounts; what it may do is configured (`schemas.tiers`)."""
Priority = Literal["paid", "free"]
PRIORITIES: tuple[Priority, ...] = ("paid", "free")
"""Strictest first. A worker's inbox of an earlier priority is always emptied before a later one."""

Stage = Literal["full", "shorten", "smaller_model", "refuse"]
STAGES: tuple[Stage, ...] = ("full", "shorten", "smaller_model", "refuse")
"""What is done with new traffic under load, from full service on; each includes the ones before it."""

Role = Literal["system", "user", "assistant"]

EndStatus = Literal["completed", "length", "cancelled", "refused", "failed"]
"""The terminal statuses of a reply; each accepted message reaches exactly one."""

MessageStatus = Literal["queued", "running", "completed", "length", "cancelled", "refused", "failed"]

DETAIL_CHARS_MAX = 1_000
"""Characters of a sentence that says why, where others than we have a part in it: an engine, a provider."""

TERMINAL: frozenset[str] = frozenset({"completed", "length", "cancelled", "refused", "failed"})


class Failure(Value, frozen=True, omit_defaults=True):
    """Why a reply was refused or failed: a stable code for programs, a sentence for people."""

    code: str
    detail: str
    retry_after_s: int | None = None
    """After so long the same is worth another try; absent where waiting alone changes nothing."""


class VoidAttempt(Value, frozen=True):
    """An attempt at a reply that came to nothing: nothing of it is in the text, and it is not charged."""

    attempt: int
    reason: str
    """As the `reset` event that followed said it."""
    worker: str = ""
    """The instance that had begun it; empty: none had."""
    detail: str = ""
    """A sentence for people, where the engine or a provider said why."""


class Usage(Value, frozen=True):
    """Tokens of one generation. `input_tokens` includes cached ones; `output_tokens` are those generated."""

    input_tokens: int
    output_tokens: int
    cached_input_tokens: int = 0
    """Of the input: read from a prompt cache."""
    cache_write_tokens: int = 0
    """Of the input: written to a prompt cache that is kept for minutes."""
    cache_write_long_tokens: int = 0
    """Of the input: written to one that is kept for an hour or more."""
    reasoning_tokens: int = 0
    """Of the output: thought, not shown."""
    counted: bool = True
    """True: counted by the engine. False: estimated from the chunks that reached the log."""


class Timings(Value, frozen=True):
    """Milliseconds from acceptance (`submitted_at_ms`), measured on the worker's wall clock."""

    queued_ms: int
    """Until the engine was given the prompt."""
    first_token_ms: int | None
    """Until the first token, absent when there was none."""
    total_ms: int


class Sampling(Value, frozen=True):
    """How tokens are chosen. Limits are declared in `schemas.limits`."""

    max_output_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


class PromptMessage(Value, frozen=True):
    """One message of a prompt as the model's chat template takes it."""

    role: Role
    content: str


class Notice(Value, frozen=True):
    """Something the reader should know that is not an error, such as a shortened reply."""

    code: str
    detail: str


class InvoiceLine(Value, frozen=True):
    """What belongs together on a bill: one price, one kind. The amounts of all lines are the total."""

    description: str
    """`usage`, or what the correction was, or `late` for what an earlier closed period did not have."""
    usage_period: str
    """YYYY-MM in which it was used."""
    model: str
    """Empty on corrections, as is the tier."""
    tier: str
    price_version: str
    currency: str
    records: int
    uncached_input_tokens: int
    cache_read_input_tokens: int
    cache_write_input_tokens: int
    cache_write_long_input_tokens: int
    output_tokens: int
    amount: str
    """Decimal in `currency`, as text, not rounded."""
