"""One generation from its beginning to its end in the log.

    started ── pieces ──► end acknowledged ──► finished          completed, length, cancelled, refused, failed
        │         │
        │         └─────────────────────────► finished(returned) handed back: no end, dispatch gives it on
        └─► (nothing)                                            revoked, superseded: not ours any more

The slot is free when the engine has given it up, which may be before or after the end is written.
"""

import asyncio
from collections.abc import Callable, Mapping

import msgspec
import structlog

from inference_workers.assignments import StopReason, Taken
from inference_workers.chunks import refused
from inference_workers.engine import Engine, EngineDead, EngineError, Finish, Generation, GenerationRequest
from inference_workers.journal import UNDELIVERABLE, Journal, end_event, report, since
from inference_workers.outcomes import Ending, HandBack, Outcome, broke, finished, stopped
from inference_workers.pieces import Burst, Pieces
from schemas.prefix import salt_of
from schemas.values import Priority, Timings

logger = structlog.get_logger("inference_workers")

PRIORITY: Mapping[Priority, float] = {"paid": 0.75, "free": 0.25}
"""For engines that order what waits inside of them."""

RELEASE_S = 0.2
"""How long the end waits for the engine to give up the slot, so that usage is final."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a run tells its worker, in the event loop."""

    freed: Callable[[str], None]
    """The slot of this generation is free."""
    lost: Callable[[str], None]
    """A piece of this generation did not get into the log."""
    dead: Callable[[EngineDead], None]
    stuck: Callable[[str], None]
    """The engine does not give up this generation's slot."""


class Run:
    """A generation that the engine works on."""

    def __init__(self, taken: Taken, engine: Engine, journal: Journal, pieces: Pieces, burst: Burst) -> None:
        self.taken = taken
        self.began_s = asyncio.get_running_loop().time()
        self.last_token_s: float | None = None
        self._journal = journal
        self._pieces = pieces
        self._burst = burst
        self._reason: StopReason | None = None
        self._closing: asyncio.Task[None] | None = None
        self._began_ms = journal.now_ms()
        self._first_ms: int | None = None
        self._texts: list[str] = []
        self._generation: Generation = begun(engine, engine_request(taken))

    @property
    def text(self) -> str:
        """What the engine has said so far."""
        return "".join(self._texts)

    def stop(self, reason: StopReason) -> None:
        """Stop the engine; the end follows in `run`."""
        self._reason = self._reason or reason
        self._close()

    async def run(self, told: Told, abort_s: float) -> None:
        """Carry the generation to its end."""
        outcome = await self._generate(told)
        closing = self._close()
        await asyncio.wait({closing}, timeout=RELEASE_S)
        if closing.done():
            told.freed(self.taken.id)
        await self._tell(outcome)
        if not closing.done():
            await asyncio.wait({closing}, timeout=abort_s)
            if not closing.done():
                told.stuck(self.taken.id)
                return
            told.freed(self.taken.id)

    async def _generate(self, told: Told) -> Outcome:
        finish: Finish | None = None
        pieces, burst, loop = self._pieces, self._burst, asyncio.get_running_loop()
        try:
            async for chunk in self._generation:
                self.last_token_s = loop.time()
                if self._first_ms is None:
                    self._first_ms = self._journal.now_ms()
                finish = chunk.finish
                pieces.add(chunk.text, chunk.tokens)
                self._texts.append(chunk.text)
                if finish is None:
                    burst.offer(pieces)
        except EngineDead as error:
            told.dead(error)
            return broke(error) if self._reason is None else stopped(self._reason)
        except EngineError as error:
            return broke(error) if self._reason is None else stopped(self._reason)
        except Exception as error:  # an engine is other people's code: what it throws is one generation's end
            logger.exception("engine_threw", generation_id=self.taken.id)
            return broke(thrown(error)) if self._reason is None else stopped(self._reason)
        if finish is not None and self._reason in (None, "cancelled", "deadline", "stalled"):
            return finished(finish)
        if self._reason is None:
            return broke(EngineError("the engine stopped without an end"))
        return stopped(self._reason)

    async def _tell(self, outcome: Outcome) -> None:
        usage = self._generation.usage
        if isinstance(outcome, Ending) and not await self._pieces.finish():
            outcome = HandBack(UNDELIVERABLE)
        if isinstance(outcome, Ending):
            request = self.taken.request
            event = end_event(
                self.taken,
                outcome,
                seq=self._pieces.next_seq,
                usage=usage,
                text_bytes=self._pieces.text_bytes,
                digest=self._pieces.text_digest,
                timings=Timings(
                    queued_ms=since(request.submitted_at_ms, self._began_ms),
                    first_token_ms=None if self._first_ms is None else since(request.submitted_at_ms, self._first_ms),
                    total_ms=since(request.submitted_at_ms, self._journal.now_ms()),
                ),
                now_ms=self._journal.now_ms(),
            )
            queued_ms = since(request.submitted_at_ms, self._began_ms)
            ran_ms = since(self._began_ms, self._journal.now_ms())
            if not await self._journal.ended(self.taken, event, queued_ms, lambda: self._pieces.lost, ran_ms):
                outcome = HandBack(UNDELIVERABLE)
        elif isinstance(outcome, HandBack):
            self._journal.handed_back(self.taken, outcome.because, outcome.detail)
        report(self.taken, outcome, usage, self._pieces.next_seq - 1)

    def _close(self) -> asyncio.Task[None]:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._closed())
        return self._closing

    async def _closed(self) -> None:
        try:
            await self._generation.aclose()
        except Exception:
            logger.exception("engine_threw", generation_id=self.taken.id)


def begun(engine: Engine, request: GenerationRequest) -> Generation:
    """The generation; where the engine throws instead of giving one, one that fails."""
    try:
        return engine.generate(request)
    except Exception as error:
        logger.exception("engine_threw", generation_id=request.id)
        return refused(error if isinstance(error, EngineError) else thrown(error))


def thrown(error: Exception) -> EngineError:
    """What no engine should throw, as the failure of one generation."""
    return EngineError(f"the engine failed in a way that it should not: {type(error).__name__}")


def engine_request(taken: Taken) -> GenerationRequest:
    """What the engine is asked for. Prefixes are shared within an account only."""
    request = taken.request
    sampling = request.sampling
    return GenerationRequest(
        id=request.generation_id,
        messages=request.prompt,
        max_tokens=sampling.max_output_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        stop=sampling.stop,
        cache_salt=salt_of(request.account_id),
        priority=PRIORITY[request.priority],
    )
