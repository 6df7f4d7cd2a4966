"""What users ask of the scripted engine, by a seed."""

import random
from dataclasses import dataclass
from typing import Any

from tests.chaos.ledger import Fault

FAULT_AT_MAX = 40
"""A reply that hangs or crashes does so after one to so many words."""


@dataclass(frozen=True)
class Wishes:
    """How long replies are and how fast, and which share of them does harm."""

    words: tuple[int, ...] = (1, 5, 40, 120, 250)
    every_ms: tuple[int, ...] = (1, 10, 30)
    hangs: float = 0.0
    crashes: float = 0.0

    def draw(self, rng: random.Random) -> tuple[dict[str, Any], Fault]:
        """A script, and what is wrong with it."""
        script: dict[str, Any] = {"chunks": rng.choice(self.words), "every_ms": rng.choice(self.every_ms)}
        luck = rng.random()
        if luck >= self.hangs + self.crashes:
            return script, ""
        at = rng.randint(1, FAULT_AT_MAX)
        script["chunks"] = max(script["chunks"], at + 1)
        if luck < self.hangs:
            return {**script, "hang_at": at}, "hangs"
        return {**script, "crash_at": at}, "crashes"
