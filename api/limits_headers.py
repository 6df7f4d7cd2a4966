"""How an account's limits stand, as headers of the answer to a send, in the words of each client's format.

Sources: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/ (10),
https://platform.openai.com/docs/guides/rate-limits, https://docs.anthropic.com/en/api/rate-limits
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from api.limits import Level, Standing, Told
from schemas.tiers import REQUESTS, RUNNING, TOKENS

SPEND = "X-Spend-Limit"
NAMES = ("RateLimit-Policy", "RateLimit", SPEND)
"""Those that pages of other origins may read."""
_KINDS = (REQUESTS, TOKENS)


def headers_of(path: str, told: Told, now_s: float) -> list[tuple[bytes, bytes]]:
    """The headers of an answer at this path; none where nothing is known of the limits."""
    found: list[tuple[str, str]] = []
    if told.standing is not None:
        if path.startswith("/openai/"):
            found += _openai(told.standing)
        elif path.startswith("/anthropic/"):
            found += _anthropic(told.standing, now_s)
        else:
            found += _native(told.standing)
    if told.spend is not None:
        found.append((SPEND, told.spend))
    return [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in found]


def _native(standing: Standing) -> Iterator[tuple[str, str]]:
    levels = standing.levels
    policies = [f"{_quoted(one.bucket.name)};q={one.bucket.capacity};w={_window_s(one)}" for one in levels]
    policies.append(f'{_quoted(RUNNING)};q={standing.running_max};qu="concurrent-requests"')
    yield "RateLimit-Policy", ", ".join(policies)
    now = [f"{_quoted(one.bucket.name)};r={one.available};t={one.full_in_s}" for one in levels]
    now.append(f"{_quoted(RUNNING)};r={max(standing.running_max - standing.running, 0)}")
    yield "RateLimit", ", ".join(now)


def _openai(standing: Standing) -> Iterator[tuple[str, str]]:
    for kind, level in _both(standing.levels):
        yield f"x-ratelimit-limit-{kind}", str(level.bucket.capacity)
        yield f"x-ratelimit-remaining-{kind}", str(level.available)
        yield f"x-ratelimit-reset-{kind}", duration(level.full_in_s)


def _anthropic(standing: Standing, now_s: float) -> Iterator[tuple[str, str]]:
    for kind, level in _both(standing.levels):
        full_at = datetime.fromtimestamp(now_s, UTC) + timedelta(seconds=level.full_in_s)
        yield f"anthropic-ratelimit-{kind}-limit", str(level.bucket.capacity)
        yield f"anthropic-ratelimit-{kind}-remaining", str(level.available)
        yield f"anthropic-ratelimit-{kind}-reset", f"{full_at:%Y-%m-%dT%H:%M:%SZ}"


def duration(seconds: int) -> str:
    """As OpenAI writes it: `1s`, `6m0s`, `1h0m0s`."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _both(levels: Sequence[Level]) -> Iterator[tuple[str, Level]]:
    for kind in _KINDS:
        for level in levels:
            if level.bucket.name == kind:
                yield kind, level


def _window_s(level: Level) -> int:
    return max(-(-level.bucket.refill_ms // 1000), 1)


def _quoted(name: str) -> str:
    """As a string of RFC 8941: printable ASCII, the rest as question marks."""
    plain = "".join(character if " " <= character <= "~" else "?" for character in name)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
