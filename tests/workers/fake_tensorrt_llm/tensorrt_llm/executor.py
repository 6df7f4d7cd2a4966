"""Requests on their way through the model: queue, prefill in chunks, decode in batches, a cache of prefix blocks."""

import asyncio
import json
import random
import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tensorrt_llm import faults
from tensorrt_llm.llmapi.llm_args import WaitingQueuePolicy
from tensorrt_llm.outputs import IterationResult, RequestOutput, Response

STEP_S = 0.002
PREFILL_TOKENS = 64
"""Of one step."""
BLOCKS = 4096
WORDS = ("the", "log", "is", "an", "ordered", "record", "über", "naïve", "数据", "流", "🎉", "of", "what", "happened")


@dataclass(eq=False)
class Request:
    id: int
    prompt: list[int]
    params: Any
    salt: str | None
    priority: float
    output: RequestOutput
    script: list[int] | None
    chance: random.Random
    read: int = 0
    made: list[int] = field(default_factory=list)
    unsent: list[int] = field(default_factory=list)
    aborted: bool = False
    pending: list[int] = field(default_factory=list)


class Executor:
    """Steps while there is work. Dead: after a background error, or shut down."""

    def __init__(self, args: Any, tokenizer: Any) -> None:
        self.args = args
        self.tokenizer = tokenizer
        self.dead = False
        self.stats: IterationResult | None = None
        self.events: IterationResult | None = None
        self._error: Exception | None = None
        self._numbers = 0
        self._waiting: deque[Request] = deque()
        self._active: list[Request] = []
        self._silent: list[Request] = []
        self._blocks: set[tuple[Any, ...]] = set()
        self._stepping: asyncio.Task[None] | None = None

    def submit(
        self, prompt: list[int], params: Any, salt: str | None, priority: float, *, streaming: bool
    ) -> RequestOutput:
        self._numbers += 1
        output = RequestOutput(self, self._numbers, prompt, params)
        self._maybe_initialize_iteration_results()
        text = self.tokenizer.decode(prompt, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        user = text.rpartition("user\n")[2].removesuffix("assistant\n")
        seed = f"{params.seed}/{user}"
        chance = random.Random(zlib.crc32(seed.encode()))
        request = Request(self._numbers, prompt, params, salt, priority, output, self._script(user), chance)
        if "!refuse" in user:
            output.queue.put_nowait(Response([], error="the request was refused by the executor"))
        elif len(prompt) >= (self.args.max_seq_len or 1 << 30):
            output.queue.put_nowait(Response([], error=f"The prompt length ({len(prompt)}) exceeds max_seq_len"))
        else:
            self._waiting.append(request)
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.get_running_loop().create_task(self._steps())
        return output

    def abort_request(self, request_id: int) -> None:
        for request in [*self._active, *self._waiting]:
            if request.id == request_id:
                request.aborted = True

    def shutdown(self) -> None:
        self.dead = True

    def raise_background_error(self) -> None:
        if self._error is not None:
            self.shutdown()
            raise self._error

    def _maybe_initialize_iteration_results(self) -> None:
        if self.stats is None:
            self.stats = IterationResult()
            self.events = IterationResult() if self.args.kv_cache_config.event_buffer_max_size else None
        self.stats.mark_undone()
        if self.events is not None:
            self.events.mark_undone()

    def _script(self, user: str) -> list[int] | None:
        if not user.startswith("echo:"):
            return None
        return [*self.tokenizer.encode(user.removeprefix("echo:"), add_special_tokens=False), 0]

    async def _steps(self) -> None:
        while (self._waiting or self._active) and not self.dead:
            await asyncio.sleep(STEP_S)
            self._step()

    def _step(self) -> None:
        for request in [one for one in self._active if one.aborted] + [one for one in self._waiting if one.aborted]:
            self._abort(request)
        while self._waiting and len(self._active) + len(self._silent) < self.args.max_batch_size:
            request = self._next_waiting()
            request.read = self._cached(request)
            if not faults.current.no_cached_tokens:
                request.output.cached_tokens = request.read
            self._active.append(request)
        for request in list(self._active):
            if request.read < len(request.prompt):
                request.read = min(len(request.prompt), request.read + PREFILL_TOKENS)
                if request.read == len(request.prompt):
                    self._store(request)
            else:
                self._make(request)
        self._tell()

    def _next_waiting(self) -> Request:
        if self.args.scheduler_config.waiting_queue_policy == WaitingQueuePolicy.PRIORITY:
            first = max(self._waiting, key=lambda request: request.priority)
            self._waiting.remove(first)
            return first
        return self._waiting.popleft()

    def _abort(self, request: Request) -> None:
        if faults.current.hanging_abort:
            if request in self._active:
                self._active.remove(request)
                self._silent.append(request)
            return
        (self._active if request in self._active else self._waiting).remove(request)
        request.output.queue.put_nowait(Response([], "cancelled"))

    def _make(self, request: Request) -> None:
        token = self._next(request)
        request.made.append(token)
        request.unsent.append(token)
        if len(request.made) == faults.current.background_error_at:
            self._error = RuntimeError("CUDA error: an illegal memory access was encountered")
        finish, stop_reason = self._finish(request, token)
        interval = self.args.stream_interval
        if finish is not None or len(request.made) == 1 or len(request.made) % interval == 0:
            request.output.queue.put_nowait(Response(request.unsent, finish, stop_reason))
            request.unsent = []
        if finish is not None:
            self._active.remove(request)

    def _next(self, request: Request) -> int:
        if request.script is not None:
            return request.script[min(len(request.made), len(request.script) - 1)]
        while not request.pending:
            word = request.chance.choice(WORDS)
            text = f" {word}" if request.made else f"{word} {request.chance.choice(WORDS)}"
            request.pending = self.tokenizer.encode(text, add_special_tokens=False)
        return request.pending.pop(0)

    def _finish(self, request: Request, token: int) -> tuple[str | None, str | None]:
        params = request.params
        if token == params.end_id:
            return "stop", None
        for stop, ids in zip(params.stop or (), params._stop_ids, strict=True):
            if request.made[-len(ids) :] == ids:
                return "stop", stop
        if len(request.made) >= params.max_tokens:
            return "length", None
        if "!timeout" in self.tokenizer.decode(request.prompt) and len(request.made) == 3:
            return "timeout", None
        return None, None

    def _prefixes(self, request: Request) -> list[tuple[Any, ...]]:
        size = self.args.kv_cache_config.tokens_per_block
        return [(request.salt, *request.prompt[:end]) for end in range(size, len(request.prompt), size)]

    def _cached(self, request: Request) -> int:
        if not self.args.kv_cache_config.enable_block_reuse:
            return 0
        size, count = self.args.kv_cache_config.tokens_per_block, 0
        for prefix in self._prefixes(request):
            if prefix not in self._blocks:
                break
            count += size
        return count

    def _store(self, request: Request) -> None:
        new = [prefix for prefix in self._prefixes(request) if prefix not in self._blocks]
        self._blocks.update(new)
        if self.events is not None and new:
            blocks = [{"block_hash": hash(prefix)} for prefix in new]
            self.events.queue.put_nowait(json.dumps({"event_id": 1, "data": {"type": "stored", "blocks": blocks}}))

    def _tell(self) -> None:
        if self.stats is None or faults.current.no_stats or not self.args.enable_iter_perf_stats:
            return
        size = self.args.kv_cache_config.tokens_per_block
        used = sum(-(-(one.read + len(one.made)) // size) for one in [*self._active, *self._silent])
        said: dict[str, Any] = {
            "iter": 1,
            "iterLatencyMS": STEP_S * 1000,
            "numActiveRequests": len(self._active),
            "numQueuedRequests": len(self._waiting),
            "maxNumActiveRequests": self.args.max_batch_size,
            "kvCacheStats": {"maxNumBlocks": BLOCKS, "usedNumBlocks": used, "tokensPerBlock": size},
            "inflightBatchingStats": {"numPausedRequests": 0},
        }
        if faults.current.bare_stats:
            said = dict.fromkeys(said)
        self.stats.queue.put_nowait(json.dumps(said))
