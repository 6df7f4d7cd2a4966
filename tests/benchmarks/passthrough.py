"""The peer: FastAPI in front of the same scripted engine in one process, with the same frames and nothing kept.

What it cannot do is the difference: no log, no resume, no second reader, no bill. Served by granian, as the product's
API is. Its `timings.first_token_ms` is the time of day of the first token, for the benchmarks' arithmetic.
"""

import contextlib
import time
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from inference_workers.engine import GenerationRequest
from inference_workers.engines.scripted import ScriptedEngine
from schemas.stream import Delta, Ended, Started, frame
from schemas.values import PromptMessage, Timings

MODEL = "smollm2-135m-instruct"

engine = ScriptedEngine(model=MODEL, slots=4096, context_tokens=8192)


@contextlib.asynccontextmanager
async def _running(_: FastAPI) -> AsyncIterator[None]:
    await engine.start()
    yield


app = FastAPI(lifespan=_running)


@app.post("/v1/messages")
async def send(request: Request) -> StreamingResponse:
    """The reply as its native frames."""
    body = await request.json()
    return StreamingResponse(_frames(body["content"]), media_type="text/event-stream")


async def _frames(content: str) -> AsyncIterator[bytes]:
    wanted = GenerationRequest(id="r", messages=(PromptMessage(role="user", content=content),), max_tokens=100_000)
    yield frame(1, Started(message_id="r", conversation_id="c", model=MODEL, attempt=1))
    offset = 1
    first_ms: int | None = None
    generation = engine.generate(wanted)
    async for chunk in generation:
        first_ms = first_ms or time.time_ns() // 1_000_000
        if chunk.text:
            offset += 1
            yield frame(offset, Delta(text=chunk.text))
    timings = Timings(queued_ms=0, first_token_ms=first_ms, total_ms=0)
    yield frame(offset + 1, Ended(status="completed", usage=generation.usage, timings=timings))
