"""What an ended reply becomes: the stored reply and its usage record. Values in, values out."""

from datetime import UTC, datetime
from decimal import Decimal

import msgspec

from schemas.events import Event, GenerationEnded, ReplyStored, UsageRecorded
from schemas.ids import text_digest
from schemas.models import Model, cost, find
from schemas.reply import Reply
from schemas.stream import Ended

UNPRICED = "unpriced"


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """Something that must not happen and does not stop the work; `code` is for programs, `detail` for people."""

    code: str
    detail: str


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What is written for an ended reply."""

    stored: ReplyStored
    usage: UsageRecorded
    alarms: tuple[Alarm, ...] = ()


def settle(reply: Reply, last: Event, models: tuple[Model, ...]) -> Settlement:
    """The settlement of a reply that its last event has just ended.

    The text that readers saw is what is stored, also when the worker's digest differs; that is an alarm.
    """
    end = reply.end
    if end is None:
        raise ValueError(f"{reply.queued.reply_id} has not ended")
    usage, unpriced = _usage(reply, end, models)
    return Settlement(stored=_stored(reply, end), usage=usage, alarms=(*_text_alarms(reply, last), *unpriced))


def _stored(reply: Reply, end: Ended) -> ReplyStored:
    queued = reply.queued
    return ReplyStored(
        conversation_id=queued.conversation_id,
        reply_id=queued.reply_id,
        message_id=queued.message_id,
        account_id=queued.account_id,
        tier=queued.tier,
        pool=queued.pool,
        model=reply.model,
        status=end.status,
        text=reply.text,
        attempt=reply.attempt,
        final_offset=reply.offset,
        usage=end.usage,
        submitted_at_ms=queued.submitted_at_ms,
        ended_at_ms=reply.ended_at_ms,
        timings=end.timings,
        error=end.error,
        void_attempts=reply.void_attempts,
    )


def _usage(reply: Reply, end: Ended, models: tuple[Model, ...]) -> tuple[UsageRecorded, tuple[Alarm, ...]]:
    queued, usage = reply.queued, end.usage
    model = find(models, reply.model) or find(models, queued.model)
    used = usage.input_tokens + usage.output_tokens > 0
    amount = cost(usage, model.price) if model else Decimal(0)
    record = UsageRecorded(
        account_id=queued.account_id,
        reply_id=queued.reply_id,
        conversation_id=queued.conversation_id,
        record_kind="reply",
        revision=1,
        usage_day=datetime.fromtimestamp(reply.ended_at_ms / 1000, UTC).strftime("%Y-%m-%d"),
        status=end.status,
        tier=queued.tier,
        pool=queued.pool,
        model=reply.model,
        attempts=reply.attempt,
        uncached_input_tokens=usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens,
        cache_read_input_tokens=usage.cached_input_tokens,
        cache_write_input_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
        counted=usage.counted,
        cost=plain(amount),
        currency=model.price.currency if model else "USD",
        price_version=model.price.version if model else UNPRICED,
        ended_at_ms=reply.ended_at_ms,
    )
    if model is not None or not used:
        return record, ()
    detail = f"{queued.reply_id} used {reply.model}, which has no price; it was charged nothing"
    return record, (Alarm(code=UNPRICED, detail=detail),)


def plain(amount: Decimal) -> str:
    """A Decimal without exponent and without trailing zeros."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _text_alarms(reply: Reply, last: Event) -> tuple[Alarm, ...]:
    if not isinstance(last, GenerationEnded) or last.generation_id == "":
        return ()
    text = reply.text
    size = len(text.encode("utf-8", "surrogatepass"))
    same_size = last.text_bytes is None or last.text_bytes == size
    same_digest = last.text_digest is None or last.text_digest == text_digest(text)
    if same_size and same_digest:
        return ()
    detail = (
        f"{last.reply_id}: its worker counted {last.text_bytes} bytes, digest {last.text_digest}; stored are {size}"
    )
    return (Alarm(code="text_differs", detail=detail),)
