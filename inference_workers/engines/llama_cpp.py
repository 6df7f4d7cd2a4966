"""llama.cpp in this process, through xllamacpp: the engine for machines without a GPU.

What was measured and what follows from it:

1. `handle_chat_completions` blocks its thread and releases the GIL: one thread for each slot, and never more calls
   than slots, because a call that waits inside the server cannot be cancelled.
2. The callback cancels by returning True. It is called at each token and, with `return_progress`, after each batch of
   the prompt: batches of 16 tokens keep a cancel under 250 ms there too, and cost nothing measurable on a CPU.
3. An exception inside the callback is swallowed, so the callback only hands chunks over.
4. Errors come as a returned object, as a chunk, or as a ValueError.
5. OpenMP threads that spin while they wait collapse when cores are shared: they wait passively, and few are used.
6. The server always listens on HTTP: on the loopback only, on a port of its choice, with a random key.
7. The template of the model brings a system prompt of its own when there is none: one of ours is always sent.

SmolLM2 has 135 million parameters: it follows the format of a chat and stops properly, but it answers badly.
The server's prefix cache is shared by all requests; `cache_salt` is not honoured.
"""

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from inference_workers.chunks import ChunkStream
from inference_workers.engine import (
    ContextTooLong,
    EngineDead,
    EngineError,
    EngineInfo,
    EngineOverloaded,
    EngineStats,
    GenerationRequest,
    InvalidRequest,
    check,
)
from inference_workers.engines.llama_server import LlamaSettings, load, unload
from inference_workers.slots import Slots


class Running:
    """One request in the server or in our queue."""

    __slots__ = ("cancelled", "done", "failure", "finish", "generated", "request", "stream", "submitted")

    def __init__(self, request: GenerationRequest, done: "asyncio.Future[None]") -> None:
        self.request = request
        self.done = done
        self.cancelled = False
        self.submitted = False
        self.generated = 0
        self.finish: str | None = None
        self.failure: EngineError | None = None
        self.stream: ChunkStream


class LlamaCppEngine:
    """One model in one llama.cpp server inside this process."""

    def __init__(self, settings: LlamaSettings) -> None:
        self._settings = settings
        self._slots: Slots[Running] = Slots(settings.slots)
        self._threads = ThreadPoolExecutor(settings.slots, thread_name_prefix="llama")
        self._server: Any = None
        self._loop: asyncio.AbstractEventLoop
        self._totals = EngineStats(active=0, queued=0, kv_tokens_used=0)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.to_thread(load, self._settings)

    async def shutdown(self, drain_s: float) -> None:
        going = [running.done for running in self._slots.items() if running.submitted]
        if going:
            await asyncio.wait(going, timeout=drain_s)
        for running in self._slots.items():
            running.stream.fail(EngineDead("the engine was shut down"))
            await running.stream.aclose()
        server, self._server = self._server, None
        await asyncio.to_thread(unload, [server])
        self._threads.shutdown(wait=False)

    def info(self) -> EngineInfo:
        settings = self._settings
        return EngineInfo(
            engine="llama_cpp",
            model=settings.model,
            slots=settings.slots,
            context_tokens=settings.context_tokens,
            kv_tokens=settings.slots * settings.context_tokens,
        )

    def stats(self) -> EngineStats:
        used = sum(
            running.stream.input_tokens + running.stream.output_tokens
            for running in self._slots.items()
            if running.submitted
        )
        return msgspec.structs.replace(
            self._totals, active=self._slots.active, queued=self._slots.queued, kv_tokens_used=used
        )

    def generate(self, request: GenerationRequest) -> ChunkStream:
        running = Running(request, asyncio.get_running_loop().create_future())

        async def close() -> None:
            running.cancelled = True
            if running.submitted:
                await asyncio.shield(running.done)
            else:
                self._slots.leave(running)

        running.stream = ChunkStream(close)
        try:
            if self._server is None:
                raise EngineDead("the engine does not run")
            check(request)
        except EngineError as error:
            running.stream.fail(error)
            return running.stream
        if self._slots.enter(running):
            self._submit(running)
        return running.stream

    def _submit(self, running: Running) -> None:
        running.submitted = True
        self._threads.submit(self._call, running, self._server)

    def _call(self, running: Running, server: Any) -> None:
        """In a thread of the pool: one request from its beginning to its end."""
        failure: EngineError | None = None

        def on_chunk(chunk: Any) -> bool:
            self._loop.call_soon_threadsafe(self._chunk, running, chunk)
            return running.cancelled

        try:
            returned = server.handle_chat_completions(_body(running.request, self._settings.system_prompt), on_chunk)
            if isinstance(returned, dict) and "error" in returned:
                failure = error_of(returned["error"])
        except ValueError as error:
            failure = InvalidRequest(str(error))
        except RuntimeError as error:
            failure = EngineDead(f"llama.cpp: {error}")
        self._loop.call_soon_threadsafe(self._over, running, failure)

    def _chunk(self, running: Running, chunk: Any) -> None:
        stream = running.stream
        if "error" in chunk:
            running.failure = error_of(chunk["error"])
            return
        progress = chunk.get("prompt_progress")
        if progress is not None:
            stream.input_tokens, stream.cached_tokens = progress["total"], progress["cache"]
        timings = chunk.get("timings")
        generated = 0 if timings is None else max(0, timings["predicted_n"] - running.generated)
        running.generated += generated
        usage = chunk.get("usage")
        if usage is not None:
            stream.input_tokens = usage["prompt_tokens"]
            stream.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            generated = usage["completion_tokens"] - running.generated
            running.generated += generated
        for choice in chunk.get("choices", ()):
            if choice.get("finish_reason"):
                running.finish = choice["finish_reason"]
            text = choice["delta"].get("content")
            if text:
                stream.feed(text, generated)
                generated = 0
        if generated > 0:
            stream.feed("", generated)

    def _over(self, running: Running, failure: EngineError | None) -> None:
        """The call has returned: the slot is free, and the end can be told."""
        stream = running.stream
        failure = failure or running.failure
        if failure is not None:
            stream.fail(failure)
        elif running.finish is not None:
            stream.feed("", 0, "length" if running.finish == "length" else "stop")
        elif not running.cancelled:
            stream.fail(EngineError("llama.cpp stopped without an end"))
        usage = stream.usage
        self._totals = msgspec.structs.replace(
            self._totals,
            prompt_tokens=self._totals.prompt_tokens + usage.input_tokens,
            cached_tokens=self._totals.cached_tokens + usage.cached_input_tokens,
            output_tokens=self._totals.output_tokens + usage.output_tokens,
        )
        following = self._slots.leave(running)
        if following is not None:
            self._submit(following)
        running.done.set_result(None)


def error_of(error: Any) -> EngineError:
    """The typed error of llama.cpp's error object (`code`, `type`, `message`)."""
    message = str(error.get("message", error)) if isinstance(error, dict) else str(error)
    kind = error.get("type") if isinstance(error, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    if kind == "exceed_context_size_error":
        return ContextTooLong(message)
    if code in (400, 413, 422) or kind == "invalid_request_error":
        return InvalidRequest(message)
    if code in (429, 503) or kind == "unavailable_error":
        return EngineOverloaded(message)
    return EngineError(message)


def _body(request: GenerationRequest, system_prompt: str) -> dict[str, Any]:
    messages = [{"role": message.role, "content": message.content} for message in request.messages]
    if messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system_prompt})
    body: dict[str, Any] = {
        "messages": messages,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "seed": secrets.randbits(31) if request.seed is None else request.seed % 2**31,
        "stop": list(request.stop),
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "timings_per_token": True,
        "cache_prompt": True,
    }
    if request.top_k is not None:
        body["top_k"] = request.top_k
    return body
