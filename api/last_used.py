"""When each key was last used: noted in memory, written to Redis now and then, never on the way of a request.

Coarse: a process writes a key at most once in `EVERY_MS`. What it had not written is lost when it dies, and all of it
with Redis. Nothing but the operator's listing of keys depends on it.
"""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from api.stores import HotStore, StoreDown

log = structlog.get_logger()

EVERY_MS = 60_000
WRITE_S = 1.0
KEYS_MAX = 100_000
"""Of which a process remembers that it has written them lately."""


class LastUsed:
    """Of all keys, as this process and the others have seen them."""

    def __init__(self, hot: HotStore, now_ms: Callable[[], int]) -> None:
        self._hot = hot
        self._now_ms = now_ms
        self._noted_ms: dict[str, int] = {}
        self._unwritten: dict[str, dict[str, int]] = {}

    def note(self, account_id: str, key_id: str) -> None:
        """The key was used now."""
        now_ms = self._now_ms()
        if now_ms - self._noted_ms.get(key_id, -EVERY_MS) >= EVERY_MS:
            self._noted_ms[key_id] = now_ms
            self._unwritten.setdefault(account_id, {})[key_id] = now_ms

    async def of(self, account_id: str) -> Mapping[str, int]:
        """Key id -> ms, of the keys of an account of which it is known. Raises `StoreDown`."""
        return await self._hot.keys_used(account_id) | self._unwritten.get(account_id, {})

    async def write(self) -> None:
        """Write what was noted. Raises `StoreDown`: it is kept for the next time."""
        written, self._unwritten = self._unwritten, {}
        if len(self._noted_ms) > KEYS_MAX:
            self._noted_ms = {}
        if not written:
            return
        try:
            await self._hot.note_keys(written)
        except StoreDown:
            for account_id, keys in written.items():
                self._unwritten[account_id] = keys | self._unwritten.get(account_id, {})
            raise

    async def keep(self) -> None:
        """Write again and again, until cancelled."""
        while True:
            await asyncio.sleep(WRITE_S)
            try:
                await self.write()
            except StoreDown as down:
                log.info("use of keys not noted yet", reason=down.reason)
