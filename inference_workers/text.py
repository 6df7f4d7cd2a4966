"""Token bytes to text that may be shown: no split character leaves, and nothing of a stop sequence.

Rules:

1. Bytes are decoded incrementally; the bytes of a character that is not complete yet are held back.
2. Text that may be the beginning of a stop sequence is held back until it is decided.
3. At the end what is held back as text is released; bytes that never became a character are dropped when the output
   was cut (by limit or cancel), and are decoded as U+FFFD when the model itself ended there, as a full decode would.
4. However the input is cut into pieces, the pieces that leave, joined, are the same text.

Pure: a value and functions on it; no engine, no clock.
"""

import codecs

import msgspec


class Assembled(msgspec.Struct, frozen=True):
    """What may leave now. `stopped`: a stop sequence was met, and nothing after this counts."""

    text: str
    stopped: bool = False


class TextAssembler:
    """Joins one generation's token bytes. `stop` are the stop sequences, none of them empty."""

    __slots__ = ("_decoder", "_held", "_longest", "_stop", "_stopped")

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        if any(not sequence for sequence in stop):
            raise ValueError("a stop sequence must not be empty")
        self._stop = stop
        self._longest = max((len(sequence) for sequence in stop), default=0)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._stopped = False

    def add(self, data: bytes) -> Assembled:
        """The next token's bytes."""
        if self._stopped:
            return Assembled("", stopped=True)
        return self._take(self._decoder.decode(data))

    def finish(self, *, cut: bool) -> Assembled:
        """The end. `cut`: the output was cut off (limit, cancel), so an incomplete character is nobody's error."""
        if self._stopped:
            return Assembled("", stopped=True)
        taken = self._take("" if cut else self._decoder.decode(b"", final=True))
        if taken.stopped:
            return taken
        rest, self._held = self._held, ""
        return Assembled(taken.text + rest)

    def _take(self, text: str) -> Assembled:
        if not self._stop:
            return Assembled(text)
        held = self._held + text
        end = first_stop(held, self._stop)
        if end is not None:
            self._stopped = True
            self._held = ""
            return Assembled(held[:end], stopped=True)
        keep = len(held) - pending(held, self._stop, self._longest)
        self._held = held[keep:]
        return Assembled(held[:keep])


def first_stop(text: str, stop: tuple[str, ...]) -> int | None:
    """Where the text has to end: the start of the stop sequence that is *completed* first, None without one.

    By completion, not by start, so that the answer does not depend on how the text was cut into pieces. Of those
    completed at the same place the one that starts first counts.
    """
    found = ((at + len(sequence), at) for sequence in stop if (at := text.find(sequence)) >= 0)
    best = min(found, default=None)
    return None if best is None else best[1]


def pending(text: str, stop: tuple[str, ...], longest: int) -> int:
    """Length of the longest tail of the text that is a proper beginning of a stop sequence."""
    for length in range(min(longest - 1, len(text)), 0, -1):
        tail = text[-length:]
        if any(len(sequence) > length and sequence.startswith(tail) for sequence in stop):
            return length
    return 0


def even_edges(length: int, pieces: int) -> list[tuple[int, int]]:
    """Start and end of each piece when a length is divided as evenly as can be."""
    return [(length * index // pieces, length * (index + 1) // pieces) for index in range(pieces)]
