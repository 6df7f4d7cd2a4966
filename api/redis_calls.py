"""Commands for Redis, of all requests on one connection, in the order of their asking.

Through redis-py a pipeline costs 0.3 ms of the event loop; here what is asked within one turn of it goes out in one
write.

Rules:

1. Who asks gets as many answers as his commands have; an answer that is an error is a value (`ReplyError`) among them.
2. What was under way when the connection was lost is asked once more on the next one, so all of it must bear that.
3. So many askers are under way at most; one more is refused (`StoreDown`): the server does not keep up.
"""

import asyncio
from collections import deque
from typing import Any

from api.redis_wire import Address, Connection, connect
from api.stores import StoreDown

UNDER_WAY_MAX = 20_000
ANSWER_S = 2.0
"""A server that leaves a command unanswered for so long counts as gone."""
TRIES = 2


class _Asked:
    __slots__ = ("answer", "answers", "commands", "count", "sent_s", "tries")

    def __init__(self, commands: bytes, count: int) -> None:
        self.commands = commands
        self.count = count
        self.answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self.answers: list[Any] = []
        self.sent_s = 0.0
        self.tries = 0

    def fail(self, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(StoreDown("redis", reason))
            self.answer.exception()  # whoever still waits gets it; nobody may be left


class RedisCalls:
    """See the rules of this module."""

    def __init__(self, url: str) -> None:
        self._address = Address.of(url)
        self._line: list[_Asked] = []
        self._under_way: deque[_Asked] = deque()
        self._greetings = 0
        self._due = False
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Our end of the connection, as the server lists its clients; None without one."""
        return self._connection.address if self._connection is not None else None

    async def ask(self, commands: bytes, count: int) -> list[Any]:
        """The answers to packed commands, of which there are `count`. Raises `StoreDown`."""
        return await self.begin(commands, count)

    def begin(self, commands: bytes, count: int) -> "asyncio.Future[list[Any]]":
        """Ask, and wait for the answers elsewhere. They may be a `StoreDown`, which may be raised at once, too."""
        if len(self._line) + len(self._under_way) >= UNDER_WAY_MAX:
            raise StoreDown("redis", "too many calls are under way")
        asked = _Asked(commands, count)
        self._line.append(asked)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._send)
        return asked.answer

    async def close(self) -> None:
        """Let go of the connection."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            await connection.lost
        self._fail("closed")

    def _send(self) -> None:
        self._due = False
        connection = self._connection
        if connection is None or connection.lost.done():
            if self._connecting is None and self._line:
                self._connecting = asyncio.ensure_future(self._connect())
            return
        line, self._line = self._line, []
        now_s = asyncio.get_running_loop().time()
        for asked in line:
            asked.tries += 1
            asked.answers = []
            asked.sent_s = now_s
        self._under_way.extend(line)
        if line:
            connection.write(b"".join([asked.commands for asked in line]))

    async def _connect(self) -> None:
        try:
            connection, self._greetings = await connect(self._address, self._heard)
        except OSError as error:
            self._connecting = None
            self._fail(str(error) or type(error).__name__)
            return
        self._connection = connection
        self._connecting = None
        connection.lost.add_done_callback(lambda _: self._lost(connection))
        self._watch(connection)
        self._send()

    def _heard(self, message: Any) -> None:
        if self._greetings:
            self._greetings -= 1
            return
        asked = self._under_way[0]
        asked.answers.append(message)
        if len(asked.answers) == asked.count:
            self._under_way.popleft()
            if not asked.answer.done():
                asked.answer.set_result(asked.answers)

    def _lost(self, connection: Connection) -> None:
        if self._connection is not connection:
            return
        self._connection = None
        again = []
        for asked in self._under_way:
            if asked.tries < TRIES:
                again.append(asked)
            else:
                asked.fail("the connection was lost")
        self._under_way.clear()
        self._line = again + self._line
        self._send()

    def _watch(self, connection: Connection) -> None:
        if connection.lost.done():
            return
        loop = asyncio.get_running_loop()
        if self._under_way:
            first = self._under_way[0]
            if loop.time() - max(first.sent_s, connection.heard_s) > ANSWER_S:
                for asked in self._under_way:
                    asked.tries = TRIES
                connection.close()
                return
        loop.call_later(ANSWER_S / 2, self._watch, connection)

    def _fail(self, reason: str) -> None:
        failed = [*self._under_way, *self._line]
        self._under_way.clear()
        self._line = []
        for asked in failed:
            asked.fail(reason)
