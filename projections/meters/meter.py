"""A billing provider, as the step over `usage` sees it."""

from typing import Protocol

import msgspec

from projections.meters.rules import MeterEvent


class Told(msgspec.Struct, frozen=True):
    """The provider has it, `again` when it had it before."""

    again: bool = False


class Later(msgspec.Struct, frozen=True):
    """Not now; the same may be told again."""

    reason: str
    after_s: float | None = None
    """So long the provider wants to be left alone."""
    blocked: bool = False
    """Nothing will be taken until a person does something: say, the key is wrong."""


class Never(msgspec.Struct, frozen=True):
    """The provider will not take this, however often it is told."""

    reason: str


Outcome = Told | Later | Never


class Meter(Protocol):
    """Where usage is told. Called from several threads."""

    def tell(self, event: MeterEvent) -> Outcome:
        """Tell one event; returns within the time that the meter was given."""

    def close(self) -> None:
        """Let go of the connections."""
