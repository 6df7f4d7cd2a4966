"""One conversation of a listing: what the view says of it, with what was written since.

The view is a moment behind; the events that the API wrote lately are remembered in Redis, whether the view has them
or not. Laying them over the view's line twice changes nothing.
"""

from collections.abc import Iterable

import msgspec

from api.stores import ConversationHead
from schemas.conversation import fold
from schemas.events import (
    BranchChosen,
    ConversationDeleted,
    ConversationRenamed,
    Event,
    MessageSubmitted,
    RegenerationRequested,
)


def overlaid(head: ConversationHead | None, events: Iterable[Event]) -> ConversationHead | None:
    """The line after these events, oldest first; None: the conversation is deleted, or nothing begins it."""
    events = tuple(events)
    if head is None:
        begun = fold(events)
        if begun is None or begun.deleted:
            return None
        return ConversationHead(
            id=begun.id, title=begun.title, created_at_ms=begun.created_at_ms, updated_at_ms=begun.updated_at_ms
        )
    for event in events:
        match event:
            case ConversationDeleted():
                return None
            case ConversationRenamed():
                head = _at(msgspec.structs.replace(head, title=event.title), event.renamed_at_ms)
            case MessageSubmitted() | RegenerationRequested():
                head = _at(head, event.submitted_at_ms)
            case BranchChosen():
                head = _at(head, event.chosen_at_ms)
            case _:
                pass
    return head


def _at(head: ConversationHead, time_ms: int) -> ConversationHead:
    return msgspec.structs.replace(head, updated_at_ms=max(head.updated_at_ms, time_ms))
