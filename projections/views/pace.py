"""When to insert: at once while little happens, about once a second under load. Pure.

ClickHouse makes a part of each insert and merges parts in the background; many small ones are what it cannot bear. So
inserts have a budget: a few may follow each other quickly, on average there is one a second.
"""

import msgspec


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The budget: `left` inserts at `at_ms`."""

    burst: float = 5.0
    per_s: float = 1.0
    left: float = 5.0
    at_ms: int = 0

    def passed(self, now_ms: int) -> "Pace":
        """The budget now."""
        grown = max(0, now_ms - self.at_ms) / 1000 * self.per_s
        return msgspec.structs.replace(self, left=min(self.burst, self.left + grown), at_ms=now_ms)

    def spent(self) -> "Pace":
        """The budget after an insert (it may go below zero when a full batch could not wait)."""
        return msgspec.structs.replace(self, left=max(-self.burst, self.left - 1))

    @property
    def allows(self) -> bool:
        """Whether an insert is due although the batch is not full."""
        return self.left >= 1
