"""Tickets: a stream's URL that works without a header, for a browser's EventSource. Pure.

A ticket names a key (or the user of a token), one stream and when it stops opening it, and carries a MAC with the
deployment's secret: any API process can check it, and nothing is stored. It opens what its key or user opens, so a
revoked key takes its tickets along, and so does a removed user. An open stream goes on when its ticket has expired.
"""

import base64
import binascii
import hmac

import msgspec

_MAC = 16
_CHARS_MAX = 2_000


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """What a ticket says."""

    account_id: str
    key_id: str
    """Empty: it was asked for with a token."""
    stream_id: str
    """The reply or the conversation whose events it opens."""
    expires_at_ms: int
    user_id: str | None = None
    """Whose token it was."""


def written(ticket: Ticket, secret: bytes) -> str:
    """The ticket as it stands in a URL."""
    content = msgspec.json.encode(ticket)
    return base64.urlsafe_b64encode(_mac(content, secret) + content).decode().rstrip("=")


def read(text: str, secret: bytes, now_ms: int) -> Ticket | None:
    """What a ticket says, or None: malformed, made with another secret, or expired."""
    if len(text) > _CHARS_MAX:
        return None
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        mac, content = raw[:_MAC], raw[_MAC:]
        if not hmac.compare_digest(mac, _mac(content, secret)):
            return None
        ticket = msgspec.json.decode(content, type=Ticket)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None
    return ticket if now_ms < ticket.expires_at_ms else None


def _mac(content: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, b"ticket\0" + content, "sha256")[:_MAC]
