"""Which slot of a llama.cpp server reads a prompt, and whether it may use what the slot holds.

Rules:

1. What a slot holds may be used only by a request whose salt is the only one that can have put it there. A slot for
   which that is not certain is emptied before it is used: nobody learns from the time it takes what others asked.
2. A conversation goes on where it was: of the free slots that may be used the one with the longest common prefix,
   if that is at least half of what the slot holds. Less than that would overwrite one conversation with another.
3. Otherwise an empty slot, and without one the slot that was used least recently.

Pure: values and functions on them; no server, no clock.
"""

from collections.abc import Sequence

import msgspec

Salt = str | None
KEPT_SHARE = 0.5
"""Of what a slot holds, the part that a prompt has to go on from."""


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one slot."""

    id: int
    salts: frozenset[Salt] = frozenset()
    """Salts of all requests that may have put there what it holds now; none: it is empty."""
    text: str = ""
    """What it holds, as far as is known; a hint, nothing rests on it but the choice."""
    used: int = 0
    """Number of the last use, over all slots."""

    def open_to(self, salt: Salt) -> bool:
        """Whether a request of this salt may use what the slot holds."""
        return self.salts <= {salt}


class Choice(msgspec.Struct, frozen=True):
    """Where a prompt is read. `reuse`: it may begin with what the slot holds."""

    slot: int
    reuse: bool


def choose(free: Sequence[Slot], salt: Salt, prompt: str) -> Choice:
    """The slot for a prompt, out of the free ones (at least one)."""
    own = [(common_prefix(slot.text, prompt), slot) for slot in free if slot.salts and slot.open_to(salt)]
    going_on = [(shared, -slot.used, slot.id) for shared, slot in own if shared >= max(1, KEPT_SHARE * len(slot.text))]
    if going_on:
        return Choice(max(going_on)[2], reuse=True)
    best = min(free, key=lambda slot: (bool(slot.salts), slot.used, slot.id))
    return Choice(best.id, reuse=best.open_to(salt))


def after(slot: Slot, salt: Salt, text: str, *, began: bool, used: int) -> Slot:
    """The slot when a request has left it.

    Args:
        text: the prompt and what was generated.
        began: the server was seen to read the prompt, so nothing from before is left but what the prompt shares. If
            not (a cancel or an error came first), either may be there.
    """
    if began:
        return Slot(id=slot.id, salts=frozenset({salt}), text=text, used=used)
    return Slot(id=slot.id, salts=slot.salts | {salt}, text=slot.text, used=used)


def common_prefix(one: str, other: str) -> int:
    """Characters that both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
