"""The newest frames of a reply, as they come over the subscription: shared by all readers of it in a process.

Rules:

1. A tail is one run of frames without a gap. What it has is dropped; what leaves a gap starts a new run.
2. It is bounded in bytes: the oldest frames go. A reader that is behind it reads the stored list instead, so a slow
   reader costs no memory here.
3. Only whole frames go in and out.
"""

from collections import deque

END_MARK = b"\nevent: ended\ndata: "
"""In a frame's bytes only where the event is `ended`: its data has no line breaks."""

_PIECE = tuple[int, int, bytes]


def split(frames: bytes) -> list[bytes]:
    """The frames that were joined."""
    return [frame + b"\n\n" for frame in frames.split(b"\n\n") if frame]


def parse_live(payload: bytes) -> _PIECE:
    """First offset, last offset and frames of what the buffer publishes.

    Raises:
        ValueError: not such a payload.
    """
    head, _, frames = payload.partition(b"\n")
    first, _, last = head.partition(b"-")
    return int(first), int(last), frames


class Tail:
    """See the rules of this module."""

    __slots__ = ("_bytes", "_bytes_max", "_pieces")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._pieces: deque[_PIECE] = deque()

    @property
    def newest(self) -> int:
        """Offset of the newest frame, 0 when there is none."""
        return self._pieces[-1][1] if self._pieces else 0

    def add(self, first: int, last: int, frames: bytes) -> None:
        """Take frames `first` to `last`."""
        newest = self.newest
        if last <= newest:
            return
        if self._pieces and first > newest + 1:
            self.clear()
        elif self._pieces and first <= newest:
            frames = b"".join(split(frames)[newest + 1 - first :])
            first = newest + 1
        self._pieces.append((first, last, frames))
        self._bytes += len(frames)
        while self._bytes > self._bytes_max and len(self._pieces) > 1:
            self._bytes -= len(self._pieces.popleft()[2])

    def clear(self) -> None:
        """Forget everything."""
        self._pieces.clear()
        self._bytes = 0

    def after(self, cursor: int) -> tuple[int, bytes] | None:
        """The offset that the frames behind `cursor` reach, and their bytes (empty when there are none).

        None: there are some, but the first of them is not here any more.
        """
        if not self._pieces or self.newest <= cursor:
            return cursor, b""
        wanted: list[bytes] = []
        for first, _, frames in reversed(self._pieces):
            if first > cursor:
                wanted.append(frames)
                if first == cursor + 1:
                    break
                continue
            wanted.append(b"".join(split(frames)[cursor + 1 - first :]))
            break
        else:
            return None
        wanted.reverse()
        return self.newest, b"".join(wanted)
