"""Which tables are behind a view, and what is to be made beside them. Pure.

Behind a view are the tables that its text names, through other views. With a table go all that a materialised view
fills from it, and with those all tables that fill them: a roll-up is right when everything in it came through the new
tables. What refreshes by itself is left to do so; the tables that it reads are behind it.
"""

from collections.abc import Mapping

import msgspec

from projections.clickhouse.beside import Table
from projections.views.tables import TOPIC_OF

NEW = "__new"
MIRROR = "__mirror"
STATE = "rebuild__"
OURS = "__"


class NoSuchView(Exception):
    """Nothing that could be rebuilt has this name."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is rebuilt together."""

    view: str
    tables: tuple[str, ...]
    """Those that rows of the log are written into."""
    derived: tuple[str, ...] = ()
    """Those that materialised views fill from them."""
    feeders: tuple[str, ...] = ()
    """Those materialised views."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Where the rows come from."""
        return tuple(sorted({TOPIC_OF[table] for table in self.tables}))

    @property
    def all_tables(self) -> tuple[str, ...]:
        """All that is exchanged."""
        return (*self.tables, *self.derived)

    @property
    def state(self) -> str:
        """The table that says how far it is."""
        return f"{STATE}{self.tables[0]}"

    @property
    def new_names(self) -> dict[str, str]:
        """The names beside the live ones."""
        return {name: f"{name}{NEW}" for name in (*self.all_tables, *self.feeders)}


def plan_of(view: str, catalogue: Mapping[str, Table]) -> Plan:
    """What is behind a view or table. Raises `NoSuchView`."""
    live = {name: table for name, table in catalogue.items() if OURS not in name}
    found = _behind(view, live, set()) if view in live else set()
    tables = {name for name in found if name in TOPIC_OF}
    if not tables:
        there = sorted(name for name, table in live.items() if _behind(name, live, set()) & TOPIC_OF.keys())
        raise NoSuchView(f"there is no view {view!r} that comes from the log; there are: {', '.join(there)}")
    feeders = {name: table for name, table in live.items() if table.feeds is not None}
    reached = set(tables)
    while True:
        hanging = {name for name, table in feeders.items() if table.feeds in reached or table.reads(reached)}
        more = {feeders[name].feeds for name in hanging} | {
            source for name in hanging for source in feeders[name].reads(TOPIC_OF)
        }
        if more <= reached:
            break
        reached |= {name for name in more if name is not None}
    return Plan(
        view=view,
        tables=tuple(sorted(reached & TOPIC_OF.keys())),
        derived=tuple(sorted(reached - TOPIC_OF.keys())),
        feeders=tuple(sorted(hanging)),
    )


def _behind(name: str, live: Mapping[str, Table], seen: set[str]) -> set[str]:
    """The stored tables that a view or table is read from."""
    if name in seen:
        return set()
    seen.add(name)
    table = live[name]
    if table.engine == "MaterializedView":
        target = table.feeds or table.refills
        return _behind(target, live, seen) if target is not None and target in live else set()
    if not table.is_view:
        sources = {
            source
            for other in live.values()
            if name in (other.refills, other.feeds)
            for source in other.reads(live.keys() - {name})
        }
        return {name}.union(*(_behind(source, live, seen) for source in sources))
    return set().union(*(_behind(source, live, seen) for source in table.reads(live.keys() - {name})))
