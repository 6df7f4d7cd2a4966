"""The simulated engine: a modelled GPU server (`engines.simulation`) behind the engine interface.

It lives in real time, at any speed, or in virtual time. What a real engine's diffs get wrong, the reading end has to
put right: it keeps its own position, so a repeated diff counts once, and assembles characters from bytes.
"""

import asyncio
import random
import zlib

from inference_workers.chunks import ChunkStream
from inference_workers.engine import (
    ContextTooLong,
    EngineDead,
    EngineError,
    EngineInfo,
    EngineStats,
    GenerationRequest,
    check,
)
from inference_workers.engines.clock import Clock
from inference_workers.engines.simulation import Batch, Produced, Sequence, SimulatedSettings
from inference_workers.text import TextAssembler

WORDS = ("the", "log", "is", "an", "ordered", "record", "über", "naïve", "数据", "流", "🎉", "of", "what", "happened")

SPLIT_BYTES = 3
"""Bytes of a token when characters are split: cuts those of two, three and four bytes at each place."""


class Reading:
    """The reading end of one sequence."""

    __slots__ = ("assembler", "over", "sequence", "stream")

    def __init__(self, sequence: Sequence, assembler: TextAssembler) -> None:
        self.sequence = sequence
        self.assembler = assembler
        self.over = asyncio.Event()
        self.stream: ChunkStream


class SimulatedEngine:
    """A modelled server in this process."""

    def __init__(self, settings: SimulatedSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._batch = Batch(settings)
        self._readings: dict[str, Reading] = {}
        self._work = asyncio.Event()
        self._stepping: asyncio.Task[None] | None = None
        self._dead: EngineDead | None = None
        self._prompt_tokens = self._cached_tokens = self._output_tokens = 0

    async def start(self) -> None:
        await self._clock.sleep(self._settings.start_s)
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
        return EngineStats(
            active=len(self._batch.running),
            queued=len(self._batch.waiting),
            kv_tokens_used=self._batch.kv_tokens_used,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            output_tokens=self._output_tokens,
        )

    def generate(self, request: GenerationRequest) -> ChunkStream:
        prompt = tokenize(request)

        async def close() -> None:
            reading = self._readings.get(request.id)
            if reading is None:
                return
            if self._settings.faults.ignore_abort and request.id in self._batch.running:
                await reading.over.wait()
            else:
                self._over(reading, None)

        stream = ChunkStream(close, input_tokens=len(prompt))
        try:
            if self._dead is not None:
                raise EngineDead(str(self._dead))
            check(request)
            if len(prompt) + 1 > self._settings.context_tokens:
                raise ContextTooLong(f"{len(prompt)} prompt tokens, {self._settings.context_tokens} fit")
        except EngineError as error:
            stream.fail(error)
            return stream
        full = answer(request, prompt, self._settings)
        room = min(request.max_tokens, self._settings.context_tokens - len(prompt))
        sequence = Sequence(
            id=request.id,
            prompt=prompt,
            output=full[:room],
            cut=len(full) > room,
            salt=request.cache_salt or "",
        )
        reading = Reading(sequence, TextAssembler(request.stop))
        reading.stream = stream
        self._readings[request.id] = reading
        self._batch.add(sequence)
        self._work.set()
        return stream

    async def _steps(self) -> None:
        while self._dead is None:
            step = self._batch.step()
            if step is None:
                self._work.clear()
                await self._work.wait()
                continue
            await self._clock.sleep(step.duration_s)
            for produced in step.produced:
                for _ in range(2 if self._settings.faults.duplicate_diff else 1):
                    self._read(produced)

    def _read(self, produced: Produced) -> None:
        reading = self._readings.get(produced.id)
        if reading is None or produced.position < reading.stream.output_tokens:
            return
        stream, sequence, faults = reading.stream, reading.sequence, self._settings.faults
        stream.cached_tokens = sequence.cached
        shown = reading.assembler.add(produced.data)
        self._output_tokens += 1
        given = produced.position + 1
        if shown.stopped:
            stream.feed(shown.text, 1, "stop")
            self._over(reading, None)
        elif given == len(sequence.output) and given not in (faults.hang_at, faults.crash_at):
            rest = reading.assembler.finish(cut=sequence.cut)
            stream.feed(shown.text + rest.text, 1, "length" if sequence.cut else "stop")
            self._over(reading, None)
        else:
            stream.feed(shown.text, 1)
        sequence.silent = sequence.silent or given == faults.hang_at
        if given == faults.crash_at:
            self._die(EngineDead(f"the simulated engine crashed after {given} tokens"))

    def _over(self, reading: Reading, error: EngineError | None) -> None:
        if error is not None:
            reading.stream.fail(error)
        if self._readings.pop(reading.sequence.id, None) is None:
            return
        self._prompt_tokens += len(reading.sequence.prompt)
        self._cached_tokens += reading.sequence.cached
        self._batch.remove(reading.sequence.id)
        reading.over.set()
        self._work.set()

    def _die(self, error: EngineDead) -> None:
        self._dead = self._dead or error
        for reading in list(self._readings.values()):
            self._over(reading, error)


def tokenize(request: GenerationRequest) -> tuple[int, ...]:
    """Prompt tokens as this engine counts them: one for each word and each message's role."""
    words = [word for message in request.messages for word in (message.role, *message.content.split())]
    return tuple(zlib.crc32(word.encode()) for word in words)


def answer(request: GenerationRequest, prompt: tuple[int, ...], settings: SimulatedSettings) -> tuple[bytes, ...]:
    """The token bytes of the whole answer: the same for the same seed (or, without one, the same prompt)."""
    chance = random.Random(f"{settings.seed}/{request.seed}/{prompt if request.seed is None else ''}")
    count = 1 + int(chance.expovariate(1 / settings.output_tokens_mean))
    words = [chance.choice(WORDS) for _ in range(count)]
    if not settings.faults.split_utf8:
        return tuple(word.encode() if n == 0 else f" {word}".encode() for n, word in enumerate(words))
    data = " ".join(words).encode()
    return tuple(data[start : start + SPLIT_BYTES] for start in range(0, len(data), SPLIT_BYTES))
