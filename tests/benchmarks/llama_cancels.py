"""How long llama.cpp takes to give up a slot: of a prompt that is read, of one that waits behind it, and of tokens."""

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any

from inference_workers.engine import GenerationRequest
from inference_workers.engines.llama_cpp import LlamaCppEngine
from schemas.values import PromptMessage

ASKED = "Write a long story about the number {}, with many people and places in it, and do not stop early."
LONG = "Read this and say what it is about: " + "the old house stood by the sea and nobody knew who had built it; " * 40
NAMES = {
    "prompt": "while its prompt is read",
    "line": "while it waits behind another that is read",
    "decode": "while tokens come",
    "prompt+3": "while its prompt is read, beside 3 streams",
    "decode+3": "while tokens come, beside 3 streams",
}


async def cancels(engine: LlamaCppEngine, rounds: int) -> dict[str, list[float]]:
    """Seconds from a cancel to the free slot, by what the generation was at."""

    def begin(content: str) -> Any:
        made = f"{secrets.randbelow(10**9)} {content}"
        messages = (PromptMessage(role="user", content=made),)
        return engine.generate(GenerationRequest(id=made, messages=messages, max_tokens=900, cache_salt=made))

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - a count of the engine's, which nothing announces
                await asyncio.sleep(0.001)

    async def took(generation: Any) -> float:
        began_s = time.perf_counter()
        await generation.aclose()
        return time.perf_counter() - began_s

    found: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(rounds):
        for beside in (0, 3):
            others = [begin(ASKED.format(n)) for n in range(beside)]
            await until(lambda others=others: all(o.usage.output_tokens > 0 for o in others))  # type: ignore[misc]
            reading, decoding = begin(LONG), None
            await until(lambda reading=reading: reading.usage.input_tokens > 40)  # type: ignore[misc]
            if not beside:
                found["line"].append(await took(begin(LONG)))
            found["prompt+3" if beside else "prompt"].append(await took(reading))
            decoding = begin(ASKED.format("one"))
            await until(lambda decoding=decoding: decoding.usage.output_tokens > 3)  # type: ignore[misc]
            found["decode+3" if beside else "decode"].append(await took(decoding))
            for other in others:
                await other.aclose()
    return found
