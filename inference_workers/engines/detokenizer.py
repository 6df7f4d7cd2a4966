"""Token ids to text, step by step, with a tokenizer that only decodes whole lists.

Rules:

1. A token's text depends on those before it: a SentencePiece tokenizer drops the space before the first one, and a
   character may be split over tokens. So a window is decoded, which begins at tokens whose text is known, and only
   what it adds to their text is new.
2. A window that ends in U+FFFD may end inside of a character: the U+FFFD stay back until more tokens decide.
3. At the end they are released, as a full decode shows them; when the output was cut they are nobody's error and are
   dropped, as in `inference_workers.text`.
4. The pieces, joined, are the full decode, however the ids come.

Pure, apart from the tokenizer's `decode`.
"""

from collections.abc import Callable, Sequence

Decode = Callable[[list[int]], str]
"""Ids to text: no special tokens in it, no tidied spaces."""

REPLACEMENT = "\ufffd"


class Detokenizer:
    """One generation's ids on their way to text."""

    __slots__ = ("_decode", "_ids", "_read", "_shown")

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        """The window."""
        self._read = 0
        """Tokens of the window whose text has been given out whole."""
        self._shown = 0
        """Characters of the window's text that have been given out."""

    def add(self, ids: Sequence[int]) -> str:
        """The next ids; the text that is now certain."""
        if not ids:
            return ""
        self._ids.extend(ids)
        text = self._decode(self._ids)
        certain = text.rstrip(REPLACEMENT)
        new = certain[self._shown :]
        if new:
            self._shown = len(certain)
        if new and len(certain) == len(text):
            self._move()
        return new

    def finish(self, *, cut: bool) -> str:
        """What was held back. `cut`: the output was cut off (limit, cancel)."""
        if cut or not self._ids:
            return ""
        text = self._decode(self._ids)
        new = text[self._shown :]
        self._shown = len(text)
        return new

    def _move(self) -> None:
        """The tokens of this step become those that the next ones are decoded behind."""
        following = self._ids[self._read :]
        text = self._decode(following)
        if not text or text.endswith(REPLACEMENT) or text.startswith(REPLACEMENT):
            return  # on their own they do not read as in their place: keep the longer window
        self._ids = following
        self._read = len(following)
        self._shown = len(text)
