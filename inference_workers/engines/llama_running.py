"""One request of the engine `llama_cpp`: what was asked, where it is, and what came of it so far."""

import asyncio
import sys

import msgspec

from inference_workers.chunks import ChunkStream
from inference_workers.engine import EngineError, GenerationRequest
from inference_workers.engines import llama_wire
from inference_workers.engines.llama_slots import Choice, Slot
from inference_workers.engines.llama_wire import Told

SAME_STEP_MS = 0.2
"""Tokens that the server reports this close to each other came from one of its iterations."""


class Running:
    """In the queue, in the line of those that have a place and wait to be read, or in the server (`slot`).

    Made in the event loop, and used there; the thread of the call reads `cancelled` and `body`.
    """

    __slots__ = (
        "_finish",
        "_generated",
        "_messages",
        "_step_from_ms",
        "_system_prompt",
        "_texts",
        "cancelled",
        "done",
        "failure",
        "request",
        "slot",
        "step_ms",
        "stream",
        "unread_tokens",
    )

    def __init__(self, request: GenerationRequest, system_prompt: str) -> None:
        self.request = request
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cancelled = False
        self.slot: Slot | None = None
        self.stream: ChunkStream
        self.failure: EngineError | None = None
        self.step_ms: float | None = None
        """The server's last iteration, as far as this request saw it."""
        self.unread_tokens = sys.maxsize
        self._system_prompt = system_prompt
        self._messages: list[dict[str, str]] | None = None
        self._texts: list[str] = []
        self._generated = 0
        self._step_from_ms = 0.0
        self._finish: str | None = None

    @property
    def began(self) -> bool:
        """Whether the server was seen to read the prompt."""
        return self.stream.input_tokens > 0

    def text(self) -> str:
        """Prompt and output as one text, for the choice of a slot."""
        return llama_wire.prompt_text(self._conversation()) + "".join(self._texts)

    def body(self, choice: Choice) -> bytes:
        """What the server is sent. Raises `UnicodeEncodeError` for text that is none."""
        return llama_wire.body(self.request, self._conversation(), choice)

    def take(self, data: bytes) -> None:
        """The next chunk. After one that says that it failed, nothing counts."""
        if self.failure is not None:
            return
        try:
            told = llama_wire.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.failure = EngineError(f"llama.cpp sent what is not a chunk: {error}")
            self.cancelled = True
            return
        if told.error is not None:
            self.failure = llama_wire.error_of(told.error)
            return
        generated = self._count(told)
        for choice in told.choices:
            self._finish = choice.finish_reason or self._finish
            text = choice.delta.content
            if text:
                self._texts.append(text)
                self.stream.feed(text, generated)
                generated = 0
        if generated > 0:
            self.stream.feed("", generated)

    def end(self, failure: EngineError | None) -> None:
        """The call has returned; `failure` where it raised something."""
        failure = failure or self.failure
        if failure is not None:
            self.stream.fail(failure)
        elif self._finish is not None:
            self.stream.feed("", 0, "length" if self._finish == "length" else "stop")
        elif not self.cancelled:
            self.stream.fail(EngineError("llama.cpp stopped without an end"))

    def _count(self, told: Told) -> int:
        """Note the tokens read and the time taken; how many more were generated."""
        stream, progress, timings, usage = self.stream, told.prompt_progress, told.timings, told.usage
        generated = self._generated
        if progress is not None:
            stream.input_tokens, stream.cached_tokens = progress.processed, progress.cache
            self.unread_tokens = progress.total - progress.processed
            self._note_step(progress.time_ms)
        elif timings is not None and timings.predicted_n > 0:
            self.unread_tokens = 0
            self._note_step(timings.predicted_ms)
            generated = max(generated, timings.predicted_n)
        if usage is not None:
            stream.input_tokens = usage.prompt_tokens
            stream.cached_tokens = usage.prompt_tokens_details.cached_tokens
            generated = max(generated, usage.completion_tokens)
        new, self._generated = generated - self._generated, generated
        return new

    def _note_step(self, at_ms: float) -> None:
        """The server's own times: of the prompt from 0, then of the output from 0."""
        took_ms, self._step_from_ms = at_ms - self._step_from_ms, at_ms
        if took_ms > SAME_STEP_MS:
            self.step_ms = took_ms

    def _conversation(self) -> list[dict[str, str]]:
        if self._messages is None:
            self._messages = llama_wire.conversation(self.request, self._system_prompt)
        return self._messages
