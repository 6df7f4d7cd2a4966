"""Are the buckets of limits settled with what the log says? The marks in Redis against records of kind `reply`.

1. A reply is looked at while it counts, while the account's buckets may not have filled up again since it ended, and at
   most for `MARGIN_MS`: so long its mark is there whatever the account's limits were when it was settled.
2. Only records that the projection has settled are judged, by its marker, which is asked for before the marks are; and
   only a store that is whole, and still is after its marks were asked for: otherwise it is being made again from the
   log, which is a repair already.
3. Of a reply that is in the log twice, the first record counts, as it does for the projection.
4. A repair settles what was not settled, as if the buckets were made again: of a mark that alone was lost a reply is
   charged twice, but never more than there is; no bucket grants more than without it. Of what was settled with other
   tokens the difference is charged, or given back.
"""

from collections.abc import Iterable, Iterator

import msgspec

from projections.clickhouse.compare import Change
from projections.limits import commands
from projections.limits.commands import MARGIN_MS, Owners, charged_tokens
from projections.redis.client import Command, Store
from schemas.codec import Undecodable
from schemas.events import UsageRecorded
from schemas.tiers import window_ms
from schemas.tiers.library import SOURCE
from schemas.topics import USAGE
from streams.log.encoding import decoded
from streams.log.log import Log, since
from streams.log.steps import Partition

AT_ONCE = 1_000
"""Marks of one round trip."""
POLL_S = 0.2


class Remade(Exception):
    """The store was lost meanwhile, and is being made again from the log."""


class Reached(msgspec.Struct, frozen=True):
    """A store by its name, and up to where each partition is settled there."""

    store: bytes
    positions: dict[Partition, int]


class Unsettled(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that the buckets are not settled with. `kind`: `not_settled`, or `differs`."""

    kind: str
    event: UsageRecorded
    changes: tuple[Change, ...] = ()


class Buckets:
    """The limits' store, and whose buckets are in it."""

    def __init__(self, log: Log, store: Store, namespace: str, owners: Owners) -> None:
        self._log = log
        self._store = store
        self._namespace = namespace
        self._owners = owners
        self.looked_at = 0
        """Replies, by the last `wrong`."""

    def reached(self) -> Reached:
        """How far it is. Raises `Remade`, `StoreError`."""
        asked = commands.reached(self._namespace, self._log.partitions(USAGE.name))
        (name, *positions), whole = self._store.call(asked)
        if name is None or whole != name:
            raise Remade
        at = {Partition(USAGE.name, number): int(position or 0) for number, position in enumerate(positions)}
        return Reached(name, at)

    def wrong(self, reached: Reached, now_ms: int) -> Iterator[Unsettled]:
        """Replies that are settled otherwise than the log says. Raises `Remade`, `StoreError`, `LogError`."""
        self.looked_at = 0
        held: list[UsageRecorded] = []
        for event in self._first(self._young(reached.positions, now_ms)):
            held.append(event)
            if len(held) == AT_ONCE:
                yield from self._judged(held, reached)
                held = []
        if held:
            yield from self._judged(held, reached)

    def repair(self, reached: Reached, wrong: Iterable[Unsettled], now_ms: int) -> None:
        """Rule 4. Raises `Remade`, `StoreError`."""
        self._store.load_library(SOURCE)
        self._stands(reached)
        self._store.call([self._mended(one, now_ms) for one in wrong])

    def _stands(self, reached: Reached) -> None:
        if self.reached().store != reached.store:
            raise Remade

    def _mended(self, one: Unsettled, now_ms: int) -> Command:
        owner = self._owners.owner(one.event)
        if one.kind == "differs":
            return commands.correcting(self._namespace, one.event, owner)
        return commands.settling(self._namespace, one.event, owner, now_ms, again=True)

    def _young(self, positions: dict[Partition, int], now_ms: int) -> Iterator[UsageRecorded]:
        """Records of replies that count, below these offsets."""
        reader = self._log.reader(list(positions), since(now_ms - 2 * MARGIN_MS))
        try:
            reached = {partition: min(end, positions[partition]) for partition, end in reader.ends().items()}
            while any(position < reached[partition] for partition, position in reader.positions().items()):
                for record in reader.poll(POLL_S):
                    if record.offset >= reached[Partition(record.topic, record.partition)]:
                        continue
                    try:
                        event = decoded(record).event
                    except Undecodable:
                        continue
                    if isinstance(event, UsageRecorded) and event.record_kind == "reply":
                        window = window_ms(self._owners.owner(event).rules)
                        if now_ms - event.ended_at_ms <= min(window, MARGIN_MS):
                            yield event
        finally:
            reader.close()

    @staticmethod
    def _first(events: Iterable[UsageRecorded]) -> Iterator[UsageRecorded]:
        seen: set[tuple[str, str]] = set()
        for event in events:
            if (event.account_id, event.reply_id) not in seen:
                seen.add((event.account_id, event.reply_id))
                yield event

    def _judged(self, events: list[UsageRecorded], reached: Reached) -> Iterator[Unsettled]:
        self.looked_at += len(events)
        asked = [commands.settled_with(self._namespace, event, self._owners.owner(event)) for event in events]
        marks = self._store.call(asked)
        self._stands(reached)
        for event, mark in zip(events, marks, strict=True):
            right = charged_tokens(event)
            if mark is None:
                yield Unsettled(kind="not_settled", event=event)
            elif mark != b"%d" % right:
                change = Change("tokens", mark.decode(errors="replace"), str(right))
                yield Unsettled(kind="differs", event=event, changes=(change,))
