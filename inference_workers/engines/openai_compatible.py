"""A server with the OpenAI API (vLLM, SGLang, trtllm-serve, or a third party's), or several in order.

Rules:

1. Before the first token a request that is not answered is asked again, or another provider is asked, as
   `engines.providers` decides. After it nothing is repeated here: a stream that breaks is `Interrupted`.
2. A stream without a `finish_reason` has not ended well, whatever came. One with it has, even when its usage or
   `[DONE]` did not come any more.
3. A generation that is closed closes its connection: that is what frees the upstream's slot.
4. Tokens are those of the upstream's usage. Where it tells none, or one that cannot be this generation's, each chunk
   with text or thinking counts as one, the prompt is estimated from its bytes, and `Usage.counted` is False.
5. Stop sequences are sent, as many as the upstream takes, and all are held to here.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial

import msgspec
import structlog

from inference_workers.chunks import ChunkStream, refused
from inference_workers.engine import (
    EngineDead,
    EngineError,
    EngineInfo,
    EngineStats,
    EngineUnavailable,
    GenerationRequest,
    Value,
    check,
)
from inference_workers.engines import providers
from inference_workers.engines.chat_completions import Part
from inference_workers.engines.circuits import Circuits, now_s
from inference_workers.engines.failures import Failed, Failure, error_of, error_of_all
from inference_workers.engines.openai_answer import Answer
from inference_workers.engines.openai_provider import Patience, Provider
from inference_workers.engines.openai_upstream import Upstream
from inference_workers.engines.providers import Ask, Asked, GiveUp, Limits, Wait
from inference_workers.slots import Slots

logger = structlog.get_logger("inference_workers.openai")

RELEASE_S = 0.2
"""How long a close waits for the connection to be closed before the slot counts as free nevertheless."""


UNKNOWN_AGE_S = 3600.0
"""Of statistics when no provider may be asked."""


class UpstreamSettings(Value, frozen=True):
    """What the engine is made from."""

    model: str
    """By which the worker serves it."""
    slots: int
    context_tokens: int
    providers: tuple[Provider, ...]
    bytes_per_token: float = 3.0
    patience: Patience = Patience()
    limits: Limits = Limits()


class Running:
    """One generation."""

    __slots__ = ("answer", "over", "request", "stream", "task")

    def __init__(self, request: GenerationRequest, answer: Answer) -> None:
        self.request = request
        self.answer = answer
        self.stream: ChunkStream = answer.stream
        self.task: asyncio.Task[None] | None = None
        self.over = False


class OpenAiCompatibleEngine:
    """Generations are requests to the first provider that takes them.

    Args:
        rng: random numbers from [0, 1), for the times between retries.
    """

    def __init__(self, settings: UpstreamSettings, rng: Callable[[], float] = random.random) -> None:
        self._settings = settings
        self._rng = rng
        self._slots: Slots[Running] = Slots(settings.slots)
        self._upstreams: list[Upstream] = []
        self._circuits = Circuits([one.name for one in settings.providers], settings.limits)
        self._runs = False
        self._totals = EngineStats(active=0, queued=0, kv_tokens_used=0)

    async def start(self) -> None:
        logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request otherwise
        settings = self._settings
        self._upstreams = [Upstream(one, settings.patience, settings.slots) for one in settings.providers]
        asked = [upstream.look() for upstream in self._upstreams if upstream.provider.health_path]
        reasons = await asyncio.gather(*asked)
        if reasons and len(reasons) == len(self._upstreams) and None not in reasons:
            await self._close_connections()
            raise EngineUnavailable(
                f"no provider answers: {'; '.join(filter(None, reasons))}. "
                "See TURNLOG_OPENAI_BASE_URL, TURNLOG_OPENAI_KEY and TURNLOG_OPENAI_PROVIDERS"
            )
        for reason in filter(None, reasons):
            logger.warning("provider_does_not_answer", reason=reason)
        self._runs = True

    async def shutdown(self, drain_s: float) -> None:
        until_s = now_s() + drain_s
        self._runs = False
        while (going := self._going()) and now_s() < until_s:
            await asyncio.wait(going, timeout=until_s - now_s(), return_when=asyncio.FIRST_COMPLETED)
        for running in reversed(self._slots.items()):
            running.stream.fail(EngineDead("the engine was shut down"))
            await running.stream.aclose()
        await self._close_connections()

    def _going(self) -> list[asyncio.Task[None]]:
        return [running.task for running in self._slots.items() if running.task is not None]

    async def _close_connections(self) -> None:
        upstreams, self._upstreams = self._upstreams, []
        for upstream in upstreams:
            await upstream.close()

    def info(self) -> EngineInfo:
        return EngineInfo(
            engine="openai_compatible",
            model=self._settings.model,
            slots=self._settings.slots,
            context_tokens=self._settings.context_tokens,
            kv_tokens=0,
        )

    def stats(self) -> EngineStats:
        """Of this worker's generations. `age_s` is beyond all bounds while no provider may be asked soon, so that the
        worker counts as full."""
        return msgspec.structs.replace(
            self._totals,
            active=self._slots.active,
            queued=self._slots.queued,
            age_s=UNKNOWN_AGE_S if self._circuits.out_s() else 0.0,
        )

    def generate(self, request: GenerationRequest) -> ChunkStream:
        async def close() -> None:
            if running.task is not None:
                running.task.cancel()
                await asyncio.wait({running.task}, timeout=RELEASE_S)
            self._release(running)

        try:
            if not self._runs:
                raise EngineDead("the engine does not run")
            check(request)
        except EngineError as error:
            return refused(error)
        settings = self._settings
        running = Running(request, Answer(request, close, settings.bytes_per_token, settings.context_tokens))
        if self._slots.enter(running):
            self._begin(running)
        return running.stream

    def _begin(self, running: Running) -> None:
        running.task = asyncio.create_task(self._carry(running))
        running.task.add_done_callback(partial(_ended, running))

    async def _carry(self, running: Running) -> None:
        """One generation from its first request to its end."""
        total_s = self._settings.patience.total_s
        try:
            async with asyncio.timeout(total_s):
                await self._answered(running)
        except TimeoutError:
            running.stream.fail(EngineError(f"no end within {total_s:g} s"))
        except EngineError as error:
            running.stream.fail(error)
        finally:
            self._release(running)

    def _release(self, running: Running) -> None:
        """The slot is free. May be called again."""
        if running.over:
            return
        running.over = True
        usage = running.stream.usage
        self._totals = msgspec.structs.replace(
            self._totals,
            prompt_tokens=self._totals.prompt_tokens + usage.input_tokens,
            cached_tokens=self._totals.cached_tokens + usage.cached_input_tokens,
            output_tokens=self._totals.output_tokens + usage.output_tokens,
        )
        following = self._slots.leave(running)
        if following is not None:
            self._begin(following)

    async def _answered(self, running: Running) -> None:
        """Ask until it is answered. Raises `EngineError`."""
        until_s = now_s() + self._settings.patience.begin_s
        self._circuits.begun()
        asked: list[Asked] = []
        failures: list[Failure] = []
        while running.stream.open:
            step = self._circuits.next_step(asked, until_s)
            match step:
                case Wait():
                    spread_s = 0.0 if asked else self._rng() * self._settings.limits.backoff_base_s
                    await asyncio.sleep(step.until_s - now_s() + spread_s)
                case GiveUp():
                    raise error_of_all(failures, self._circuits.unasked(asked))
                case Ask():
                    failure = await self._ask(running, step.provider, asked)
                    if failure is None:
                        return
                    asked.append(self._not_answered(running, step.provider, asked, failure))
                    failures.append(failure)

    def _not_answered(self, running: Running, provider: int, asked: list[Asked], failure: Failure) -> Asked:
        """What becomes of a failure: the next step's input, or the generation's end. Raises `EngineError`."""
        begun = running.answer.begun
        log = logger.info if failure.kind == "request" else logger.warning
        log("not_answered", kind=failure.kind, reason=failure.text, begun=begun)
        if begun or failure.kind == "request":
            raise error_of(failure, begun=begun)
        retry = 1 + sum(one.provider == provider for one in asked)
        wait_s = providers.backoff_s(self._settings.limits, retry, failure.retry_after_s, self._rng())
        if failure.kind == "busy" and failure.retry_after_s:
            self._circuits.busy(provider, failure.retry_after_s)
        return Asked(provider=provider, kind=failure.kind, again_s=now_s() + wait_s)

    async def _ask(self, running: Running, provider: int, asked: list[Asked]) -> Failure | None:
        """One request to one provider; why it was not answered. Raises `EngineError` when the generation ends."""
        verdict = self._circuits.request(provider, asked)
        answer, upstream = running.answer, self._upstreams[provider]

        def take(part: Part) -> bool:
            enough = answer.take(part)
            if answer.begun:
                verdict.answered()
            return enough

        try:
            try:
                await upstream.ask(running.request, answer.accepted, take)
            except Failed:
                if not answer.told:
                    raise
            answer.end(upstream.provider.source)
            verdict.answered()
        except Failed as failed:
            verdict.failed(failed.failure.kind)
            return failed.failure
        except EngineError:
            verdict.answered()
            raise
        finally:
            verdict.close()
        return None


def _ended(running: Running, task: asyncio.Task[None]) -> None:
    """A bug of ours ends its own generation, and is told."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        running.stream.fail(EngineError(f"the engine failed: {type(error).__name__}"))
        logger.error("engine_bug", exc_info=error)
