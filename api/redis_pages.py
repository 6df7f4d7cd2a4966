"""Pages of the stream buffer from Redis: pipelined on one connection, some at a time, in the order of the asking.

Through redis-py a page costs 0.4 ms of the event loop; thousands of streams open, resume and beat at once.

Rules:

1. So many questions are on their way at most; the rest wait in line. So neither Redis nor this process is busy with
   pages for long at a stretch, and what they bring is bounded in memory.
2. Who asks for a page that is still in line gets that one: it will be read after his asking, as his own would be.
   A page that is on its way already is nobody else's: what came since may not be in it.
3. A question that was lost with its connection is asked once more on the next one.
"""

import asyncio
import hashlib
from collections import deque
from typing import Any

import msgspec

from api.redis_scripts import READ
from api.redis_wire import Address, Connection, ReplyError, connect, packed
from api.stores import StoreDown

AT_ONCE = 8
ANSWER_S = 2.0
"""A server that leaves a question unanswered for so long counts as gone."""
TRIES = 2

_SHA = hashlib.sha1(READ.encode(), usedforsecurity=False).hexdigest().encode()
_LOAD = packed(b"SCRIPT", b"LOAD", READ.encode())
_ANSWERS = 2
_OURS = object()
"""In the place of a question: an answer that nobody waits for."""


class Question(msgspec.Struct, frozen=True):
    """Which page. The keys are those of the mark of deletion, of the list, and of the head."""

    deleted_key: str
    frames_key: str
    head_key: str
    after: int
    frames_max: int
    bytes_max: int

    def packed(self) -> bytes:
        """The commands."""
        keys = (self.frames_key.encode(), self.head_key.encode())
        bounds = (b"%d" % self.after, b"%d" % self.frames_max, b"%d" % self.bytes_max)
        return packed(b"EXISTS", self.deleted_key.encode()) + packed(b"EVALSHA", _SHA, b"2", *keys, *bounds)


class _Asked:
    __slots__ = ("answer", "answers", "question", "sent_s", "tries")

    def __init__(self, question: Question) -> None:
        self.question = question
        self.answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self.answers: list[Any] = []
        self.sent_s = 0.0
        self.tries = 0

    def fail(self, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(StoreDown("redis", reason))
            self.answer.exception()  # whoever still waits gets it; nobody may be left


class RedisPages:
    """See the rules of this module."""

    def __init__(self, url: str) -> None:
        self._address = Address.of(url)
        self._line: dict[Question, _Asked] = {}
        self._under_way: deque[_Asked | object] = deque()
        self._free = AT_ONCE
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None

    async def ask(self, question: Question) -> list[Any]:
        """What the script `READ` says, behind whether the conversation is marked as deleted. Raises `StoreDown`."""
        asked = self._line.get(question)
        if asked is None:
            asked = self._line[question] = _Asked(question)
            self._go_on()
        return await asyncio.shield(asked.answer)

    async def close(self) -> None:
        """Let go of the connection."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        if self._connection is not None:
            self._connection.close()
            await self._connection.lost
        self._fail_all("closed")

    def _go_on(self) -> None:
        connection = self._connection
        if connection is None or connection.lost.done():
            if self._connecting is None and self._line:
                self._connecting = asyncio.ensure_future(self._connect())
            return
        commands = []
        while self._line and self._free:
            question = next(iter(self._line))
            asked = self._line.pop(question)
            asked.tries += 1
            asked.answers = []
            asked.sent_s = asyncio.get_running_loop().time()
            self._free -= 1
            self._under_way.append(asked)
            commands.append(question.packed())
        if commands:
            connection.write(b"".join(commands))

    async def _connect(self) -> None:
        try:
            connection, greetings = await connect(self._address, self._heard)
        except OSError as error:
            self._connecting = None
            self._fail_all(str(error) or type(error).__name__)
            return
        self._under_way.clear()
        self._under_way.extend([_OURS] * (greetings + 1))
        self._free = AT_ONCE
        connection.write(_LOAD)
        self._connection = connection
        self._connecting = None
        connection.lost.add_done_callback(lambda _: self._lost(connection))
        self._watch(connection)
        self._go_on()

    def _heard(self, message: Any) -> None:
        asked = self._under_way[0]
        if not isinstance(asked, _Asked):
            self._under_way.popleft()
            return
        asked.answers.append(message)
        if len(asked.answers) < _ANSWERS:
            return
        self._under_way.popleft()
        self._free += 1
        wrong = next((answer for answer in asked.answers if isinstance(answer, ReplyError)), None)
        if wrong is None:
            if not asked.answer.done():
                asked.answer.set_result(asked.answers)
        elif str(wrong).startswith("NOSCRIPT") and asked.tries < TRIES and self._connection is not None:
            self._under_way.append(_OURS)
            self._connection.write(_LOAD)
            self._again(asked)
        else:
            asked.fail(str(wrong))
        self._go_on()

    def _lost(self, connection: Connection) -> None:
        if self._connection is not connection:
            return
        self._connection = None
        for asked in list(self._under_way):
            if isinstance(asked, _Asked):
                if asked.tries < TRIES:
                    self._again(asked)
                else:
                    asked.fail("the connection was lost")
        self._under_way.clear()
        self._go_on()

    def _again(self, asked: _Asked) -> None:
        """Ask once more; where the same was asked meanwhile, that is the answer to both."""
        other = self._line.setdefault(asked.question, asked)
        if other is not asked:
            other.answer.add_done_callback(lambda done: _hand_on(done, asked))

    def _watch(self, connection: Connection) -> None:
        if connection.lost.done():
            return
        loop = asyncio.get_running_loop()
        first = next((asked for asked in self._under_way if isinstance(asked, _Asked)), None)
        if first is not None and loop.time() - max(first.sent_s, connection.heard_s) > ANSWER_S:
            first.tries = TRIES
            connection.close()
            return
        loop.call_later(ANSWER_S / 2, self._watch, connection)

    def _fail_all(self, reason: str) -> None:
        line, self._line = self._line, {}
        for asked in line.values():
            asked.fail(reason)


def _hand_on(done: "asyncio.Future[list[Any]]", to: _Asked) -> None:
    if done.cancelled() or done.exception() is not None:
        to.fail(str(done.exception()) if not done.cancelled() else "cancelled")
    elif not to.answer.done():
        to.answer.set_result(done.result())
