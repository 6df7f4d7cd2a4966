"""The scripts that the scripted engine obeys: a JSON object in the newest user message.

    {"chunks": 500, "every_ms": 20, "text": "…", "first_after_ms": 0,
     "fail_at": 100, "hang_at": 100, "crash_at": 100, "split_utf8": true}

- Each chunk is one token. Chunk n (from 1) is due `first_after_ms + (n - 1) * every_ms` after the start.
- With `text` the chunks are its words, or, with `chunks`, that many pieces of equal length. Without it they are
  numbered words, 20 unless `chunks` says otherwise.
- `fail_at`, `hang_at`, `crash_at`: after that many chunks the generation fails, falls silent, or kills the process,
  when the next chunk would be due.
- `split_utf8`: the pieces are cut by bytes, in the middle of characters too.

The process's SIGUSR1 silences the whole engine: nothing more comes of any generation, and no cancel arrives.

A script of `text` or `split_utf8` has no more than 100,000 chunks. Any other message is echoed, in at most 50 chunks.
"""

import re
from typing import Annotated

import msgspec

from inference_workers.engine import InvalidRequest
from inference_workers.text import even_edges
from schemas.values import PromptMessage

WORDS_DEFAULT = 20
ECHO_CHUNKS_MAX = 50
ECHO_EVERY_MS = 5.0
SPLIT_BYTES = 3
"""Bytes of a piece of a split text: cuts characters of two, three and four bytes at each place."""

PIECES_MAX = 100_000
"""Chunks that are cut in advance, which takes some 0.1 s; numbered words are not, and may be as many as `Count`."""

_WORD = re.compile(r"\s*\S+\s*\Z|\s*\S+|\s+")

Count = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=86_400_000)]


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What one generation shall do. Unknown members are ignored."""

    chunks: Count | None = None
    every_ms: Milliseconds = 0.0
    text: str | None = None
    first_after_ms: Milliseconds = 0.0
    fail_at: Count | None = None
    hang_at: Count | None = None
    crash_at: Count | None = None
    split_utf8: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A script with its chunks: token bytes where characters may be split, text otherwise, None: numbered words."""

    script: Script
    chunks: int
    pieces: tuple[str, ...] | tuple[bytes, ...] | None

    def piece(self, number: int) -> str | bytes:
        """Chunk `number`, from 1."""
        if self.pieces is not None:
            return self.pieces[number - 1]
        return f"word{number}" if number == 1 else f" word{number}"


def plan(messages: tuple[PromptMessage, ...]) -> Plan:
    """What to do for a prompt.

    Raises:
        InvalidRequest: no user message, or an object whose members have wrong types.
    """
    newest = next((message.content for message in reversed(messages) if message.role == "user"), None)
    if newest is None:
        raise InvalidRequest("messages: the scripted engine needs a user message")
    if not newest.lstrip().startswith("{"):
        return _echo(newest)
    try:
        members = msgspec.json.decode(newest)
    except (msgspec.DecodeError, RecursionError):
        return _echo(newest)
    try:
        script = msgspec.convert(members, Script)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"script: {error}") from error
    if script.chunks is not None and script.chunks > PIECES_MAX and (script.split_utf8 or script.text is not None):
        raise InvalidRequest(f"script: no more than {PIECES_MAX:,} chunks of a text or of split characters")
    return _planned(script)


def _planned(script: Script) -> Plan:
    if script.text is None and not script.split_utf8:
        count = WORDS_DEFAULT if script.chunks is None else script.chunks
        return Plan(script=script, chunks=count, pieces=None)
    text = script.text
    if text is None:
        text = " ".join(f"wörd{n}" for n in range(1, (script.chunks or WORDS_DEFAULT) + 1))
    if script.split_utf8:
        data = text.encode()
        count = max(1, -(-len(data) // SPLIT_BYTES)) if script.chunks is None else script.chunks
        return Plan(
            script=script, chunks=count, pieces=tuple(data[start:end] for start, end in even_edges(len(data), count))
        )
    pieces = _WORD.findall(text) if script.chunks is None else _even(text, script.chunks)
    return Plan(script=script, chunks=len(pieces), pieces=tuple(pieces))


def _echo(text: str) -> Plan:
    words = _WORD.findall(text)
    count = min(len(words), ECHO_CHUNKS_MAX)
    pieces = tuple("".join(words[start:end]) for start, end in even_edges(len(words), count))
    return Plan(script=Script(every_ms=ECHO_EVERY_MS), chunks=count, pieces=pieces)


def _even(text: str, count: int) -> list[str]:
    return [text[start:end] for start, end in even_edges(len(text), count)]
