"""Whether this process can serve: what is there and what is missing, looked at in the background.

Asking costs nothing, so that a load balancer may ask often and an outage is not made worse by the questions.
"""

import asyncio
from collections.abc import Awaitable, Callable

from api.stores import HotStore, LiveFrames, StoreDown, Views
from streams.log.compacted import CompactedReader

EVERY_S = 1.0
ANSWER_S = 1.5
LOG_ANSWERS_S = 15.0


class Health:
    """Keeps looking at what the process needs."""

    def __init__(self, accounts: CompactedReader, hot: HotStore, live: LiveFrames, views: Views) -> None:
        self._accounts = accounts
        self._hot = hot
        self._live = live
        self._views = views
        self._missing: tuple[str, ...] = ("kafka", "redis", "clickhouse", "accounts")
        self.stopping = False

    @property
    def accounts_complete(self) -> bool:
        """Every account that existed when the process began is known."""
        return self._accounts.complete

    @property
    def missing(self) -> tuple[str, ...]:
        """What is needed and not there; empty when all is well."""
        return (*self._missing, "stopping") if self.stopping else self._missing

    async def look(self) -> None:
        """Look once."""
        redis, clickhouse = await asyncio.gather(_answers(self._hot.ping), _answers(self._views.ping))
        found = {
            "kafka": self._accounts.log_answers(LOG_ANSWERS_S),
            "redis": redis and self._live.connected,
            "clickhouse": clickhouse,
            "accounts": self._accounts.complete,
        }
        self._missing = tuple(name for name, there in found.items() if not there)

    async def keep(self, looked: Callable[[tuple[str, ...]], None]) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            looked(self.missing)
            await asyncio.sleep(EVERY_S)


async def _answers(ping: Callable[[], Awaitable[None]]) -> bool:
    try:
        async with asyncio.timeout(ANSWER_S):
            await ping()
    except (StoreDown, TimeoutError):
        return False
    return True
