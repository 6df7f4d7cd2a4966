"""One provider over HTTP: sends a request, hands over what its stream says, and tells precisely why it does not."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx
import msgspec

from inference_workers.engine import GenerationRequest
from inference_workers.engines.chat_completions import ErrorInside, Part, body, part_of
from inference_workers.engines.event_stream import EventReader, TooLarge
from inference_workers.engines.failures import BODY_BYTES_MAX, Failed, of_object, of_response, of_words
from inference_workers.engines.openai_answer import TooMuchText
from inference_workers.engines.openai_provider import Patience, Provider
from inference_workers.engines.providers import Kind
from inference_workers.engines.upstream_json import Malformed

DONE = b"[DONE]"

SPARE_CONNECTIONS = 4
"""Beyond the slots: for those that are still being closed."""

KEEP_S = 4.0
"""How long a connection is kept unused: less than uvicorn's 5 s, so that not the server closes it, under a request."""

TAIL_S = 0.05
"""How long the end of a stream may take after its last event, so that its connection can be used again."""

USAGE_S = 5.0
"""How long the usage may take after the last token."""

LOOK_PATIENCE = 2
"""A look at a provider takes no more than so many times the longest wait for a connection."""

BROKEN = (httpx.RequestError, httpx.InvalidURL, httpx.StreamError)
"""What httpx raises for what a server sends, a redirect to what is no address among them."""


class Upstream:
    """The connections to one provider: as many as there are slots. To be made in the event loop that uses it."""

    def __init__(self, provider: Provider, patience: Patience, slots: int) -> None:
        self.provider = provider
        self._patience = patience
        headers = {"accept": "text/event-stream", "accept-encoding": "identity", "user-agent": "turnlog"}
        key = provider.key.get_secret_value()
        if key:
            headers["authorization"] = f"Bearer {key}"
        self._client = httpx.AsyncClient(
            headers=headers,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # none: nothing may tie accounts, or pile up
            timeout=httpx.Timeout(None, connect=patience.connect_s, pool=patience.connect_s),
            limits=httpx.Limits(
                max_connections=slots + SPARE_CONNECTIONS, max_keepalive_connections=slots, keepalive_expiry=KEEP_S
            ),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def look(self) -> str | None:
        """Whether it answers: None, or why not."""
        provider = self.provider
        path = provider.health_path
        root = str(httpx.URL(provider.base_url).copy_with(path="/")).rstrip("/")
        url = f"{root}/{path.lstrip('/')}" if path.startswith("//") else f"{provider.base_url}/{path.lstrip('/')}"
        try:
            async with asyncio.timeout(LOOK_PATIENCE * self._patience.connect_s):
                return await self._looked(url)
        except TimeoutError:
            words = "no answer in time"
        except BROKEN as error:
            words = _words(error)
        return f"{of_words(provider.source, 'broken', words).text} ({url})"

    async def _looked(self, url: str) -> str | None:
        """Of a good answer nothing is read but its status, of an error no more than `BODY_BYTES_MAX`."""
        wait = httpx.Timeout(self._patience.connect_s)
        async with self._client.stream("GET", url, headers={"accept": "*/*"}, timeout=wait) as answer:
            if answer.status_code < 400:
                return None
            told = await _beginning(answer)
            failure = of_response(self.provider.source, answer.status_code, answer.headers, told, time.time())
            return f"{failure.text} ({url})"

    async def ask(self, request: GenerationRequest, began: Callable[[], None], take: Callable[[Part], bool]) -> None:
        """Send the request, hand over the parts of the answer; returns at the end of the stream, or when `take` has
        had enough. Cancelled or had enough, the connection is closed, which is what tells the upstream to stop.

        Args:
            began: the provider has accepted the request.
            take: takes a part; True: no more is wanted. May raise `TooMuchText`.

        Raises:
            Failed: with what happened.
        """
        waiting = _Waiting(asyncio.get_running_loop().time(), self._patience)
        content = msgspec.json.encode(body(request, self.provider.dialect, self.provider.key.get_secret_value()))
        try:
            async with asyncio.timeout_at(waiting.until_s) as timer:
                async with self._opened(content) as response:
                    await self._accepted(response)
                    began()
                    timer.reschedule(waiting.for_first_token())
                    await self._read(response, take, timer, waiting)
        except TimeoutError as error:
            raise self._failed("broken", f"no {waiting.what} within {waiting.length_s:g} s") from error
        except httpx.PoolTimeout as error:
            raise self._failed("busy", "all connections to it are in use") from error
        except BROKEN as error:
            raise self._failed("broken", _words(error)) from error

    @contextlib.asynccontextmanager
    async def _opened(self, content: bytes) -> AsyncIterator[httpx.Response]:
        """The answer to the request, from its headers on.

        A server may close a kept connection at the moment at which it is used again. That says nothing of the server:
        the request goes out again at once, at last on a connection of its own.
        """
        while True:
            fresh = False

            async def trace(name: str, _: object) -> None:
                nonlocal fresh
                fresh = fresh or name.startswith("connection.connect")

            sent = self._client.build_request(
                "POST",
                f"{self.provider.base_url}/chat/completions",
                content=content,
                headers={"content-type": "application/json"},
                extensions={"trace": trace},
            )
            try:
                response = await self._client.send(sent, stream=True)
                break
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                if fresh:
                    raise
        try:
            yield response
        finally:
            await response.aclose()

    async def _accepted(self, response: httpx.Response) -> None:
        kind = response.headers.get("content-type", "")
        if response.status_code == 200 and kind.partition(";")[0].strip().lower() == "text/event-stream":
            if _encoded(response):
                raise self._failed("broken", "answered in an encoding that was not asked for")
            return
        told = await _beginning(response)
        if response.status_code != 200:
            raise Failed(of_response(self.provider.source, response.status_code, response.headers, told, time.time()))
        try:
            part_of(b"", told)
        except ErrorInside as error:
            raise Failed(of_object(self.provider.source, error.told)) from error
        except Malformed:
            pass
        raise self._failed("broken", f"answered with {kind or 'no content type'} where an event stream was asked for")

    async def _read(
        self, response: httpx.Response, take: Callable[[Part], bool], timer: asyncio.Timeout, waiting: "_Waiting"
    ) -> None:
        reader = EventReader()
        pieces = response.aiter_raw()
        async for piece in pieces:
            for kind, data in self._events(reader, piece):
                if data.strip() == DONE:
                    timer.reschedule(waiting.for_the_tail())
                    await _exhaust(pieces)
                    return
                part = self._part(kind, data)
                if self._enough(take, part):
                    return
                if part.finish is not None:
                    timer.reschedule(waiting.for_usage())
                elif part.text or part.thought:
                    timer.reschedule(waiting.for_a_token())

    def _events(self, reader: EventReader, piece: bytes) -> list[tuple[bytes, bytes]]:
        try:
            return reader.feed(piece)
        except TooLarge as error:
            raise self._failed("broken", str(error)) from error

    def _part(self, kind: bytes, data: bytes) -> Part:
        try:
            return part_of(kind, data)
        except Malformed as error:
            raise self._failed("broken", f"a chunk that is no chunk: {error}") from error
        except ErrorInside as error:
            raise Failed(of_object(self.provider.source, error.told)) from error

    def _enough(self, take: Callable[[Part], bool], part: Part) -> bool:
        try:
            return take(part)
        except TooMuchText as error:
            raise self._failed("broken", str(error)) from error

    def _failed(self, kind: Kind, words: str) -> Failed:
        return Failed(of_words(self.provider.source, kind, words))


class _Waiting:
    """What is waited for now, and until when in the loop's time."""

    def __init__(self, sent_s: float, patience: Patience) -> None:
        self._sent_s = sent_s
        self._patience = patience
        self.what = "answer"
        self.length_s = patience.headers_s
        self.until_s = sent_s + self.length_s

    def for_first_token(self) -> float:
        return self._set("first token", self._patience.first_token_s, self._sent_s)

    def for_a_token(self) -> float:
        return self._set("further token", self._patience.token_s)

    def for_usage(self) -> float:
        return self._set("end of the stream", min(USAGE_S, self._patience.token_s))

    def for_the_tail(self) -> float:
        return self._set("end of the answer", TAIL_S)

    def _set(self, what: str, length_s: float, from_s: float | None = None) -> float:
        self.what, self.length_s = what, length_s
        return (asyncio.get_running_loop().time() if from_s is None else from_s) + length_s


async def _beginning(response: httpx.Response) -> bytes:
    """Of a body what is read, at most `BODY_BYTES_MAX`; nothing of one that would have to be unpacked."""
    told = b""
    if _encoded(response):
        return told
    async for piece in response.aiter_raw():
        told += piece
        if len(told) >= BODY_BYTES_MAX:
            break
    return told[:BODY_BYTES_MAX]


def _encoded(response: httpx.Response) -> bool:
    """Whether the body is packed: what it may grow to nobody knows, so it is not unpacked."""
    return response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity")


async def _exhaust(pieces: AsyncIterator[bytes]) -> None:
    async for _ in pieces:
        pass


def _words(error: Exception) -> str:
    match error:
        case httpx.ConnectTimeout():
            return "no connection in time"
        case httpx.ConnectError():
            return f"no connection: {error}" if str(error) else "no connection"
        case _:
            return f"the connection broke ({type(error).__name__}{f': {error}' if str(error) else ''})"
