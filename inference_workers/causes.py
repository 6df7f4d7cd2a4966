"""What may be told of a failure to whoever waits for the reply: a sentence on one line, bounded, without secrets.

1. What is known to be a key is taken out wherever it stands, whole or cut; so is what looks like one: the usual
   beginnings, a bearer's token, a masked key, and in an address name and password, or the value of such a parameter.
2. It is cut to a bound. A cut never uncovers what was taken out before.
"""

import re

from schemas.values import DETAIL_CHARS_MAX

KEY = "[key]"
"""Stands where one stood."""

_KNOWN_CHARS = 8
"""A key is found by so many of its first characters too, as some servers repeat the beginning of it."""

_LOOKED_AT = 4
"""Of a longer text, so many times the bound is looked at."""

_KEYS = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|key|hf|nvapi)[-_][A-Za-z0-9_*.-]{6,}"
    r"|\b(?:AIza|AKIA|ASIA)[A-Za-z0-9_-]{10,}"
    r"|\beyJ[A-Za-z0-9_-]{8,400}\.[A-Za-z0-9_.-]+"
    r"|(?<![A-Za-z0-9_-])[A-Za-z0-9_-]*+\*{3,}[A-Za-z0-9_-]*"
    r"|(?i:bearer)\s+\S+"
    r"|(?<=[?&])(?i:[\w.-]{0,40}(?:key|token|secret|signature|password)[\w.-]{0,40})=[^&\s]+"
    r"|(?<=://)[^/\s@]+@"
)


def told(text: str, *, secret: str = "", chars_max: int = DETAIL_CHARS_MAX) -> str:
    """The text as it may be told, of at most `chars_max` characters. `secret`: a key that must not be in it."""
    text = _line(text[: _LOOKED_AT * chars_max])
    if secret:
        text = text.replace(secret, KEY)
    if len(secret) >= 2 * _KNOWN_CHARS:
        text = re.sub(rf"{re.escape(secret[:_KNOWN_CHARS])}[^\s'\",;]*", KEY, text)
    return shortened(_KEYS.sub(KEY, text), chars_max)


def shortened(text: str, chars_max: int = DETAIL_CHARS_MAX) -> str:
    """The text, of a longer one its beginning and an ellipsis."""
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def _line(text: str) -> str:
    """On one line, without what cannot be seen: before keys are looked for, as it could hide one."""
    return " ".join("".join(one if one.isprintable() else " " * one.isspace() for one in text).split())
