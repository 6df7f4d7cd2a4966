"""Which pages of other origins may use the API from a browser (TURNLOG_CORS_ORIGINS).

A caller is known by a key that its page sends itself, never by a cookie. So an origin that is let in gets no more than
any program has, and every header and method may be asked for: client libraries send headers of their own.
"""

import re
from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from api.limits_headers import NAMES

EXPOSED = (
    "X-Request-Id",
    "Request-Id",
    "X-Conversation-Id",
    "X-Reply-Id",
    "Location",
    "Retry-After",
    *NAMES,
    "ETag",
    "Stream-Next-Offset",
    "Stream-Up-To-Date",
    "Stream-Closed",
    "Stream-Cursor",
)
"""Headers of answers that a page may read, beside those that every page may."""
PREFLIGHT_S = 7200
"""For so long a browser need not ask again; browsers take no more."""

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s*]+")


def origins_of(setting: str) -> tuple[str, ...]:
    """The origins in a list with commas, or `*` for all. Raises ValueError."""
    origins = tuple(origin for part in setting.split(",") if (origin := part.strip()))
    if origins == ("*",):
        return origins
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(f"must be * or origins with commas between, as https://chat.example.com; not {origin!r}")
    return origins


def let_in(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """The application, for pages of these origins too; itself where there are none."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=EXPOSED,
        max_age=PREFLIGHT_S,
    )
