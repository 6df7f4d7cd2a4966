"""The scripted engine: exact chunks at exact times, for tests and load (see `engines.script`)."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

from inference_workers.chunks import ChunkStream, refused
from inference_workers.engine import (
    ContextTooLong,
    EngineDead,
    EngineError,
    EngineInfo,
    EngineStats,
    Finish,
    GenerationRequest,
    check,
)
from inference_workers.engines.script import Plan, plan
from inference_workers.engines.wheel import Wheel
from inference_workers.slots import Slots
from inference_workers.text import TextAssembler

BURST_TOKENS = 64
"""Tokens of one stream in one step when it runs flat out."""


def kill_process() -> None:
    """End this process as a crash would: no cleanup, nothing flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


class Running:
    """One stream: its plan and how far it is."""

    __slots__ = ("assembler", "begin", "number", "over", "plan", "request", "stream")

    def __init__(self, request: GenerationRequest, script: Plan) -> None:
        self.request = request
        self.plan = script
        self.stream: ChunkStream
        self.begin = 0.0
        self.number = 0
        self.over = False
        bytewise = script.pieces is not None and bool(script.pieces) and isinstance(script.pieces[0], bytes)
        self.assembler = TextAssembler(request.stop) if bytewise or request.stop else None

    def due(self) -> float:
        """When the next chunk is due, in the loop's seconds."""
        script = self.plan.script
        return self.begin + (script.first_after_ms + self.number * script.every_ms) / 1000


class ScriptedEngine:
    """Obeys scripts. One timer serves all streams.

    Args:
        crash: what `crash_at` does.
    """

    def __init__(
        self, *, model: str, slots: int, context_tokens: int, crash: Callable[[], None] = kill_process
    ) -> None:
        self._info = EngineInfo(
            engine="scripted",
            model=model,
            slots=slots,
            context_tokens=context_tokens,
            kv_tokens=slots * context_tokens,
        )
        self._crash = crash
        self._slots: Slots[Running] = Slots(slots)
        self._wheel: Wheel[Running] = Wheel(self._fire)
        self._idle = asyncio.Event()
        self._dead: str | None = "the engine has not been started"
        self._silent = False
        self._down = asyncio.Event()
        self._prompt_tokens = 0
        self._output_tokens = 0

    async def start(self) -> None:
        self._dead = None

    def fall_silent(self) -> None:
        """From now on nothing comes of any generation, and no slot is given up. May be called by a signal's handler."""
        self._silent = True

    async def shutdown(self, drain_s: float) -> None:
        if self._slots.active:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), drain_s)
        self._dead = "the engine was shut down"
        for running in self._slots.items():
            self._over(running, EngineDead("the engine was shut down"))
        self._wheel.close()
        self._down.set()

    def info(self) -> EngineInfo:
        return self._info

    def stats(self) -> EngineStats:
        return EngineStats(
            active=self._slots.active,
            queued=self._slots.queued,
            kv_tokens_used=0,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
        )

    def generate(self, request: GenerationRequest) -> ChunkStream:
        try:
            running = self._accepted(request)
        except EngineError as error:
            return refused(error)

        async def close() -> None:
            if self._silent and not running.over:
                await self._down.wait()
            self._over(running, None)

        prompt_tokens = count_words(request)
        running.stream = ChunkStream(close, input_tokens=prompt_tokens)
        self._prompt_tokens += prompt_tokens
        self._idle.clear()
        if self._slots.enter(running):
            self._begin(running)
        return running.stream

    def _accepted(self, request: GenerationRequest) -> Running:
        if self._dead is not None:
            raise EngineDead(self._dead)
        check(request)
        if count_words(request) >= self._info.context_tokens:
            raise ContextTooLong(f"the prompt does not fit {self._info.context_tokens} tokens")
        return Running(request, plan(request.messages))

    def _begin(self, running: Running) -> None:
        running.begin = asyncio.get_running_loop().time()
        self._wheel.add(running, running.due())

    def _fire(self, running: Running, now: float) -> float | None:
        for _ in range(BURST_TOKENS):
            if running.over or not self._advance(running):
                return None
            due = running.due()
            if due > now:
                return due
        return now

    def _advance(self, running: Running) -> bool:
        """One chunk or one fault; False when no more will come."""
        if self._silent:
            return False
        script = running.plan.script
        done = running.number
        if done == script.fail_at:
            self._over(running, EngineError(f"the script fails after {done} chunks"))
            return False
        if done == script.hang_at:
            return False
        if done == script.crash_at:
            self._crash()
        if done >= running.plan.chunks:
            self._finish(running, "", 0, "stop", cut=False)
            return False
        running.number = done + 1
        piece = running.plan.piece(running.number)
        last = self._last(running)
        text, stopped = _shown(running.assembler, piece)
        if stopped:
            last = "stop"
        if last is None:
            self._output_tokens += 1
            running.stream.feed(text, 1)
            return True
        self._finish(running, text, 1, last, cut=last == "length")
        return False

    def _last(self, running: Running) -> Finish | None:
        script = running.plan.script
        if running.number in (script.fail_at, script.hang_at, script.crash_at):
            return "length" if running.number >= running.request.max_tokens else None
        if running.number >= running.plan.chunks:
            return "stop"
        return "length" if running.number >= running.request.max_tokens else None

    def _finish(self, running: Running, text: str, tokens: int, finish: Finish, *, cut: bool) -> None:
        if running.assembler is not None:
            text += running.assembler.finish(cut=cut).text
        self._output_tokens += tokens
        running.stream.feed(text, tokens, finish)
        self._over(running, None)

    def _over(self, running: Running, error: EngineError | None) -> None:
        if error is not None:
            running.stream.fail(error)
        if running.over:
            return
        running.over = True
        following = self._slots.leave(running)
        if following is not None:
            self._begin(following)
        elif not self._slots.active:
            self._idle.set()


def count_words(request: GenerationRequest) -> int:
    """Prompt tokens as this engine counts them: words, at least one."""
    return max(1, sum(len(message.content.split()) for message in request.messages))


def _shown(assembler: TextAssembler | None, piece: str | bytes) -> tuple[str, bool]:
    if assembler is None:
        return (piece if isinstance(piece, str) else piece.decode()), False
    shown = assembler.add(piece.encode() if isinstance(piece, str) else piece)
    return shown.text, shown.stopped
