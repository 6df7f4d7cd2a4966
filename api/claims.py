"""What a claim on a client message id means for a send.

Rules:

1. A claim holds the digest of the body, and a mark once the message is in the log. Another digest is a conflict.
2. A repeated send whose message is in the log is answered at once. One that is not yet, as far as is known, is taken
   like a new one: the same limits hold for it (what the first sender reserved stands under the reply's id, and lets it
   pass), and it is appended, perhaps again: the first sender may have died in between, and the conversation's fold
   ignores the second record.
3. A fresh claim proves that the id is new only as far back as claims are complete. Where that is not long enough
   (Redis was lost, or cannot be asked), the view is asked before the message is appended, and not before the view has
   what was appended until claims were lost.
4. What is left: while Redis is away, a send whose id was used with another body within the view's delay (about a
   second) is not recognised. In the same conversation the fold still ignores it; in another one it is a message.
"""

import msgspec

from api.stores import Entry

CLAIM_MS = 24 * 3600 * 1000
APPENDED = "+"


class Fresh(msgspec.Struct, frozen=True):
    """Append. `ask_views`: but look first whether the id was used before, `wait_ms` from now."""

    ask_views: bool
    ours: bool = True
    """False: another send has claimed the same, and is on its way or died."""
    wait_ms: int = 0
    note_begin: bool = False
    """The store does not know since when claims are complete: note that it begins now."""


class Repeated(msgspec.Struct, frozen=True):
    """In the log for certain, with the same body."""


class Conflicting(msgspec.Struct, frozen=True):
    """Known, with another body."""


VIEW_BEHIND_MS = 3_000
"""So far behind the log the view is at most, as long as it works."""

UNCLAIMED = Fresh(ask_views=True)
"""The store that holds the claims does not answer."""


def decide(entry: Entry, digest: str, now_ms: int) -> Fresh | Repeated | Conflicting:
    """What to do with a send that claimed its client message id."""
    claimed, since_ms = entry.claimed, entry.claims_since_ms
    if claimed is not None and claimed.removesuffix(APPENDED) != digest:
        return Conflicting()
    if claimed is not None and claimed.endswith(APPENDED):
        return Repeated()
    ours = claimed is None
    if since_ms is None:
        return Fresh(ask_views=True, ours=ours, wait_ms=VIEW_BEHIND_MS, note_begin=True)
    if since_ms == 0 or since_ms <= now_ms - CLAIM_MS:
        return Fresh(ask_views=False, ours=ours)
    return Fresh(ask_views=True, ours=ours, wait_ms=max(since_ms + VIEW_BEHIND_MS - now_ms, 0))
