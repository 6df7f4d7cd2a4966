"""The simulated engine: a modelled GPU server (`engines.simulation`) behind the engine interface.

It lives in real time, at any speed, or in virtual time. What a prompt can ask is in `engines.simulated_request`, the
servers that it can be in `engines.simulated_presets`. What a real engine's diffs get wrong, the reading end has to
put right: it keeps its own position (`ChunkStream.unheard`, which other engines read by too), so a repeated diff counts
once, and it assembles characters from bytes.
"""

import asyncio
from collections.abc import Callable

import msgspec

from inference_workers.chunks import ChunkStream
from inference_workers.engine import (
    ContextTooLong,
    EngineDead,
    EngineError,
    EngineInfo,
    EngineStats,
    GenerationRequest,
    InvalidRequest,
    check,
)
from inference_workers.engines.clock import Clock
from inference_workers.engines.scripted import kill_process
from inference_workers.engines.sequences import Sequence
from inference_workers.engines.simulated_request import Answer, answer, asked, prompt, sequence
from inference_workers.engines.simulation import Batch, SimulatedSettings
from inference_workers.text import TextAssembler


class Reading:
    """The reading end of one sequence."""

    __slots__ = ("answer", "assembler", "crash_at", "hang_at", "over", "sequence", "stream")

    def __init__(self, sequence: Sequence, given: Answer, stream: ChunkStream, stop: tuple[str, ...]) -> None:
        self.sequence = sequence
        self.answer = given
        self.stream = stream
        self.assembler = TextAssembler(stop) if stop or given.pieces else None
        self.over = asyncio.Event()
        self.hang_at: int | None = None
        self.crash_at: int | None = None


class SimulatedEngine:
    """A modelled server in this process.

    Args:
        crash: what a message's `crash_at` does.
    """

    def __init__(self, settings: SimulatedSettings, clock: Clock, *, crash: Callable[[], None] = kill_process) -> None:
        self._settings = settings
        self._clock = clock
        self._crash = crash
        self._batch = Batch(settings)
        self._readings: dict[str, Reading] = {}
        self._work = asyncio.Event()
        self._stepping: asyncio.Task[None] | None = None
        self._dead: EngineDead | None = EngineDead("the engine has not been started")
        self._stalled = False
        self._prompt_tokens = self._cached_tokens = self._output_tokens = 0
        self._step_s: float | None = None
        self._last: tuple[float, EngineStats] | None = None
        """The time and the content of the last statistics that this engine will have told."""

    async def start(self) -> None:
        await self._clock.sleep(self._settings.start_s)
        self._dead = None
        self._stepping = asyncio.ensure_future(self._steps())

    async def shutdown(self, drain_s: float) -> None:
        going = [asyncio.ensure_future(reading.over.wait()) for reading in self._readings.values()]
        if going and self._dead is None:
            _, late = await asyncio.wait(going, timeout=drain_s)
            for waiting in late:
                waiting.cancel()
        self._die(EngineDead("the engine was shut down"))
        if self._stepping is not None:
            self._stepping.cancel()

    def info(self) -> EngineInfo:
        settings = self._settings
        return EngineInfo(
            engine="simulated",
            model=settings.model,
            slots=settings.slots,
            context_tokens=settings.context_tokens,
            kv_tokens=settings.kv_tokens,
        )

    def stats(self) -> EngineStats:
        if self._last is not None:
            at_s, last = self._last
            return msgspec.structs.replace(last, age_s=self._clock.now_s() - at_s)
        return EngineStats(
            active=self._batch.active,
            queued=len(self._batch.waiting),
            kv_tokens_used=self._batch.kv_tokens_used,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            output_tokens=self._output_tokens,
            preemptions=self._batch.preemptions,
            step_ms=None if self._step_s is None else self._step_s * 1000,
        )

    def generate(self, request: GenerationRequest) -> ChunkStream:
        async def close() -> None:
            reading = self._readings.get(request.id)
            if reading is None:
                return
            if self._stalled or (self._settings.faults.ignore_abort and reading.sequence.running):
                await reading.over.wait()
            else:
                self._over(reading, None)

        stream = ChunkStream(close)
        try:
            reading = self._accepted(request, stream)
        except EngineError as error:
            stream.fail(error)
            return stream
        self._readings[request.id] = reading
        self._batch.add(reading.sequence)
        self._work.set()
        if reading.crash_at == 0:
            self._crash()
        return stream

    def _accepted(self, request: GenerationRequest, stream: ChunkStream) -> Reading:
        settings = self._settings
        if self._dead is not None:
            raise EngineDead(str(self._dead))
        check(request)
        if request.id in self._readings:
            raise InvalidRequest(f"id: {request.id} is in use")
        wish = asked(request)
        runs = prompt(request, wish, settings)
        stream.input_tokens = sum(run.size for run in runs)
        room = min(request.max_tokens, settings.sequence_tokens_max - stream.input_tokens)
        if room < 1:
            raise ContextTooLong(f"{stream.input_tokens} prompt tokens, {settings.sequence_tokens_max} fit")
        given = answer(request, wish, settings)
        reading = Reading(sequence(request, runs, given, room, settings), given, stream, request.stop)
        reading.hang_at = settings.faults.hang_at if wish.hang_at is None else wish.hang_at
        reading.crash_at = wish.crash_at
        reading.sequence.silent = reading.hang_at == 0
        return reading

    async def _steps(self) -> None:
        """The engine's loop. A step is due its duration after the one before, so that our own time does not add up."""
        clock, faults = self._clock, self._settings.faults
        due_s = clock.now_s()
        while self._dead is None:
            if faults.stall_at is not None and self._output_tokens >= faults.stall_at:
                self._stalled = True
                self._tell_no_more()
                return
            step = self._batch.step()
            if step is None:
                self._work.clear()
                await self._work.wait()
                due_s = clock.now_s()
                continue
            due_s = max(due_s + step.duration_s, clock.now_s())
            await clock.sleep(max(0.0, due_s - clock.now_s()))
            self._step_s = step.duration_s
            for given in step.produced:
                position = given.given - 1
                for _ in range(2 if faults.duplicate_diff else 1):
                    self._read(given.id, position)
            if faults.lose_stats_at is not None and self._output_tokens >= faults.lose_stats_at:
                self._tell_no_more()

    def _read(self, sequence_id: str, position: int) -> None:
        """The token at this position of a sequence has come."""
        reading = self._readings.get(sequence_id)
        if reading is None or not reading.stream.unheard(position + 1):
            return
        stream, given = reading.stream, position + 1
        self._output_tokens += 1
        stream.cached_tokens = reading.sequence.cached
        assembler = reading.assembler
        text, stopped = reading.answer.text(position) if assembler is None else "", False
        if assembler is not None:
            shown = assembler.add(reading.answer.data(position))
            text, stopped = shown.text, shown.stopped
        if stopped:
            stream.feed(text, 1, "stop")
            self._over(reading, None)
        elif given == reading.sequence.length and given not in (reading.hang_at, reading.crash_at):
            cut = len(reading.answer) > given
            rest = "" if assembler is None else assembler.finish(cut=cut).text
            stream.feed(text + rest, 1, "length" if cut else "stop")
            self._over(reading, None)
        else:
            stream.feed(text, 1)
            if given == reading.hang_at:
                reading.sequence.silent = True
        if given == reading.crash_at:
            self._crash()
        if given == self._settings.faults.crash_at:
            self._die(EngineDead(f"the simulated engine crashed after {given} tokens"))

    def _tell_no_more(self) -> None:
        if self._last is None:
            self._last = (self._clock.now_s(), self.stats())

    def _over(self, reading: Reading, error: EngineError | None) -> None:
        if error is not None:
            reading.stream.fail(error)
        if self._readings.pop(reading.sequence.id, None) is None:
            return
        self._prompt_tokens += reading.sequence.prompt_tokens
        self._cached_tokens += reading.sequence.cached
        self._batch.remove(reading.sequence.id)
        reading.over.set()
        self._work.set()

    def _die(self, error: EngineDead) -> None:
        self._dead = self._dead or error
        for reading in list(self._readings.values()):
            self._over(reading, error)
