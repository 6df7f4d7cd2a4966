"""The frame of a piece of text, made in one go: the same bytes as `schemas.stream.frame` (a property test)."""

import msgspec

from schemas.stream import Delta, frame

_ENCODER = msgspec.json.Encoder()


def delta_frame(offset: int, text: str) -> bytes:
    """`frame(offset, Delta(text=text))`, for the most frequent event."""
    if text.isascii():
        return b'id: %d\nevent: delta\ndata: {"text":%b}\n\n' % (offset, _ENCODER.encode(text))
    return frame(offset, Delta(text=text))
