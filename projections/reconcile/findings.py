"""What reconciliation finds, and what it comes to."""

from collections.abc import Callable

import msgspec

from projections.clickhouse.compare import Change


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A difference. In `changes`, `live` is what the table has, `right` what the log says.

    `kind`: of tables missing, extra or changed; of `replies`, where messages and bills tell differently, no_bill,
    no_reply or differs; of `buckets`, which is in Redis, not_settled or differs.
    """

    table: str
    kind: str
    key: tuple[str, ...]
    changes: tuple[Change, ...] = ()


class Outcome(msgspec.Struct, kw_only=True):
    """What was found."""

    records: int = 0
    """Read from the log."""
    rows: int = 0
    """Looked at in the tables."""
    found: int = 0
    left: int = 0
    """Differences that are still there."""
    unreadable: int = 0
    behind: int = 0
    """Records that the projection had not come to: not judged."""
    replies_compared: bool = False
    """Messages were compared with the log, and with bills."""
    settled: int = 0
    """Replies of which was looked at whether buckets are settled with them."""
    buckets_compared: bool = False
    buckets_trouble: str = ""
    """Why they could not be compared."""


Tell = Callable[[Finding], None]
