"""What turns decides by: the models, and the declared limits of what it holds."""

import msgspec

from schemas.models import DEFAULT_MODELS, Model
from schemas.tiers import DEFAULT_TIERS, Tiers


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Durations are milliseconds of the wall clock."""

    models: tuple[Model, ...] = DEFAULT_MODELS
    tiers: Tiers = msgspec.field(default_factory=lambda: DEFAULT_TIERS)
    deadline_ms: int = 900_000
    """From acceptance (or from the end of the reply that it waited for) until a reply has failed."""
    sweep_margin_ms: int = 30_000
    """So long after its deadline a reply without a stored end is ended by the sweeper; then doubling."""
    window_chars_max: int = 400_000
    """Characters of text held of one conversation: above it the oldest are forgotten, until half is left. At twice this
    (of system prompts, which stay): `conversation_full`."""
    messages_max: int = 2_000
    """Messages of one conversation; one more is refused, `conversation_full`."""
    conversation_running_max: int = 4
    """Replies of one conversation that are admitted and not stored yet; further ones wait until one is stored."""
    conversations_max: int = 50_000
    """Conversations of one partition; above it the least recently active are archived."""
    chars_max: int = 64_000_000
    """Characters held of one partition, 1,000 more a message; above it the same."""
    notes_max: int = 10_000
    """Notes of one partition: cancellations that came before their message, and declines of what is not held. Above it
    the oldest is forgotten."""
    notes_ttl_ms: int = 86_400_000
    """So long a note is kept at least, and twice as long at most."""
