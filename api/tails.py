"""The newest frames of a reply, as they come over the subscription: shared by all readers of it in a process.

Rules:

1. A tail is one run of frames without a gap. What it has is dropped; what leaves a gap starts a new run.
2. It is bounded in bytes, and so are all tails of a process together (`Room`): the oldest frames go, also the newest
   when they alone are too much. A reader that is behind it reads the stored list instead, page by page, so a slow
   reader costs no memory here, and no reader is given more at once.
3. Only whole frames go in and out.
4. What readers at the same cursor are given is joined once, and the same object for all of them.
"""

END_MARK = b"\nevent: ended\ndata: "
"""In a frame's bytes only where the event is `ended`: its data has no line breaks."""

_PIECE = tuple[int, int, bytes]
_JOINED_MAX = 8
"""Cursors for which joined frames are kept until the next ones come."""


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


class Room:
    """Bytes that the tails of a process may hold together."""

    __slots__ = ("bytes_max", "used")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0


class Tail:
    """See the rules of this module."""

    __slots__ = ("_bytes", "_bytes_max", "_joined", "_pieces", "_room", "newest")

    def __init__(self, bytes_max: int, room: Room | None = None) -> None:
        self.newest = 0
        """Offset of the newest frame that came, 0 when there was none."""
        self._bytes_max = bytes_max
        self._room = room or Room(bytes_max)
        self._bytes = 0
        self._pieces: list[_PIECE] = []
        self._joined: dict[int, bytes] | None = None

    def add(self, first: int, last: int, frames: bytes) -> None:
        """Take frames `first` to `last`."""
        newest = self.newest
        if last <= newest:
            return
        if newest and first > newest + 1:
            self.forget()
        elif first <= newest:
            frames = b"".join(split(frames)[newest + 1 - first :])
            first = newest + 1
        self.newest = last
        self._joined = None
        self._pieces.append((first, last, frames))
        self._take(len(frames))
        while self._bytes > self._bytes_max or (len(self._pieces) > 1 and self._room.used > self._room.bytes_max):
            self._take(-len(self._pieces.pop(0)[2]))

    def clear(self) -> None:
        """Forget everything: what comes next begins a new run."""
        self.forget()
        self.newest = 0

    def forget(self) -> None:
        """Let go of the frames; readers that are behind read the list."""
        self._pieces.clear()
        self._joined = None
        self._take(-self._bytes)

    def after(self, cursor: int) -> tuple[int, bytes] | None:
        """The offset that the frames behind `cursor` reach, and their bytes (empty when there are none).

        None: there are some, but the first of them is not here any more.
        """
        if self.newest <= cursor:
            return cursor, b""
        joined = self._joined
        if joined is not None and cursor in joined:
            return self.newest, joined[cursor]
        frames = self._behind(cursor)
        if frames is None:
            return None
        if joined is None or len(joined) >= _JOINED_MAX:
            joined = self._joined = {}
        joined[cursor] = frames
        return self.newest, frames

    def _behind(self, cursor: int) -> bytes | None:
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
        return wanted[0] if len(wanted) == 1 else b"".join(wanted)

    def _take(self, size: int) -> None:
        self._bytes += size
        self._room.used += size
