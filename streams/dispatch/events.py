"""The events that dispatch writes, made from its state."""

from schemas.codec import Envelope
from schemas.events import (
    Event,
    GenerationAdmitted,
    GenerationDeclined,
    GenerationEnded,
    GenerationParked,
    GenerationQueued,
    GenerationRequested,
    GenerationReset,
    GenerationRevoked,
)
from schemas.values import EndStatus, Failure
from streams.dispatch.pool import Request

SOURCE = "streams/dispatch"


def cause_of(request: Request) -> Envelope[Event]:
    """The admission, whose trace everything about the request continues."""
    return Envelope(event=request.admitted, source=SOURCE, traceparent=request.traceparent)


def queued(event: GenerationAdmitted | GenerationDeclined) -> GenerationQueued:
    """Opens the stream of a reply."""
    return GenerationQueued(
        reply_id=event.reply_id,
        message_id=event.message_id,
        conversation_id=event.conversation_id,
        account_id=event.account_id,
        tier=event.tier,
        pool=event.pool,
        model=event.model,
        submitted_at_ms=event.submitted_at_ms,
    )


def requested(request: Request) -> GenerationRequested:
    """What the worker gets that the request was given to."""
    admitted, progress = request.admitted, request.progress
    return GenerationRequested(
        pool=admitted.pool,
        priority=admitted.priority,
        epoch=progress.epoch,
        reply_id=admitted.reply_id,
        conversation_id=admitted.conversation_id,
        account_id=admitted.account_id,
        generation_id=request.generation_id,
        attempt=progress.attempt,
        model=admitted.model,
        prompt=admitted.prompt,
        sampling=admitted.sampling,
        submitted_at_ms=admitted.submitted_at_ms,
        deadline_at_ms=admitted.deadline_at_ms,
        kv_tokens=progress.kv_tokens,
    )


def revoked(request: Request) -> GenerationRevoked:
    """Tells the worker that has the request to stop."""
    return GenerationRevoked(
        pool=request.admitted.pool,
        epoch=request.progress.epoch,
        reply_id=request.admitted.reply_id,
        generation_id=request.generation_id,
    )


def parked(request: Request, at_ms: int) -> GenerationParked:
    """What is left of a request that kills its workers."""
    return GenerationParked(
        pool=request.admitted.pool,
        reply_id=request.admitted.reply_id,
        workers=request.progress.killed,
        parked_at_ms=at_ms,
        admitted=request.admitted,
    )


def reset(request: Request, at_ms: int) -> GenerationReset:
    """Begins the current attempt for the readers."""
    return GenerationReset(
        reply_id=request.admitted.reply_id,
        conversation_id=request.admitted.conversation_id,
        attempt=request.progress.attempt,
        reason=request.progress.reset_reason,
        detail=request.progress.reset_detail,
        reset_at_ms=at_ms,
    )


def ended(
    reply_id: str, conversation_id: str, attempt: int, status: EndStatus, error: Failure | None, at_ms: int
) -> GenerationEnded:
    """An end by dispatch's own word."""
    return GenerationEnded(
        reply_id=reply_id,
        conversation_id=conversation_id,
        generation_id="",
        attempt=attempt,
        seq=0,
        status=status,
        ended_at_ms=at_ms,
        error=error,
    )
