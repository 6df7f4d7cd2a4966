"""Users and readers of a run: they keep docs/protocol.md, on any API process, whatever is down.

Users converse: they send (some of it again with the same client id, fifty times at once now and then), cancel and
regenerate. Several readers follow each reply, break off anywhere, also in the middle of an event, and resume at another
API process with the last offset that they have; some come after the end, some with a cursor that was used before.
"""

import asyncio
import contextlib
import json
import random
import time
from typing import Any

import httpx

from tests.chaos.ledger import Asked, Fault, Ledger, Reading
from tests.chaos.scripts import Wishes
from tests.simulation.frames import Read, end_of, parsed

AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
PAUSE_S = 0.3
READ_TIMEOUT_S = 20.0
"""Longer than the pause between two heartbeats."""
ANSWER_TIMEOUT_S = 30.0
OPEN_MAX = 60
"""Readers at once."""
PATIENCE_S = 300.0


class Unanswered(AssertionError):
    """The service did not answer for `PATIENCE_S`."""


class Traffic:
    """All clients of an account. One event loop."""

    def __init__(self, addresses: list[str], api_key: str, rng: random.Random, wishes: Wishes) -> None:
        self.ledger = Ledger()
        self._rng = rng
        self._wishes = wishes
        self._addresses = addresses
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=5.0, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        )
        self._readers: set[asyncio.Task[None]] = set()
        self._count = 0

    async def close(self) -> None:
        """Let go of the connections."""
        for task in self._readers:
            task.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        await self._http.aclose()

    async def is_known(self, within_s: float) -> None:
        """Returns when every API process knows the account."""
        deadline = time.monotonic() + within_s
        for url in self._addresses:
            while (await self._http.get(f"{url}/v1/conversations")).status_code == httpx.codes.UNAUTHORIZED:
                if time.monotonic() > deadline:
                    raise Unanswered(f"{url} does not know the account")
                await asyncio.sleep(PAUSE_S)

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """An answer, from any API process, however long it takes within `PATIENCE_S`."""
        deadline = time.monotonic() + PATIENCE_S
        last: object = None
        while time.monotonic() < deadline:
            url = self._rng.choice(self._addresses) + path
            try:
                answer = await self._http.request(method, url, json=body)
                if answer.status_code not in AGAIN:
                    return answer
                last = answer.text
            except httpx.TransportError as error:
                last = error
            await asyncio.sleep(PAUSE_S)
        raise Unanswered(f"{method} {path}: {last!r}")

    async def pages(self, path: str) -> list[dict[str, Any]]:
        """All items of a listing."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = (await self.call("GET", f"{path}?limit=200{cursor}")).json()
            found += page["data"]
            if not page.get("next_cursor"):
                return found
            cursor = f"&cursor={page['next_cursor']}"

    async def whole(self, reply_id: str) -> Read:
        """The stream from its beginning to its end, by a reader that nothing disturbs."""
        reading = Reading(Read(reply_id, who="the last reader", frames=[]))
        deadline = time.monotonic() + PATIENCE_S
        while end_of(reading.read.frames) is None and not reading.read.told and time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                await self._connection(reading, None)
        return reading.read

    # --- users --------------------------------------------------------------------------------------------------

    async def converse(self, stop: asyncio.Event, pace_s: float) -> None:
        """A user, until it is to stop; it does not wait for its replies."""
        conversation_id = ""
        while not stop.is_set():
            if len(self._readers) < OPEN_MAX:
                fresh = not conversation_id or self._rng.random() < 0.2
                asked = await self.send("" if fresh else conversation_id)
                conversation_id = asked.conversation_id
                act = self._rng.random()
                if act < 0.2:
                    await asyncio.sleep(self._rng.random() * 2)
                    await self.cancel(asked)
                elif act < 0.3:
                    await self.regenerate(asked)
            await asyncio.sleep(self._rng.uniform(0.3, 1.7) * pace_s)

    async def send(self, conversation_id: str = "", script: dict[str, Any] | None = None) -> Asked:
        """A message, with its readers."""
        chosen, fault = self._wishes.draw(self._rng) if script is None else (script, "")
        asked = self._new(chosen["chunks"], fault)
        body: dict[str, Any] = {"client_message_id": asked.client_id, "content": json.dumps(chosen)}
        if conversation_id:
            body["conversation_id"] = conversation_id
        times = self._rng.choices((1, 2, 50), (60, 20, 1))[0]
        await asyncio.gather(*(self._ask(asked, "/v1/messages", body) for _ in range(times)))
        self.follow(asked.reply_ids[0], self._rng.choice((1, 2, 4)))
        return asked

    async def regenerate(self, old: Asked) -> None:
        """Another reply to the same message."""
        asked = self._new(old.words, old.fault)
        await self._ask(asked, f"/v1/messages/{old.reply_ids[0]}/regenerate", {"client_message_id": asked.client_id})
        self.follow(asked.reply_ids[0], 1)

    async def cancel(self, asked: Asked) -> None:
        """Ask for its end."""
        answer = await self.call("POST", f"/v1/messages/{asked.reply_ids[0]}/cancel")
        asked.cancelled = answer.status_code == 202

    def _new(self, words: int, fault: Fault) -> Asked:
        self._count += 1
        asked = Asked(f"ask {self._count}", words, fault)
        self.ledger.asked.append(asked)
        return asked

    async def _ask(self, asked: Asked, path: str, body: dict[str, Any]) -> None:
        answer = await self.call("POST", path, body)
        if answer.status_code not in (200, 202):
            raise AssertionError(f"{path} is answered with {answer.status_code}: {answer.text}")
        sent = answer.json()
        asked.reply_ids.append(sent["reply"]["id"])
        asked.conversation_id = sent["conversation_id"]
        if sent["message"] is not None and path == "/v1/messages":
            asked.message_id = sent["message"]["id"]

    # --- readers ------------------------------------------------------------------------------------------------

    def follow(self, reply_id: str, readers: int, read: Read | None = None) -> None:
        """Let readers come."""
        for _ in range(readers):
            reading = Reading(read or Read(reply_id, who=f"reader {len(self.ledger.readings)}", frames=[]))
            self.ledger.readings.append(reading)
            task = asyncio.get_running_loop().create_task(self._follow(reading))
            self._readers.add(task)
            task.add_done_callback(self._gone)

    async def all_have_read(self, within_s: float) -> bool:
        """Whether every reader has come to its end."""
        deadline = time.monotonic() + within_s
        while self._readers and time.monotonic() < deadline:
            await asyncio.wait(self._readers, timeout=1.0)
        return not self._readers

    def _gone(self, task: "asyncio.Task[None]") -> None:
        self._readers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.ledger.surprises.append(f"{type(error).__name__}: {error}")

    async def _follow(self, reading: Reading) -> None:
        read, rng = reading.read, self._rng
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.5, 2.0)))
        while not read.told and end_of(read.frames) is None:
            reading.connections += 1
            with contextlib.suppress(httpx.TransportError):
                await self._connection(reading, rng.choice((None, None, rng.randrange(1, 4_000))))
            if reading.after_end is not None:
                break
            if end_of(read.frames) is None:
                await asyncio.sleep(rng.random() * PAUSE_S)
        now_s = time.monotonic()
        if end_of(read.frames) is not None:
            reading.waited_s = now_s - self.ledger.ended_s.setdefault(read.reply_id, now_s)
            if rng.random() < 0.3:
                answer = await self.call("GET", f"{_events(read)}?after={read.cursor}")
                # Where Redis was away and the views were behind, the answer is a stream that closes with nothing in it.
                empty = answer.status_code == 200 and b"data:" not in answer.content
                reading.after_end = 204 if empty else answer.status_code
            if rng.random() < 0.2:
                after = rng.randrange(len(read.frames) + 1)
                cursor = parsed(read.frames[after - 1])[0] if after else read.after
                who = f"reader {len(self.ledger.readings)} with a used cursor"
                self.follow(read.reply_id, 1, Read(read.reply_id, who=who, after=cursor, frames=[]))
        reading.task_done = True

    async def _connection(self, reading: Reading, cut_after: int | None) -> None:
        """One connection; it breaks off after so many bytes, or when the service ends it."""
        read = reading.read
        url = self._rng.choice(self._addresses) + _events(read)
        timeout = httpx.Timeout(READ_TIMEOUT_S, connect=5.0, pool=None)
        headers = {"Last-Event-ID": str(read.cursor)}
        async with self._http.stream("GET", url, headers=headers, timeout=timeout) as answer:
            if answer.status_code == 204:
                reading.after_end = 204
            elif answer.status_code == 410:
                read.told = "gone"
            elif answer.status_code != 200:
                text = (await answer.aread()).decode()
                if answer.status_code not in AGAIN:
                    raise AssertionError(f"{url} is answered with {answer.status_code}: {text}")
                await asyncio.sleep(PAUSE_S)
            else:
                await self._take(reading, answer, cut_after)

    async def _take(self, reading: Reading, answer: httpx.Response, cut_after: int | None) -> None:
        read = reading.read
        buffer, got = b"", 0
        async for chunk in answer.aiter_raw():
            if cut_after is not None:
                chunk = chunk[: cut_after - got]  # noqa: PLW2901 - the rest does not arrive
            got += len(chunk)
            buffer += chunk
            *whole, buffer = buffer.split(b"\n\n")
            for frame in whole:
                lines = [line for line in frame.split(b"\n") if not line.startswith((b":", b"retry:"))]
                read.frames.append(b"\n".join(lines) + b"\n\n")
                reading.arrived_s.append(time.monotonic())
            if (cut_after is not None and got >= cut_after) or end_of(read.frames) is not None:
                return


def _events(read: Read) -> str:
    return f"/v1/messages/{read.reply_id}/events"
