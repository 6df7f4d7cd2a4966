"""What a format of another client is: a fold of the reply's events into that client's bytes, and how it is sent.

Rules:

1. A format is a `Writer`: values in, bytes out. Its bytes depend on the facts of the request and on the reply's events
   only, so they are the same on every process, live, resumed or read again.
2. Most clients cannot take text back. A reader that comes after a `reset` gets the attempt that counts and nothing of
   those before it (`current_attempt`). One that has text of an earlier attempt is told so by an error in the stream,
   which ends it there; it reads the reply again.
3. A stream that breaks without the reply's end says so in its last bytes, where the format has words for it: end of
   file alone is never success.
"""

from collections.abc import Iterable
from typing import Protocol

from api.reading import HEARTBEAT, Reader
from api.tails import split
from schemas.codec import to_json
from schemas.stream import AnyStreamEvent, one_line, parse_frame

RESET_MARK = b"\nevent: reset\ndata: "

RESTARTED = "The reply began again on another worker; what was sent of it is void. Read it again by its id."
UNFINISHED = "The stream broke before the reply's end; the reply goes on. Read it again by its id."


class Writer(Protocol):
    """The fold of one reader's stream. `finished`: nothing may follow what was written."""

    finished: bool

    def begin(self) -> bytes:
        """What goes out before the first event."""

    def write(self, offset: int, event: AnyStreamEvent) -> bytes:
        """What the event at this offset gives."""

    def beat(self) -> bytes:
        """A sign of life while nothing happens."""

    def broken(self) -> bytes:
        """What says that the stream ends here and the reply does not."""


def event_frame(data: object, name: str | None = None) -> bytes:
    """A server-sent event: its name where the format gives it one, and its data as JSON on one line."""
    named = f"event: {name}\n".encode() if name else b""
    return b"%sdata: %s\n\n" % (named, one_line(to_json(data)))


def current_attempt(frames: Iterable[bytes]) -> tuple[tuple[bytes, ...], int]:
    """The frames behind the last `reset`, and its offset (0: there is none)."""
    kept: list[bytes] = []
    reset_at = 0
    for data in frames:
        if RESET_MARK in data:
            reset_at = parse_frame(data)[0]
            kept.clear()
        else:
            kept.append(data)
    return tuple(kept), reset_at


def written(writer: Writer, frames: Iterable[bytes]) -> bytes:
    """What these frames give, as far as the writer takes them."""
    out: list[bytes] = []
    for data in frames:
        if writer.finished:
            break
        out.append(writer.write(*parse_frame(data)))
    return b"".join(out)


class Rendered:
    """A reader's stream in a format; see `api.sse.Source`."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader = reader
        self._writer = writer
        self._over = False

    async def next(self) -> bytes | None:
        """The next bytes for the client; None: the stream is over."""
        while not (self._over or self._writer.finished):
            chunk = await self._reader.next()
            if chunk is None:
                self._over = True
                return self._writer.broken() or None
            out = self._writer.beat() if chunk == HEARTBEAT else written(self._writer, split(chunk))
            if out:
                return out
        return None

    def beat(self) -> None:
        """Nothing was sent for a while."""
        self._reader.beat()

    def stop(self) -> None:
        """End at the next boundary of events."""
        self._reader.stop()

    def close(self) -> None:
        """Let go of the subscription."""
        self._reader.close()
