"""Server-sent events from bytes, as https://html.spec.whatwg.org/multipage/server-sent-events.html reads them.

Lines end with LF, CR or CRLF; a comment line (`: …`) is nothing; `data` lines of one event are joined by LF; an event
counts when its blank line has come, so one that was cut off is nothing. However the bytes are cut into pieces, the
events are the same: lines are put together as bytes, so that no character is decoded in halves. `id` and `retry` are
of no use to a reader that does not reconnect.
"""

EVENT_BYTES_MAX = 256 * 1024
"""Of one event, and of one line."""


class TooLarge(ValueError):
    """An event is larger than `EVENT_BYTES_MAX`."""


class EventReader:
    """Takes the bytes of one stream, gives the events' type and data."""

    __slots__ = ("_after_cr", "_begun", "_data", "_line", "_size", "_type")

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._type = b""
        self._after_cr = False
        self._begun = False

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """The events that these bytes complete. Raises `TooLarge`."""
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        found: list[tuple[bytes, bytes]] = []
        lines = piece.splitlines(keepends=True)  # of bytes: at LF, CR and CRLF only
        for line in lines:
            self._line += line
            if len(self._line) + self._size > EVENT_BYTES_MAX:
                raise TooLarge(f"an event is larger than {EVENT_BYTES_MAX:,} bytes")
            if line[-1] not in b"\r\n":
                break
            whole = bytes(self._line).rstrip(b"\r\n")
            self._line.clear()
            self._take(whole, found)
        self._after_cr = piece.endswith(b"\r")
        return found

    def _take(self, line: bytes, found: list[tuple[bytes, bytes]]) -> None:
        if not self._begun:
            self._begun = True
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if self._data:
                found.append((self._type, b"\n".join(self._data)))
            self._data, self._size, self._type = [], 0, b""
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif name == b"event":
            self._type = value
