"""A real HTTP server with the OpenAI API on the loopback, which does what a test tells it to do wrong.

It writes HTTP itself, so that it can break off inside of an event, be silent, or send each byte on its own. What a
request is answered with is a `Behaviour`: those given to `next` in order, and then `self.usual`.
"""

import asyncio
import contextlib
import json
import random
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self

from pydantic import SecretStr

from inference_workers.engines.chat_completions import Dialect
from inference_workers.engines.openai_compatible import OpenAiCompatibleEngine, UpstreamSettings
from inference_workers.engines.openai_provider import Patience, Provider
from inference_workers.engines.providers import Limits

KEY = "sk-fake-0123456789abcdef"
WORDS = ("once ", "there ", "was ", "naïve ", "a ", "fox ", "日本 ", "and ", "🦊 ", "the ", "end ", "of ", "it. ")
WITHIN_S = 10.0

REASONS = {200: "OK", 429: "Too Many Requests"}


class Exchange:
    """One request and the way back."""

    def __init__(self, head: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.method, self.path = head.split(" ")[:2]
        self.headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        self.body: dict[str, Any] = json.loads(body) if body else {}
        self.gone = asyncio.ensure_future(reader.read(1))
        """Done when the client has closed the connection (or sends what it should not)."""
        self._writer = writer

    async def pause(self, duration_s: float | None) -> bool:
        """Wait, None: for ever; False when the client has gone meanwhile."""
        await asyncio.wait({self.gone}, timeout=duration_s)
        return not self.gone.done()

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def head(self, status: int = 200, kind: str = "text/event-stream", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Whatever')}", f"content-type: {kind}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.raw("\r\n".join([*lines, "transfer-encoding: chunked", "", ""]).encode())

    async def piece(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    def cut(self) -> None:
        """Break the connection off."""
        self._writer.transport.abort()


Behaviour = Callable[[Exchange], Awaitable[None]]


class FakeOpenAi:
    """The server. Bound when it is made, so that its address is known; listens from `start` on."""

    def __init__(self, *, context_tokens: int = 512, pace_s: float = 0.0) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        self.context_tokens = context_tokens
        self.pace_s = pace_s
        self.requests: list[Exchange] = []
        self.active = 0
        self.usual: Behaviour = self.answer
        self.health: Behaviour = models
        self._next: deque[Behaviour] = deque()
        self._server: asyncio.Server | None = None
        self._changed = asyncio.Condition()
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, sock=self._socket)

    async def close(self) -> None:
        if self._server is None:
            self._socket.close()
        else:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def next(self, *behaviours: Behaviour) -> None:
        """The next requests are answered like this."""
        self._next.extend(behaviours)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds; it is looked at whenever a request begins or ends."""
        async with asyncio.timeout(WITHIN_S), self._changed:
            await self._changed.wait_for(condition)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            begun: bytes | None = b""
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while begun is not None:
                    begun = await self._exchange(begun, reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _exchange(self, begun: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """One request, whose first bytes have been read; what has been read of the next one, None at the end."""
        head = (begun + await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0)
        exchange = Exchange(head, await reader.readexactly(length), reader, writer)
        if exchange.method == "GET":
            await self.health(exchange)
        else:
            self.requests.append(exchange)
            await self._count(+1)
            try:
                await (self._next.popleft() if self._next else self.usual)(exchange)
            finally:
                await self._count(-1)
        exchange.gone.cancel()
        await asyncio.wait({exchange.gone})
        if exchange.gone.cancelled():
            return None if writer.is_closing() else b""
        return exchange.gone.result() or None

    async def _count(self, change: int) -> None:
        self.active += change
        async with self._changed:
            self._changed.notify_all()

    async def answer(self, exchange: Exchange) -> None:
        """As a good server: text that follows from seed and prompt, its limits, stop sequences and usage."""
        asked = exchange.body
        prompt = sum(len(message["content"].split()) for message in asked["messages"])
        if prompt >= self.context_tokens:
            await too_long(self.context_tokens)(exchange)
            return
        limit = asked.get("max_tokens", asked.get("max_completion_tokens"))
        pieces, finish = speak(asked, limit)
        await exchange.head()
        await exchange.piece(event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}))
        for piece in pieces:
            if not await exchange.pause(self.pace_s):
                return
            await exchange.piece(delta(piece))
        await exchange.piece(ended(finish))
        if asked.get("stream_options", {}).get("include_usage"):
            await exchange.piece(usage(prompt, len(pieces)))
        await exchange.piece(DONE)
        await exchange.end()


def speak(asked: dict[str, Any], limit: int) -> tuple[list[str], str]:
    """A model's answer: its tokens, and why it ended."""
    said = random.Random(json.dumps([asked["messages"], asked.get("seed")]))
    pieces = [said.choice(WORDS) for _ in range(limit)]
    text = "".join(pieces)
    ends = [text.find(stop) for stop in asked.get("stop", ()) if stop in text]
    if not ends:
        return pieces, "length"
    kept = text[: min(ends)]
    return [kept[at : at + 4] for at in range(0, len(kept), 4)], "stop"


DONE = b"data: [DONE]\n\n"


def event(told: object) -> bytes:
    return f"data: {json.dumps(told, ensure_ascii=False)}\n\n".encode()


def chunk(delta: dict[str, Any], finish: str | None = None, **members: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"object": "chat.completion.chunk", "choices": [choice], "usage": None} | members)


def delta(text: str) -> bytes:
    return chunk({"content": text})


def ended(finish: str) -> bytes:
    return chunk({}, finish)


def usage(prompt: int, output: int, cached: int = 0) -> bytes:
    details = {"cached_tokens": cached}
    told = {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details}
    return event({"choices": [], "usage": told})


WHOLE = delta("héllo ") + delta("wörld 🦊") + ended("stop") + usage(7, 5, 3) + DONE
"""A good answer."""


def stream(*pieces: bytes, then: str = "end", kind: str = "text/event-stream") -> Behaviour:
    """These bytes, each piece a write; then `end` the answer, `cut` the connection, or be silent (`hang`)."""

    async def behave(exchange: Exchange) -> None:
        await exchange.head(kind=kind)
        for piece in pieces:
            await exchange.piece(piece)
        if then == "cut":
            exchange.cut()
        elif then == "hang":
            await exchange.pause(None)
        else:
            await exchange.end()

    return behave


def by_the_byte(data: bytes) -> Iterable[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


def status(code: int, told: object = None, **headers: str) -> Behaviour:
    """An error."""

    async def behave(exchange: Exchange) -> None:
        await exchange.head(code, "application/json", **headers)
        await exchange.piece(json.dumps(told if told is not None else {"error": {"message": f"it is {code}"}}).encode())
        await exchange.end()

    return behave


def too_long(context_tokens: int) -> Behaviour:
    words = f"This model's maximum context length is {context_tokens} tokens."
    return status(
        400, {"error": {"message": words, "type": "invalid_request_error", "code": "context_length_exceeded"}}
    )


async def silent(exchange: Exchange) -> None:
    """No headers, ever."""
    await exchange.pause(None)


async def hang_up(exchange: Exchange) -> None:
    """The connection breaks before the headers."""
    exchange.cut()


async def models(exchange: Exchange) -> None:
    await status(200, {"object": "list", "data": []})(exchange)


def refusing_url() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


QUICK = Limits(backoff_base_s=0.001, backoff_max_s=0.002, fallback_after_s=0.01, wait_max_s=0.5, breaker_failures=50)
"""Retries without noticeable waits, and a breaker that keeps out of it."""


def provider(base_url: str, name: str = "fake", *, health_path: str = "/models", **dialect: Any) -> Provider:
    return Provider(
        name=name,
        base_url=base_url,
        key=SecretStr(KEY),
        health_path=health_path,
        dialect=Dialect(**{"model": "upstream-model"} | dialect),
    )


def engine_on(
    *providers: Provider, slots: int = 2, context_tokens: int = 512, limits: Limits = QUICK, **patience: float
) -> OpenAiCompatibleEngine:
    settings = UpstreamSettings(
        model="fake-model",
        slots=slots,
        context_tokens=context_tokens,
        providers=providers,
        limits=limits,
        patience=Patience(**patience),
    )
    return OpenAiCompatibleEngine(settings, random.Random(1).random)


class EngineOnFake(OpenAiCompatibleEngine):
    """The engine with a server of its own that starts and stops with it."""

    def __init__(self, slots: int, context_tokens: int) -> None:
        self._fake = FakeOpenAi(context_tokens=context_tokens, pace_s=0.005)
        super().__init__(
            UpstreamSettings(
                model="fake-model",
                slots=slots,
                context_tokens=context_tokens,
                providers=(provider(self._fake.base_url),),
            )
        )

    async def start(self) -> None:
        await self._fake.start()
        await super().start()

    async def shutdown(self, drain_s: float) -> None:
        await super().shutdown(drain_s)
        await self._fake.close()
