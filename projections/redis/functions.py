"""The library of Redis functions that writes stream buffers (`buffer.lua`), and how it gets into a server.

Its name and those of its functions carry the digest of its source. So processes of two versions work side by side on
one server, each with the functions that it knows, and loading is harmless at any time, from any process.
"""

import hashlib
from pathlib import Path

from projections.redis.client import Store
from schemas.tiers import library

_TEMPLATE = (Path(__file__).parent / "buffer.lua").read_text(encoding="utf-8")

VERSION = hashlib.sha256(_TEMPLATE.encode()).hexdigest()[:8]
LIBRARY = f"turnlog_buffer_{VERSION}"
SOURCE = _TEMPLATE.replace("@VERSION@", VERSION)

OPEN = f"turnlog_open_{VERSION}".encode()
APPEND = f"turnlog_append_{VERSION}".encode()
MARK = f"turnlog_mark_{VERSION}".encode()

GAP = -1
CLOSED = -2


def load(url: str) -> tuple[str, ...]:
    """Load this library and that of the limits into the server(s) at `url`; the names of those that were not there.

    Raises:
        StoreError: the server cannot be reached or refuses functions.
    """
    store = Store(url)
    try:
        libraries = ((LIBRARY, SOURCE), (library.LIBRARY, library.SOURCE))
        return tuple(name for name, source in libraries if store.load_library(source))
    finally:
        store.close()
