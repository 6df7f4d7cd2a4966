"""Pages of the stream buffer from Redis: pipelined on one connection, some at a time, in the order of the asking.

Through redis-py a page costs 0.4 ms of the event loop; thousands of streams open, resume and beat at once.

Rules:

1. So many questions are on their way at most; the rest wait in line. So neither Redis nor this process is busy with
   pages for long at a stretch, and what they bring is bounded in memory.
2. Who asks for a page that is still in line gets that one: it will be read after his asking, as his own would be.
   A page that is on its way already is nobody else's: what came since may not be in it.
3. A script that Redis has lost is loaded again, with the question behind it.
"""

import asyncio
import hashlib
from typing import Any

import msgspec

from api.redis_calls import RedisCalls
from api.redis_scripts import READ
from api.redis_wire import ReplyError, packed
from api.stores import StoreDown

AT_ONCE = 8

_SHA = hashlib.sha1(READ.encode(), usedforsecurity=False).hexdigest().encode()
_LOAD = packed(b"SCRIPT", b"LOAD", READ.encode())
_ANSWERS = 2


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


class RedisPages:
    """See the rules of this module."""

    def __init__(self, url: str) -> None:
        self._calls = RedisCalls(url)
        self._line: dict[Question, asyncio.Future[list[Any]]] = {}
        self._free = AT_ONCE

    @property
    def address(self) -> tuple[str, int] | None:
        """Our end of the connection, as the server lists its clients; None without one."""
        return self._calls.address

    async def ask(self, question: Question) -> list[Any]:
        """What the script `READ` says, behind whether the conversation is marked as deleted. Raises `StoreDown`."""
        page = self._line.get(question)
        if page is None:
            page = self._line[question] = asyncio.get_running_loop().create_future()
            self._go_on()
        return await asyncio.shield(page)

    async def close(self) -> None:
        """Let go of the connection."""
        line, self._line = self._line, {}
        for page in line.values():
            _refuse(page, StoreDown("redis", "closed"))
        await self._calls.close()

    def _go_on(self) -> None:
        while self._line and self._free:
            question = next(iter(self._line))
            page = self._line.pop(question)
            self._free -= 1
            self._ask(question.packed(), page, question)

    def _ask(self, commands: bytes, page: "asyncio.Future[list[Any]]", question: Question | None) -> None:
        """`question`: what to ask once more, behind the script, where Redis has lost it."""
        count = _ANSWERS if question is not None else 1 + _ANSWERS
        asked = self._calls.begin(commands, count)
        asked.add_done_callback(lambda done: self._answered(done, page, question))

    def _answered(
        self, done: "asyncio.Future[list[Any]]", page: "asyncio.Future[list[Any]]", question: Question | None
    ) -> None:
        down = done.exception()
        answers = [] if down is not None else done.result()[-_ANSWERS:]
        wrong = next((answer for answer in answers if isinstance(answer, ReplyError)), None)
        if question is not None and str(wrong).startswith("NOSCRIPT"):
            self._ask(_LOAD + question.packed(), page, None)
            return
        self._free += 1
        if down is not None:
            _refuse(page, down)
        elif wrong is not None:
            _refuse(page, StoreDown("redis", str(wrong)))
        else:
            page.set_result(answers)
        self._go_on()


def _refuse(page: "asyncio.Future[list[Any]]", error: BaseException) -> None:
    page.set_exception(error)
    page.exception()  # whoever still waits gets it; nobody may be left
