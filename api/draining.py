"""The rest of a request's body, where the answer begins before it has come.

The server would close the connection then, under the client's next request. So what is left is read first, within
limits; beyond them the answer says that the connection closes.
"""

import asyncio

from starlette.types import Message, Receive, Scope

from schemas.limits import BODY_BYTES_MAX

DRAINED_S = 1.0
"""So long an early answer waits for the rest of a body, and for at most `BODY_BYTES_MAX` of it."""


class RequestBody:
    """The server's `receive`; knows whether all of the body has come."""

    __slots__ = ("_receive", "whole")

    def __init__(self, receive: Receive, scope: Scope) -> None:
        self._receive = receive
        self.whole = not any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in scope["headers"]
        )

    async def __call__(self) -> Message:
        message = await self._receive()
        self.whole = self.whole or not message.get("more_body", False)
        return message

    async def drained(self) -> bool:
        """Read what is left; whether that was all of it."""
        left = BODY_BYTES_MAX
        try:
            async with asyncio.timeout(DRAINED_S):
                while not self.whole and left > 0:
                    left -= len((await self()).get("body", b""))
        except TimeoutError:
            return False
        return self.whole
