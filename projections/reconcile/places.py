"""Which differences between the live rows and the log's are wrong, and which are only newer or older. Pure.

The log was read from `begins` to below `ends`; the projection had written all below `told`; `now` are the log's ends
after the rows were looked at. A row in an unknown partition, or beyond what the log has, is from nowhere.
"""

from collections.abc import Mapping

import msgspec

from projections.clickhouse.compare import Pair


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """Of one topic: offsets by partition number."""

    begins: Mapping[int, int]
    ends: Mapping[int, int]
    told: Mapping[int, int]
    now: Mapping[int, int]

    def is_older(self, place: tuple[int, int]) -> bool:
        """From before what could be read."""
        return place[0] in self.begins and place[1] < self.begins[place[0]]

    def is_newer(self, place: tuple[int, int]) -> bool:
        """Came after what was read."""
        number, offset = place
        return number in self.ends and self.ends[number] <= offset < self.now[number]

    def is_due(self, place: tuple[int, int]) -> bool:
        """The projection says that it is written."""
        return place[1] < self.told.get(place[0], 0)


def verdict(pair: Pair, read: Read) -> str | None:
    """What is wrong with the live row: `missing`, `extra` or `changed`; None: nothing that is known."""
    if pair.live_here and read.is_newer(pair.live_at):
        return None
    if pair.live_here and not pair.right_here:
        return None if read.is_older(pair.live_at) else "extra"
    if not read.is_due(pair.right_at):
        return None
    return "changed" if pair.live_here else "missing"
