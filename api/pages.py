"""Cursors of listings: opaque to clients, a place in the order of the listing to us."""

import base64
import binascii
from typing import NamedTuple, TypeVar

import msgspec

from api.problems import bad_request


class Place(NamedTuple):
    """A place among conversations."""

    updated_at_ms: int
    id: str


class RecordPlace(NamedTuple):
    """A place among usage records."""

    day: str
    message_id: str
    kind: str


P = TypeVar("P")


def written(place: object) -> str:
    """The cursor of a place."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def read(cursor: str | None, cls: type[P]) -> P | None:
    """The place of a cursor. Raises `Problem` 400 when it is not one of this listing."""
    if cursor is None:
        return None
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=cls)
    except (binascii.Error, msgspec.MsgspecError, ValueError) as error:
        raise bad_request([("cursor", "is not a cursor of this listing")], "invalid_cursor") from error
