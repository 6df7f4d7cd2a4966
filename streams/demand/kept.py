"""What outlives a restart: each fleet as two records of a table, its numbers and its seasons.

The numbers are small and written with every window; a season is `slots * days` numbers a series, and is written when
a slot of the day has ended. So a restart loses nothing of either, but for what was not yet acknowledged when the
process was killed: that is at most the last window, which is then said again, with the same identity.

Records from before fleets were told apart are of whole pools. Where a pool has one model they are that fleet's; of a
pool with several they say nothing of any, and are removed.
"""

from collections.abc import Iterable, Mapping, MutableMapping

import msgspec
from msgspec.structs import replace

from streams.demand.fleet import Fleet, Known
from streams.demand.forecast import Season, Smoothing


class _Numbers(msgspec.Struct, frozen=True, kw_only=True):
    window_ms: int
    slot_ms: int
    known: Known = msgspec.field(name="pool")


def load(table: Mapping[str, bytes], fleet: Fleet, smoothing: Smoothing) -> Known | None:
    """The fleet as it was saved; None: it was not, or with windows or slots of another length."""
    stored = table.get(_numbers_key(fleet))
    if stored is None:
        return None
    numbers = msgspec.json.decode(stored, type=_Numbers)
    if (numbers.window_ms, numbers.slot_ms) != (smoothing.window_ms, smoothing.slot_ms):
        return None
    seasons = msgspec.json.decode(table.get(_season_key(fleet)) or b"{}", type=dict[str, Season])
    expected = {
        key: replace(one, season=tuple(means[-smoothing.days :] for means in seasons.get(key, ())))
        for key, one in numbers.known.expected.items()
    }
    return replace(numbers.known, expected=expected)


def save(table: MutableMapping[str, bytes], fleet: Fleet, before: Known, after: Known, smoothing: Smoothing) -> None:
    """Write what has changed."""
    if any(after.expected[key].season is not _season(before, key) for key in after.expected):
        seasons = {key: one.season for key, one in after.expected.items()}
        table[_season_key(fleet)] = msgspec.json.encode(seasons)
    bare = {key: replace(one, season=()) for key, one in after.expected.items()}
    numbers = _Numbers(window_ms=smoothing.window_ms, slot_ms=smoothing.slot_ms, known=replace(after, expected=bare))
    table[_numbers_key(fleet)] = msgspec.json.encode(numbers)


def forget(table: MutableMapping[str, bytes], fleet: Fleet) -> None:
    """Remove it."""
    for key in (_numbers_key(fleet), _season_key(fleet)):
        table.pop(key, None)


def take_over(table: MutableMapping[str, bytes], fleets: Iterable[Fleet]) -> None:
    """Give what was kept of whole pools to their fleets.

    Args:
        table: as it was restored.
        fleets: all that the deployment has.
    """
    by_pool: dict[str, list[Fleet]] = {}
    for fleet in fleets:
        by_pool.setdefault(fleet.pool, []).append(fleet)
    for pool, those in by_pool.items():
        for before, key in ((pool, _numbers_key), (f"{pool}/season", _season_key)):
            if before not in table:
                continue
            stored = table.pop(before)
            if len(those) == 1 and key(those[0]) not in table:
                table[key(those[0])] = stored


def _season(known: Known, key: str) -> Season:
    one = known.expected.get(key)
    return () if one is None else one.season


def _numbers_key(fleet: Fleet) -> str:
    return f"numbers:{fleet.key}"  # no pool is named so: pools have no colon


def _season_key(fleet: Fleet) -> str:
    return f"season:{fleet.key}"
