"""TensorRT-LLM in this process, through its LLM API: the engine for machines with NVIDIA GPUs.

What is known of it and what follows:

1. No more requests are given to it than there are slots; the others wait here. A request that waits here can be
   withdrawn for certain, whereas `abort`, the weakest of its paths, only signals.
2. So an abort is followed to the end: the output is read on until it has finished, and only then is the slot free and
   `aclose` returns. An abort that never arrives keeps its slot taken; the worker has a deadline for that, after which
   the process is replaced.
3. Iterating an output gives the same object each time, and its text may repeat, skip, or split characters. Only
   `token_ids` are read, from our own position, and turned into text here (`engines.detokenizer`, `text`).
4. It removes a stop sequence's ids and may do so after they were seen; so it is asked to leave them, and the text is
   cut here. A stop sequence that it misses (its ids may be cut otherwise) ends the generation here, by an abort.
5. An error that is not a request's means that its executor is gone: the engine is dead, and the process is replaced.
6. It is loaded in the main thread, in which it may set up signals and MPI; the event loop stands still meanwhile, and
   nothing runs on it yet. Prompts are rendered in a thread of their own: a long one takes longer than a token.
7. Its iterations' statistics come from one queue, read by one loop, which begins anew whenever it ends. A version or
   backend that tells nothing after the first generation is not waited for.
"""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import structlog

from inference_workers.engine import (
    ContextTooLong,
    EngineDead,
    EngineError,
    EngineInfo,
    EngineStats,
    EngineUnavailable,
    GenerationRequest,
    Interrupted,
    check,
)
from inference_workers.engines.tensorrt_llm_api import load, waiting_order
from inference_workers.engines.tensorrt_llm_model import Model, refusal
from inference_workers.engines.tensorrt_llm_running import Generating, Running
from inference_workers.engines.tensorrt_llm_settings import TensorRtLlmSettings
from inference_workers.engines.tensorrt_llm_stats import Listener
from inference_workers.slots import Slots
from schemas.values import PromptMessage

logger = structlog.get_logger("inference_workers")

SHUTDOWN_S = 10.0
"""How long the library may take to stop; then the process ends without it."""

WARM_UP = GenerationRequest(
    id="warm-up", messages=(PromptMessage(role="user", content="Hello"),), max_tokens=8, temperature=0.0, seed=1
)


class TensorRtLlmEngine:
    """One model in one TensorRT-LLM in this process."""

    def __init__(self, name: str, settings: TensorRtLlmSettings, slots: int, context_tokens: int) -> None:
        """`name` is the model's public name."""
        self._settings = settings
        self._slots: Slots[Running] = Slots(min(slots, settings.tensorrt_max_batch_size or slots))
        self._context = min(context_tokens, settings.tensorrt_max_seq_len or context_tokens)
        self._name = name
        self._renderer = ThreadPoolExecutor(1, thread_name_prefix="prompts")
        self._model: Model | None = None
        self._dead: EngineDead | None = EngineDead("the engine has not been started")
        self._listener = Listener(self._broke)
        self._busy_since_s = 0.0
        self._kv_tokens = 0
        self._prompt_tokens = self._cached_tokens = self._output_tokens = 0

    async def start(self) -> None:
        library = load(usage_reports=self._settings.tensorrt_usage_reports)
        self._model = Model(library, self._settings, self._slots.capacity, self._context)
        self._dead = None
        self._listener.start(
            self._model.stats if self._settings.tensorrt_iteration_stats else None,
            self._model.kv_events if self._settings.tensorrt_kv_event_buffer else None,
        )
        try:
            async with asyncio.timeout(self._settings.tensorrt_warm_up_s):
                async for _ in self.generate(WARM_UP):
                    pass
        except TimeoutError:
            raise EngineDead("the first generation did not end; see TURNLOG_TENSORRT_WARM_UP_S") from None
        except EngineDead:
            raise
        except EngineError as error:
            raise EngineUnavailable(f"{self._settings.tensorrt_model!r} does not answer: {error}") from error
        await self._listener.first()
        self._kv_tokens = self._listener.told.kv_tokens or self._settings.tensorrt_kv_max_tokens
        self._prompt_tokens = self._cached_tokens = self._output_tokens = 0

    async def shutdown(self, drain_s: float) -> None:
        going = [running.over for running in self._slots.items() if running.task is not None]
        if going and self._dead is None:
            await asyncio.wait(going, timeout=drain_s)
        self._die(EngineDead("the engine was shut down"))
        model, self._model = self._model, None
        if model is not None:
            await _within(SHUTDOWN_S, model.shutdown)
        self._renderer.shutdown(wait=False, cancel_futures=True)

    def info(self) -> EngineInfo:
        return EngineInfo(
            engine="tensorrt_llm",
            model=self._name,
            slots=self._slots.capacity,
            context_tokens=self._context,
            kv_tokens=self._kv_tokens,
        )

    def stats(self) -> EngineStats:
        """Slots and totals are our own count, exact at any time; the cache and the step are the library's."""
        told, busy = self._listener.told, self._slots.active > 0
        now_s = asyncio.get_running_loop().time()
        since_s = max(told.at_s or 0.0, self._busy_since_s)
        estimate = sum(
            running.stream.input_tokens + len(running.stream.token_ids)
            for running in self._slots.items()
            if running.output is not None
        )
        return EngineStats(
            active=self._slots.active,
            queued=self._slots.queued,
            kv_tokens_used=0 if not busy else estimate if told.kv_tokens_used is None else told.kv_tokens_used,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            output_tokens=self._output_tokens,
            preemptions=told.preemptions,
            step_ms=told.step_ms,
            age_s=max(0.0, now_s - since_s) if busy and self._listener.tells else 0.0,
        )

    def describe(self) -> tuple[str, ...]:
        """One line each about the library, the model's limits and what the cache has done; valid after `start`."""
        if self._model is None:
            return ()
        told = "arrive" if self._listener.tells else "do not arrive"
        return (
            *self._model.library.describe(),
            waiting_order(self._model.library, self._settings),
            f"iteration statistics {told}; the KV cache holds {self._kv_tokens or 'an unknown number of'} tokens",
            *([f"KV events: {self._listener.blocks}"] if self._settings.tensorrt_kv_event_buffer else []),
        )

    def decode(self, ids: list[int]) -> str:
        """The full decode of generated ids."""
        return self._loaded().decode(ids)

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return self._loaded().encode(text)

    def _loaded(self) -> Model:
        if self._model is None:
            raise self._dead or EngineDead("the engine does not run")
        return self._model

    def generate(self, request: GenerationRequest) -> Generating:
        async def close() -> None:
            await self._close(running)

        try:
            if self._dead is not None:
                raise EngineDead(str(self._dead))
            check(request)
            running = Running(request, self._loaded().decode, close)
        except EngineError as error:
            refused = Generating(_nothing)
            refused.fail(error)
            return refused
        if not self._slots.active:
            self._busy_since_s = asyncio.get_running_loop().time()
        if self._slots.enter(running):
            self._begin(running)
        return running.stream

    async def _close(self, running: Running) -> None:
        if running.over.done():
            return
        if running.task is None:
            self._over(running)
            return
        self._abort(running)
        await asyncio.shield(running.over)

    def _abort(self, running: Running) -> None:
        try:
            running.abort()
        except (AssertionError, AttributeError, TypeError, RuntimeError, OSError) as error:
            self._broke(error)  # its executor is gone, and says so in one of these ways

    def _begin(self, running: Running) -> None:
        running.task = asyncio.ensure_future(self._run(running))
        running.task.add_done_callback(partial(self._ended, running))

    async def _run(self, running: Running) -> None:
        """One request from its prompt to its end."""
        model, request, stream = self._loaded(), running.request, running.stream
        loop = asyncio.get_running_loop()
        prompt, pinned = await loop.run_in_executor(self._renderer, model.render, request.messages)
        stream.input_tokens = len(prompt)
        room = self._context - len(prompt)
        if room < 1:
            raise ContextTooLong(f"{len(prompt)} prompt tokens, {self._context - 1} fit")
        if not self._settings.tensorrt_chunked_prefill and len(prompt) > self._settings.tensorrt_max_num_tokens:
            raise ContextTooLong(f"{len(prompt)} prompt tokens, TURNLOG_TENSORRT_MAX_NUM_TOKENS of them fit in a step")
        if running.cancelled:
            return
        running.output = model.submit(request, prompt, pinned, min(request.max_tokens, room))
        self._prompt_tokens += len(prompt)
        self._listener.busy.set()
        try:
            async for output in running.output:
                self._take(running, output)
        except model.library.request_error as error:
            raise _failed(str(error)) from error

    def _take(self, running: Running, output: Any) -> None:
        stream, cached = running.stream, running.stream.cached_tokens
        step = running.step(output)
        self._cached_tokens += stream.cached_tokens - cached
        self._output_tokens += step.tokens
        if output.finished:
            self._over(running)  # before the end is told: whoever reads it finds the slot free
        if step.tokens or step.finish is not None:
            stream.feed(step.text, step.tokens, step.finish)
        if not output.finished and step.finish is not None:
            self._abort(running)
        if output.finished and stream.open and not running.cancelled:
            stream.fail(Interrupted(f"TensorRT-LLM ended the generation: {step.reason}"))

    def _ended(self, running: Running, task: "asyncio.Task[None]") -> None:
        """The task of a request has ended: by itself, or by an error, its own or the engine's."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, EngineError):
            running.stream.fail(error)
        elif error is not None:
            self._broke(error)
        elif not running.cancelled:
            running.stream.fail(EngineError("TensorRT-LLM stopped without an end"))
        self._over(running)

    def _over(self, running: Running) -> None:
        """The slot is free, for the next one."""
        if running.over.done():
            return
        running.over.set_result(None)
        following = self._slots.leave(running)
        if following is not None and self._dead is None:
            self._begin(following)
        elif not self._slots.active:
            self._listener.busy.clear()

    def _die(self, error: EngineDead) -> None:
        if self._dead is None:
            self._dead = error
            logger.info("engine_ended", engine="tensorrt_llm", reason=str(error), blocks=str(self._listener.blocks))
        for running in self._slots.items():
            running.stream.fail(self._dead)
            self._over(running)
            if running.task is not None:
                running.task.cancel()
        self._listener.stop()

    def _broke(self, error: BaseException) -> None:
        self._die(EngineDead(f"TensorRT-LLM: {type(error).__name__}: {error}"))


def _failed(message: str) -> EngineError:
    refused = refusal(message)
    return refused if isinstance(refused, ContextTooLong) else EngineError(f"TensorRT-LLM: {message}")


async def _within(seconds: float, act: Any) -> None:
    """Run it in a thread that does not keep the process from ending; wait at most so long."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def over() -> None:
        if not done.done():
            done.set_result(None)

    def run() -> None:
        try:
            act()
        finally:
            if not loop.is_closed():
                loop.call_soon_threadsafe(over)

    threading.Thread(target=run, name="tensorrt-llm-shutdown", daemon=True).start()
    await asyncio.wait({done}, timeout=seconds)


async def _nothing() -> None:
    return
