"""Replays arrivals against a running product: each is a send of some account, and its reader notes what it sees.

What is refused for now (503, or an end as `high_demand`) is noted, and sent once more after the time that it was told.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from tests.benchmarks.traffic import Arrival

WORDS_PER_BLOCK = 85
WORD_BYTES = 6
"""A word and the space after it; a block of words is about `schemas.prefix.BLOCK_BYTES` long."""
GIVE_UP_S = 300.0


class Outcome(msgspec.Struct, kw_only=True):
    """What became of an arrival. Times are seconds from its first send."""

    tier: str
    at_s: float
    first_token_s: float | None = None
    """Of the send that was served."""
    last_token_s: float | None = None
    queued_s: float | None = None
    """From the acceptance until the engine had it."""
    status: str = ""
    """As the stream's end says; `lost`: there was none."""
    code: str = ""
    refusals: int = 0
    notices: list[str] = []
    attempts: int = 1
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def per_token_s(self) -> float | None:
        """Mean time of a token after the first."""
        if self.first_token_s is None or self.last_token_s is None or self.output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)


class Key(msgspec.Struct, frozen=True):
    """An account's key, and its tier."""

    tier: str
    key: str


def words(count: int, seed: int) -> str:
    """So many words of `WORD_BYTES`, the same for the same seed."""
    return " ".join(f"{(seed * 1_000_003 + number * 7_919) % 16**5:05x}" for number in range(count))


def content(arrival: Arrival, number: int, scale: float) -> str:
    """The message: its prompt's words, and how long the answer shall be, `scale` times the trace's.

    Equal prefix blocks of a trace are equal words; without any, every prompt is its own.
    """
    length = max(1, round(arrival.prompt_tokens * scale))
    blocks = [words(WORDS_PER_BLOCK, block + 1) for block in arrival.prefix[: length // WORDS_PER_BLOCK]]
    rest = length - len(blocks) * WORDS_PER_BLOCK
    text = " ".join([*blocks, words(rest, 10**6 + number)] if rest > 0 else blocks)
    return json.dumps({"text": text, "output_tokens": max(1, round(arrival.output_tokens * scale))})


async def replay(
    url: str, arrivals: Sequence[Arrival], keys: Sequence[Key], *, scale: float = 1.0, retries: int = 1
) -> list[Outcome]:
    """Send each arrival at its time, by the key of its place (in turn), and read it to its end.

    Args:
        url: of the API.
        arrivals: in order of time.
        keys: one for each arrival.
        scale: of the lengths.
        retries: how often a refused one is sent again.
    """
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(GIVE_UP_S)) as session:
        began = time.perf_counter()
        tasks = []
        for number, (arrival, key) in enumerate(zip(arrivals, keys, strict=True)):
            await asyncio.sleep(max(0.0, began + arrival.at_s - time.perf_counter()))
            body = {"content": content(arrival, number, scale), "client_message_id": f"{began}-{number}"}
            outcome = Outcome(tier=key.tier, at_s=arrival.at_s)
            tasks.append(asyncio.create_task(_carry(session, key.key, body, outcome, retries)))
        return list(await asyncio.gather(*tasks))


async def saturate(url: str, key: Key, arrivals: Sequence[Arrival], *, at_a_time: int, scale: float) -> float:
    """Requests a second when so many are always there: the capacity."""
    waiting = list(enumerate(arrivals))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(GIVE_UP_S)) as session:
        ended: list[float] = []

        async def one_after_the_other() -> None:
            while waiting:
                number, arrival = waiting.pop(0)
                body = {"content": content(arrival, number, scale)}
                await _carry(session, key.key, body, Outcome(tier=key.tier, at_s=0.0), 0)
                ended.append(time.perf_counter())

        await asyncio.gather(*(one_after_the_other() for _ in range(at_a_time)))
    ended.sort()
    # The beginning, until all slots are full, and the end, when no more come, are left out.
    middle = ended[len(ended) // 5 : max(len(ended) // 5 + 2, len(ended) - at_a_time)]
    return (len(middle) - 1) / (middle[-1] - middle[0])


async def _carry(
    session: aiohttp.ClientSession, key: str, body: Mapping[str, Any], outcome: Outcome, retries: int
) -> Outcome:
    for sent in range(retries + 1):
        begun = time.perf_counter()
        retry_after_s = await _send(
            session, key, {**body, **({} if sent == 0 else {"client_message_id": None})}, outcome
        )
        if retry_after_s is None or sent == retries:
            break
        outcome.refusals += 1
        await asyncio.sleep(max(0.0, begun + retry_after_s - time.perf_counter()))
    return outcome


async def _send(session: aiohttp.ClientSession, key: str, body: Mapping[str, Any], outcome: Outcome) -> float | None:
    """One send, to its end. How long to wait when it was refused for now; None otherwise."""
    begun = time.perf_counter()
    outcome.status, outcome.code = "lost", ""
    headers = {"Authorization": f"Bearer {key}", "Accept": "text/event-stream"}
    given = {name: value for name, value in body.items() if value is not None}
    async with session.post("/v1/messages", json=given, headers=headers) as answer:
        if answer.status != 200:
            problem = await answer.json(content_type=None)
            outcome.status, outcome.code = "refused", str(problem.get("code"))
            return float(answer.headers["Retry-After"]) if answer.status == 503 else None
        kind = ""
        async for line in answer.content:
            if line.startswith(b"event: "):
                kind = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                now_s = time.perf_counter() - begun
                if kind == "delta":
                    outcome.first_token_s = now_s if outcome.first_token_s is None else outcome.first_token_s
                    outcome.last_token_s = now_s
                elif kind in ("ended", "reset", "notice"):
                    retry_after_s = _noted(outcome, kind, json.loads(line[6:]))
                    if kind == "ended":
                        return retry_after_s
    return None


def _noted(outcome: Outcome, kind: str, data: Mapping[str, Any]) -> float | None:
    if kind == "notice":
        outcome.notices = [*outcome.notices, data["code"]]
    elif kind == "reset":
        outcome.attempts = data["attempt"]
        outcome.first_token_s = outcome.last_token_s = None
    else:
        usage, error = data["usage"], data.get("error") or {}
        outcome.status, outcome.code = data["status"], error.get("code", "")
        outcome.input_tokens, outcome.cached_tokens = usage["input_tokens"], usage["cached_input_tokens"]
        outcome.output_tokens = usage["output_tokens"]
        timings = data.get("timings")
        outcome.queued_s = timings["queued_ms"] / 1000 if timings else None
        return error.get("retry_after_s")
    return None
