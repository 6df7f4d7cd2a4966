"""The events: everything that happens is one of these, past tense, frozen.

An event class says once, for everybody, its topic, its key and its identity:

- `TOPIC` is the logical name of its topic (`schemas.topics`); None where the writer chooses (priority topics).
- `KEY` names the field whose value is the record's key, so that one key's events keep their order.
- `VERSION` is part of the type on the wire. A published version is never edited: a change adds a version and
  an upcast in `schemas.codec`, and the golden bytes of the old one stay in the tests.
- `identity()` is the event's `ce_id`: it does not depend on time of receipt, batch or offset, so a consumer
  that saw it before can drop it.

Times are wall-clock milliseconds since the epoch, UTC (`…_at_ms`). Text is Unicode, stored as it came.
"""

# ruff: noqa: F403 - a new event is written in one file, its topic's

from schemas.events.accounts import *
from schemas.events.base import Event as Event
from schemas.events.demand import *
from schemas.events.inboxes import *
from schemas.events.messages import *
from schemas.events.requests import *
from schemas.events.tokens import *
from schemas.events.usage import *
from schemas.events.workers import *

EVENTS: tuple[type[Event], ...] = tuple(
    value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, Event) and value is not Event
)
"""Every event class."""
