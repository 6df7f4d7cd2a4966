"""What the clients of a run know: what was asked and answered, and what each reader has.

Written by the traffic, read by the checker.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tests.simulation.frames import Read

Fault = Literal["", "hangs", "crashes"]
"""What the engine does in the middle of a reply, where it was told to: nothing, falls silent, kills its worker."""


@dataclass
class Asked:
    """A send or a regeneration, and every answer to it."""

    client_id: str
    words: int
    fault: Fault = ""
    reply_ids: list[str] = field(default_factory=list)
    message_id: str | None = None
    conversation_id: str = ""
    cancelled: bool = False
    """A cancel of it was answered, at some time before its end."""


@dataclass
class Reading:
    """A reader and what it was told besides frames."""

    read: Read
    arrived_s: list[float] = field(default_factory=list)
    """When each of its frames came, on the run's clock."""
    task_done: bool = False
    connections: int = 0
    waited_s: float = 0.0
    """From the first sight of the end by anybody to this reader's."""
    after_end: int | None = None
    """What was answered to the cursor of the end."""


@dataclass
class Ledger:
    """All of it."""

    asked: list[Asked] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    ended_s: dict[str, float] = field(default_factory=dict)
    """When a reader first saw the end of a reply, on the run's clock."""
    surprises: list[str] = field(default_factory=list)
    """What ended a reader that should not have."""
    flushed: bool = False
    """Redis has lost something on purpose."""
    silenced: bool = False
    """Whole engines fell silent on purpose."""

    def answered(self) -> list[Asked]:
        """What was accepted."""
        return [asked for asked in self.asked if asked.reply_ids]


def joined(ledgers: Iterable[Ledger]) -> Ledger:
    """Those of several accounts as one."""
    all_ = Ledger()
    for ledger in ledgers:
        all_.asked += ledger.asked
        all_.readings += ledger.readings
        all_.ended_s |= ledger.ended_s
        all_.surprises += ledger.surprises
        all_.flushed |= ledger.flushed
        all_.silenced |= ledger.silenced
    return all_
