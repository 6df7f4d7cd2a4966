"""W3C trace context (https://www.w3.org/TR/trace-context/), as far as the log needs it: version 00 only."""

import os
import re

_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


def new_trace() -> str:
    """A `traceparent` that begins a trace."""
    return f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-01"


def child(traceparent: str | None) -> str:
    """A `traceparent` in the same trace with a span of its own; a new trace where there is no valid one."""
    match = _TRACEPARENT.fullmatch(traceparent) if traceparent is not None else None
    if match is None:
        return new_trace()
    return f"00-{match[1]}-{os.urandom(8).hex()}-{match[3]}"


def trace_id(traceparent: str | None) -> str | None:
    """The trace's id, for logs; None where it is missing or malformed."""
    match = _TRACEPARENT.fullmatch(traceparent) if traceparent is not None else None
    return None if match is None else match[1]
