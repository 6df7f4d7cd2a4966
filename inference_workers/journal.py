"""What a generation tells the log besides its pieces: that it started, that it ended, that it is over."""

from collections import deque
from collections.abc import Callable
from threading import Event as Flag

import msgspec
import structlog

from inference_workers.assignments import EndUnstarted, Taken
from inference_workers.outcomes import Ending, HandBack, Outcome
from schemas.events import Event, GenerationEnded, GenerationFinished, GenerationStarted
from schemas.ids import text_digest
from schemas.values import Timings, Usage
from streams.log.steps import LogFull, NotAppended, Output, Writer
from streams.log.trace import trace_id

logger = structlog.get_logger("inference_workers")


UNDELIVERABLE = "undeliverable"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where generations run: the worker and its lease."""

    pool: str
    inbox: int
    epoch: int
    instance: str
    model: str


class Journal:
    """Writes what a generation tells the log besides its pieces."""

    def __init__(self, writer: Writer, place: Place, now_ms: Callable[[], int]) -> None:
        self._writer = writer
        self._place = place
        self.now_ms = now_ms
        self._untold: deque[Output] = deque()
        """At most one for each generation that was taken; none is taken while the log is away."""

    def started(self, taken: Taken, failed: Callable[[NotAppended], None]) -> None:
        """Write that it has started; without that nothing of it counts.

        Args:
            taken: the generation.
            failed: called when it did not get into the log after all; see `Writer.append`.

        Raises:
            LogFull, NotAppended: it did not.
        """
        request = taken.request
        self._append(
            taken,
            GenerationStarted(
                reply_id=request.reply_id,
                conversation_id=request.conversation_id,
                generation_id=request.generation_id,
                attempt=request.attempt,
                model=self._place.model,
                worker=self._place.instance,
                started_at_ms=self.now_ms(),
            ),
            failed,
        )

    async def ended(
        self, taken: Taken, event: GenerationEnded, queued_ms: int, lost: Callable[[], bool], ran_ms: int = 0
    ) -> bool:
        """Write the end, and once it is acknowledged that the generation is finished; False: it did not get there.

        `lost` says whether something before the end did not get there: then the end does not count either.
        """
        try:
            await self._writer.append(Output(event=event, cause=taken.envelope))
        except (LogFull, NotAppended):
            self.handed_back(taken, UNDELIVERABLE)
            return False
        if lost():
            self.handed_back(taken, UNDELIVERABLE)
            return False
        self._finished(taken, event, queued_ms, ran_ms)
        return True

    def handed_back(self, taken: Taken, reason: str = "", detail: str = "") -> None:
        """The generation is not ended, and not run here any more."""
        self._finished(taken, None, 0, 0, reason, detail)

    def _finished(
        self,
        taken: Taken,
        end: GenerationEnded | None,
        queued_ms: int,
        ran_ms: int,
        reason: str = "",
        detail: str = "",
    ) -> None:
        request = taken.request
        event = GenerationFinished(
            pool=self._place.pool,
            inbox=self._place.inbox,
            epoch=self._place.epoch,
            reply_id=request.reply_id,
            generation_id=request.generation_id,
            attempt=request.attempt,
            status=None if end is None else end.status,
            returned=end is None,
            queued_ms=queued_ms,
            usage=None if end is None else end.usage,
            reason=reason,
            ran_ms=ran_ms,
            detail=detail,
        )
        self._tell(Output(event=event, cause=taken.envelope))

    def tell_again(self) -> None:
        """What dispatch was told and did not get into the log. To be called every now and then.

        As long as the worker lives, dispatch believes that it runs what it was given: nothing else ends that belief.
        """
        for _ in range(len(self._untold)):
            self._tell(self._untold.popleft())

    def _tell(self, output: Output) -> None:
        try:
            self._writer.append(output, lambda _: self._untold.append(output))
        except (LogFull, NotAppended):
            self._untold.append(output)

    def _append(self, taken: Taken, event: Event, failed: Callable[[NotAppended], None] | None = None) -> None:
        self._writer.append(Output(event=event, cause=taken.envelope), failed)


async def end_unstarted(journal: Journal, action: EndUnstarted) -> None:
    """Open and close a generation that never ran."""
    taken = action.taken
    outcome = Ending("cancelled" if action.cancelled else "failed", action.error)
    usage = Usage(input_tokens=0, output_tokens=0)
    waited_ms = since(taken.request.submitted_at_ms, journal.now_ms())
    event = end_event(
        taken,
        outcome,
        seq=1,
        usage=usage,
        text_bytes=0,
        digest=text_digest(""),
        timings=Timings(queued_ms=waited_ms, first_token_ms=None, total_ms=waited_ms),
        now_ms=journal.now_ms(),
    )
    lost = Flag()
    try:
        journal.started(taken, lambda _: lost.set())
    except (LogFull, NotAppended):
        journal.handed_back(taken, UNDELIVERABLE)
        return
    told = await journal.ended(taken, event, waited_ms, lost.is_set)
    report(taken, outcome if told else HandBack(UNDELIVERABLE), usage, 0)


def end_event(
    taken: Taken,
    ending: Ending,
    *,
    seq: int,
    usage: Usage,
    text_bytes: int,
    digest: str,
    timings: Timings,
    now_ms: int,
) -> GenerationEnded:
    """The end of a generation as the log gets it."""
    request = taken.request
    return GenerationEnded(
        reply_id=request.reply_id,
        conversation_id=request.conversation_id,
        generation_id=request.generation_id,
        attempt=request.attempt,
        seq=seq,
        status=ending.status,
        ended_at_ms=now_ms,
        usage=usage,
        text_bytes=text_bytes,
        text_digest=digest,
        timings=timings,
        error=ending.error,
    )


def since(start_ms: int, now_ms: int) -> int:
    """Milliseconds between two wall-clock times of perhaps different machines, never negative."""
    return max(0, now_ms - start_ms)


def report(taken: Taken, outcome: Outcome, usage: Usage, pieces: int) -> None:
    """One log line for each generation."""
    request = taken.request
    logger.info(
        "generation_over",
        outcome=outcome.status if isinstance(outcome, Ending) else outcome.because,
        handed_back=isinstance(outcome, HandBack),
        detail=_detail(outcome),
        reply_id=request.reply_id,
        conversation_id=request.conversation_id,
        generation_id=request.generation_id,
        attempt=request.attempt,
        input_tokens=usage.input_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        output_tokens=usage.output_tokens,
        pieces=pieces,
        trace_id=trace_id(taken.envelope.traceparent),
    )


def _detail(outcome: Outcome) -> str:
    match outcome:
        case HandBack(detail=detail):
            return detail
        case Ending(error=error) if error is not None:
            return error.detail
        case _:
            return ""
