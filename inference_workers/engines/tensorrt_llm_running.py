"""One request that TensorRT-LLM works on: what its outputs add, as text."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from inference_workers.chunks import ChunkStream
from inference_workers.engine import Finish, GenerationRequest
from inference_workers.engines.detokenizer import Decode, Detokenizer
from inference_workers.text import TextAssembler


class Generating(ChunkStream):
    """A generation of this engine. `token_ids` are what the model has made so far."""

    __slots__ = ("token_ids",)

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        super().__init__(close)
        self.token_ids: list[int] = []


class Step(NamedTuple):
    """What an output added. `reason` is the library's, when the output has finished."""

    text: str
    tokens: int
    finish: Finish | None
    reason: str | None


class Running:
    """One request in the library or in the engine's queue."""

    __slots__ = ("_assembler", "_detokenizer", "cancelled", "output", "over", "request", "stream", "task")

    def __init__(self, request: GenerationRequest, decode: Decode, close: Callable[[], Awaitable[None]]) -> None:
        self.request = request
        self.cancelled = False
        self.output: Any = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.stream = Generating(close)
        self._detokenizer = Detokenizer(decode)
        self._assembler = TextAssembler(request.stop)

    def abort(self) -> None:
        """Signal; it is over when the output has finished."""
        self.cancelled = True
        if self.output is not None:
            self.output.abort()

    def step(self, output: Any) -> Step:
        """What the output holds now that it did not hold before: copied, for it changes with the next wait."""
        stream, completion = self.stream, output.outputs[0]
        ids = list(completion.token_ids or ())
        new = ids[len(ids) - stream.unheard(len(ids)) :]
        stream.token_ids += new
        cached = getattr(output, "cached_tokens", None)
        if isinstance(cached, int):
            stream.cached_tokens = max(stream.cached_tokens, cached)
        reason: str | None = completion.finish_reason if output.finished else None
        shown = self._assembler.add(self._detokenizer.add(new).encode())
        if shown.stopped:
            return Step(shown.text, len(new), "stop", reason)
        match reason:
            case "stop" | "length":
                return Step(shown.text + self._rest(cut=reason == "length"), len(new), reason, reason)
        return Step(shown.text, len(new), None, reason)

    def _rest(self, *, cut: bool) -> str:
        shown = self._assembler.add(self._detokenizer.finish(cut=cut).encode())
        return shown.text + self._assembler.finish(cut=cut).text
