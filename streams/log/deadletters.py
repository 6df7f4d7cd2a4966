"""Records that cannot be processed: how they are marked, and when there are too many of them.

A dead letter is the record as it was (key, value, headers), in `<topic>.dead`, with these headers added:
`dead_topic`, `dead_partition`, `dead_offset`, `dead_field`, `dead_error`, `dead_group`, `dead_at_ms`.
"""

from collections import deque
from collections.abc import Sequence

from schemas.codec import Undecodable
from schemas.topics import dead
from streams.log.encoding import decoded
from streams.log.log import RecordWriter
from streams.log.steps import Appended, Arrived, Record, TooManyDead

WINDOW = 100
JUDGED_FROM = 20
ERROR_CHARS_MAX = 2_000
BURIAL_TIMEOUT_S = 30.0


class Window:
    """The last `WINDOW` records, and how many of them were dead."""

    def __init__(self) -> None:
        self._last: deque[bool] = deque(maxlen=WINDOW)

    def add(self, alive: int, dead: int) -> None:
        """Count a batch, before anything of it is given up.

        Raises:
            TooManyDead: more than half of the window are dead, and it holds `JUDGED_FROM` records or more.
        """
        self._last.extend([False] * alive + [True] * dead)
        lost = sum(self._last)
        if dead and len(self._last) >= JUDGED_FROM and lost * 2 > len(self._last):
            raise TooManyDead(
                f"{lost} of the last {len(self._last)} records cannot be processed; nothing more is given up"
            )


def bury(writer: RecordWriter, record: Record, error: Undecodable, *, group: str, now_ms: int) -> Appended:
    """Write the dead letter of a record."""
    headers = [
        *record.headers,
        ("dead_topic", record.topic.encode()),
        ("dead_partition", str(record.partition).encode()),
        ("dead_offset", str(record.offset).encode()),
        ("dead_field", error.field.encode()),
        ("dead_error", error.reason[:ERROR_CHARS_MAX].encode()),
        ("dead_group", group.encode()),
        ("dead_at_ms", str(now_ms).encode()),
    ]
    return writer.append_record(dead(record.topic).name, record.key, record.value, headers, partition=0)


class Intake:
    """Decodes what a loop polls. Dead letters are acknowledged before their records count as dealt with."""

    def __init__(self, writer: RecordWriter, group: str) -> None:
        self._writer = writer
        self._group = group
        self._window = Window()
        self.dead = 0

    def decoded(self, records: Sequence[Record], now_ms: int) -> list[Arrived]:
        """Those that can be decoded, in their order; the others become dead letters.

        Raises:
            TooManyDead: see `Window`; no dead letter of this batch was written.
            NotAppended: a dead letter could not be written.
        """
        arrived: list[Arrived] = []
        dead_ones: list[tuple[Record, Undecodable]] = []
        for record in records:
            try:
                envelope = decoded(record)
            except Undecodable as error:
                dead_ones.append((record, error))
            else:
                arrived.append(Arrived(record, envelope))
        self._window.add(len(arrived), len(dead_ones))
        self._bury(dead_ones, now_ms)
        return arrived

    def refused(self, record: Record, error: Undecodable, now_ms: int) -> None:
        """A step can never take this record; raises as `decoded`."""
        self._window.add(0, 1)
        self._bury([(record, error)], now_ms)

    def _bury(self, dead_ones: Sequence[tuple[Record, Undecodable]], now_ms: int) -> None:
        for record, error in dead_ones:
            bury(self._writer, record, error, group=self._group, now_ms=now_ms)
            self.dead += 1
        if dead_ones:
            self._writer.flush(BURIAL_TIMEOUT_S)
