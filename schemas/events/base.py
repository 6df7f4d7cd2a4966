"""What every event is."""

from typing import ClassVar

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of all events. Unknown members are ignored on decoding and kept on re-encoding (`schemas.codec`)."""

    TOPIC: ClassVar[str | None] = None
    KEY: ClassVar[str] = "conversation_id"
    VERSION: ClassVar[int] = 1
    TIMED: ClassVar[bool] = True
    """Whether the envelope carries `ce_time` and the trace; false for the token path, where bytes count."""

    def identity(self) -> str:
        """The event's id, unique within its source and type."""
        raise AssertionError(f"{type(self).__name__} has no identity")

    def key(self) -> str:
        """The record's key."""
        return str(getattr(self, self.KEY))
