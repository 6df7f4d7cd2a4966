"""JSON that an upstream sent: whatever its bytes are, they become a value or `Malformed`.

Rules:

1. Nothing else comes out: bytes that are no UTF-8, nesting beyond the interpreter's depth and numbers beyond all
   bounds are `Malformed` like any other.
2. A text that holds half a surrogate pair is JSON, but no text yet (see `chat_completions.Characters`): it is decoded
   as it stands.
3. A value that is told to people goes through `in_words`: the words of a deep or enormous value are none.
"""

import json
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class Malformed(ValueError):
    """The bytes are not what they should be."""


anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def decoded(data: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """The value, of the decoder's type. Raises `Malformed`."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = str(error)
    except RecursionError as error:
        raise Malformed("it is nested too deeply") from error
    try:
        value: T = msgspec.convert(json.loads(data), decoder.type)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise Malformed(reason) from error
    return value


def in_words(value: object) -> str:
    """A decoded value as text: itself, or its JSON; empty for None, and for what cannot be written down."""
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""
