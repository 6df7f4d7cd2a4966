"""What is seen of a reply from outside: frames with their offsets, what a reader has, what is stored or billed."""

import functools
import re
from collections.abc import Sequence

import msgspec

from schemas.stream import AnyStreamEvent, Delta, Ended, Reset, parse_frame
from schemas.values import EndStatus

_WORD = re.compile(r"(\d+)(?:/([\d.]+))?")

parsed = functools.lru_cache(4096)(parse_frame)
"""`parse_frame`; many readers have the same frames."""


class Read(msgspec.Struct):
    """What one reader of a reply has: all frames after `after`, from one or many connections."""

    reply_id: str
    who: str = "reader"
    after: int = 0
    frames: list[bytes] = []
    told: str = ""
    """Why it got no more, where it was told so: `gone` (410) or `deleted` (404)."""

    @property
    def cursor(self) -> int:
        """The offset that it would resume after."""
        return parsed(self.frames[-1])[0] if self.frames else self.after


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A reply as a store or a bill has it; what it does not say is None."""

    where: str
    status: EndStatus
    output_tokens: int
    text: str | None = None
    final_offset: int | None = None


def events_of(frames: Sequence[bytes]) -> list[tuple[int, AnyStreamEvent]]:
    """Offset and event of each frame."""
    return [parsed(data) for data in frames]


def text_of(frames: Sequence[bytes]) -> str:
    """The text that a reader of these frames has: the deltas since the last reset."""
    text: list[str] = []
    for _, event in events_of(frames):
        if isinstance(event, Delta):
            text.append(event.text)
        elif isinstance(event, Reset):
            text.clear()
    return "".join(text)


def end_of(frames: Sequence[bytes]) -> Ended | None:
    """The end, if it is there."""
    last = parsed(frames[-1])[1] if frames else None
    return last if isinstance(last, Ended) else None


def words_of(text: str) -> list[tuple[int, str]]:
    """Number and tag of each word that an engine of the tests has said."""
    return [(int(number), tag) for number, tag in _WORD.findall(text)]
