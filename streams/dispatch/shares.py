"""How many slots of a model one account may have while others ask for it too, so that one account cannot fill it. Pure.

1. An account asks for a model when a request of it for the model comes to dispatch, whatever becomes of it.
2. While another one has asked within `others_ms`, an account gets no further slot that would leave less than one in
   `others_share` of the model's slots, and one at least, to all others. Nothing is taken from it: it waits until it has
   fewer. Of a single slot nothing can be left.
3. Who asks alone may have all of them.

Only the account that asked last, and when another one did, has to be remembered, however many there are.
"""

import msgspec


class Askers(msgspec.Struct, frozen=True):
    """Who asked for a model last, and when, on the flow clock."""

    account: str
    at_ms: int
    other_ms: int | None = None
    """When another account than this did so last."""


def asked(before: Askers | None, account: str, flow_ms: int) -> Askers:
    """After a request of this account."""
    if before is None:
        return Askers(account, flow_ms)
    return Askers(account, flow_ms, before.other_ms if before.account == account else before.at_ms)


def is_alone(askers: Askers | None, account: str, flow_ms: int, others_ms: int) -> bool:
    """Whether no other account than this has asked lately."""
    if askers is None:
        return True
    at_ms = askers.other_ms if askers.account == account else askers.at_ms
    return at_ms is None or flow_ms - at_ms >= others_ms


def most(slots: int, others_share: int) -> int | None:
    """Slots that one account may have of so many beside others; None: of so few nothing can be left."""
    return slots - max(1, slots // others_share) if slots > 1 else None
