"""The library of Redis functions that keeps the buckets (`limits.lua`), and the names in it.

Its name and those of its functions carry the digest of its source. So processes of two versions work side by side on
one server, each with the functions that it knows, and loading is harmless at any time, from any process.
"""

import hashlib
from pathlib import Path

_TEMPLATE = (Path(__file__).parent / "limits.lua").read_text(encoding="utf-8")

VERSION = hashlib.sha256(_TEMPLATE.encode()).hexdigest()[:8]
LIBRARY = f"turnlog_limits_{VERSION}"
SOURCE = _TEMPLATE.replace("@VERSION@", VERSION)

RESERVE = f"turnlog_reserve_{VERSION}".encode()
CONFIRM = f"turnlog_confirm_{VERSION}".encode()
RELEASE = f"turnlog_release_{VERSION}".encode()
SETTLE = f"turnlog_settle_{VERSION}".encode()
CORRECT = f"turnlog_correct_{VERSION}".encode()
LOOK = f"turnlog_look_{VERSION}".encode()
NOTE = f"turnlog_note_{VERSION}".encode()

GRANTED, KNOWN, DENIED, TOO_LARGE, UNWEIGHED = 1, 2, 0, -1, -2
"""What `RESERVE` answers; see there."""


def marker_keys(namespace: str) -> tuple[bytes, bytes]:
    """Keys of the marker that tells a store from another, and of what says that its buckets are whole."""
    return f"{namespace}:{{limits}}:marker".encode(), f"{namespace}:{{limits}}:whole".encode()
