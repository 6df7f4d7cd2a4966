"""Changes of accounts, by the operator's calls: to the log, and not answered before this process knows them too.

Other API processes know them a moment later, when they have read the log.
"""

import asyncio
from collections.abc import Sequence

from api.sending import Appender
from schemas.account import Accounts
from schemas.events import Event

LOOKS = 400
LOOK_S = 0.005
"""Two seconds in all."""


class AccountChanges:
    """Writes them."""

    def __init__(self, appender: Appender, accounts: Accounts) -> None:
        self._appender = appender
        self._accounts = accounts

    async def append(self, events: Sequence[Event], traceparent: str) -> None:
        """They are in the log when this returns, and in the fold of this process unless it is slow.

        Raises `Problem` 503 when the log does not take them.
        """
        await self._appender.append(events, traceparent)
        for _ in range(LOOKS):
            if all(self._accounts.knows(event) for event in events):
                return
            await asyncio.sleep(LOOK_S)

    async def record(self, events: Sequence[Event], traceparent: str) -> None:
        """They are in the log when this returns; no account is another for it. Raises as `append`."""
        await self._appender.append(events, traceparent)
