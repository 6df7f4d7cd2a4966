"""What outlives a restart: each pool as two records of a table, its numbers and its seasons.

The numbers are small and written with every window; a season is `slots * days` numbers a series, and is written when
a slot of the day has ended. So a restart loses nothing of either, but for what was not yet acknowledged when the
process was killed: that is at most the last window, which is then said again, with the same identity.
"""

from collections.abc import Mapping, MutableMapping

import msgspec
from msgspec.structs import replace

from streams.demand.forecast import Season, Smoothing
from streams.demand.pool import Pool


class _Numbers(msgspec.Struct, frozen=True, kw_only=True):
    window_ms: int
    slot_ms: int
    pool: Pool


def load(table: Mapping[str, bytes], name: str, smoothing: Smoothing) -> Pool | None:
    """The pool as it was saved; None: it was not, or with windows or slots of another length."""
    stored = table.get(name)
    if stored is None:
        return None
    numbers = msgspec.json.decode(stored, type=_Numbers)
    if (numbers.window_ms, numbers.slot_ms) != (smoothing.window_ms, smoothing.slot_ms):
        return None
    seasons = msgspec.json.decode(table.get(_season_key(name)) or b"{}", type=dict[str, Season])
    expected = {
        key: replace(one, season=tuple(means[-smoothing.days :] for means in seasons.get(key, ())))
        for key, one in numbers.pool.expected.items()
    }
    return replace(numbers.pool, expected=expected)


def save(table: MutableMapping[str, bytes], name: str, before: Pool, after: Pool, smoothing: Smoothing) -> None:
    """Write what has changed."""
    if any(after.expected[key].season is not _season(before, key) for key in after.expected):
        seasons = {key: one.season for key, one in after.expected.items()}
        table[_season_key(name)] = msgspec.json.encode(seasons)
    bare = {key: replace(one, season=()) for key, one in after.expected.items()}
    numbers = _Numbers(window_ms=smoothing.window_ms, slot_ms=smoothing.slot_ms, pool=replace(after, expected=bare))
    table[name] = msgspec.json.encode(numbers)


def forget(table: MutableMapping[str, bytes], name: str) -> None:
    """Remove it."""
    for key in (name, _season_key(name)):
        table.pop(key, None)


def _season(pool: Pool, key: str) -> Season:
    one = pool.expected.get(key)
    return () if one is None else one.season


def _season_key(name: str) -> str:
    return f"{name}/season"  # no pool is named so: pools have no slash
