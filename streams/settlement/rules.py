"""What an ended reply becomes: the stored reply and its usage record. Values in, values out."""

from datetime import UTC, datetime

import msgspec

from schemas.events import Event, GenerationEnded, ReplyStored, UsageRecorded
from schemas.ids import text_digest
from schemas.models import Model, Price, cost, find, plain, uncached
from schemas.prices import UNPRICED, PriceEntry, entry_of
from schemas.reply import Reply, VoidUsage
from schemas.stream import Ended
from schemas.values import Usage


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """Something that must not happen and does not stop the work; `code` is for programs, `detail` for people."""

    code: str
    detail: str


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What is written for an ended reply. `usage`: of the reply, and of each attempt before that came to nothing."""

    stored: ReplyStored
    usage: tuple[UsageRecorded, ...]
    alarms: tuple[Alarm, ...] = ()


class Tariff(msgspec.Struct, frozen=True, kw_only=True):
    """What prices come from: the price list, and the models' own prices where it has no entry."""

    models: tuple[Model, ...]
    prices: tuple[PriceEntry, ...] = ()

    def price(self, reply: Reply) -> Price | None:
        """What the reply costs: by the model that answered, or where that has none, by the one that was asked for.

        None where neither is served any more, nor in the list.
        """
        queued = reply.queued
        for name in (reply.model, queued.model):
            entry = entry_of(self.prices, name, queued.tier, queued.submitted_at_ms)
            if entry is not None:
                return entry.price
            model = find(self.models, name)
            if model is not None:
                return model.price
        return None


def settle(reply: Reply, last: Event, tariff: Tariff) -> Settlement:
    """The settlement of a reply that its last event has just ended.

    The text that readers saw is what is stored, also when the worker's digest differs; that is an alarm.
    """
    end = reply.end
    if end is None:
        raise ValueError(f"{reply.queued.reply_id} has not ended")
    price = tariff.price(reply)
    used = exclusive(end.usage)
    usage = (_usage(reply, end, used, price), *(_void_usage(reply, void, price) for void in reply.void_usage))
    alarms = (*_text_alarms(reply, last), *_usage_alarms(reply, end, used), *_price_alarms(reply, end, price))
    return Settlement(stored=_stored(reply, end), usage=usage, alarms=alarms)


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


def exclusive(usage: Usage) -> Usage:
    """The usage with parts that are none of another's: no part is negative, none is larger than the whole of it.

    A worker that says otherwise has miscounted; what it says of the whole counts, and of its parts what fits, the
    cheapest first.
    """
    whole = max(usage.input_tokens, 0)
    read = min(max(usage.cached_input_tokens, 0), whole)
    written = min(max(usage.cache_write_tokens, 0), whole - read)
    long_written = min(max(usage.cache_write_long_tokens, 0), whole - read - written)
    output = max(usage.output_tokens, 0)
    return msgspec.structs.replace(
        usage,
        input_tokens=whole,
        cached_input_tokens=read,
        cache_write_tokens=written,
        cache_write_long_tokens=long_written,
        output_tokens=output,
        reasoning_tokens=min(max(usage.reasoning_tokens, 0), output),
    )


def _usage(reply: Reply, end: Ended, usage: Usage, price: Price | None) -> UsageRecorded:
    """The charge of the reply. Nobody pays for what failed: that is not the reader's doing."""
    queued, timings = reply.queued, end.timings
    charged = end.status != "failed"
    return UsageRecorded(
        account_id=queued.account_id,
        reply_id=queued.reply_id,
        conversation_id=queued.conversation_id,
        record_kind="reply",
        revision=1,
        usage_day=_day(reply.ended_at_ms),
        status=end.status,
        tier=queued.tier,
        pool=queued.pool,
        model=reply.model,
        attempts=reply.attempt,
        uncached_input_tokens=uncached(usage),
        cache_read_input_tokens=usage.cached_input_tokens,
        cache_write_input_tokens=usage.cache_write_tokens,
        cache_write_long_input_tokens=usage.cache_write_long_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        counted=usage.counted,
        charged=charged,
        cost=plain(cost(usage, price)) if price and charged else "0",
        currency=price.currency if price else "USD",
        price_version=price.version if price else UNPRICED,
        ended_at_ms=reply.ended_at_ms,
        queued_ms=timings.queued_ms if timings else None,
        gpu_ms=max(timings.total_ms - timings.queued_ms, 0) if timings else None,
    )


def _void_usage(reply: Reply, void: VoidUsage, price: Price | None) -> UsageRecorded:
    """What an attempt that came to nothing had used, as far as its pieces tell. It costs nothing."""
    queued = reply.queued
    return UsageRecorded(
        account_id=queued.account_id,
        reply_id=queued.reply_id,
        conversation_id=queued.conversation_id,
        record_kind=f"attempt-{void.attempt}",
        revision=1,
        usage_day=_day(reply.ended_at_ms),
        status="failed",
        tier=queued.tier,
        pool=queued.pool,
        model=void.model,
        attempts=void.attempt,
        uncached_input_tokens=0,
        cache_read_input_tokens=0,
        cache_write_input_tokens=0,
        output_tokens=void.output_tokens,
        counted=False,
        charged=False,
        cost="0",
        currency=price.currency if price else "USD",
        price_version=price.version if price else UNPRICED,
        ended_at_ms=reply.ended_at_ms,
        queued_ms=max(void.started_at_ms - queued.submitted_at_ms, 0),
        gpu_ms=None if void.given_up_at_ms is None else max(void.given_up_at_ms - void.started_at_ms, 0),
    )


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d")


def _usage_alarms(reply: Reply, end: Ended, used: Usage) -> tuple[Alarm, ...]:
    if used == end.usage:
        return ()
    detail = f"{reply.queued.reply_id}: the parts of its usage do not fit into the whole: {end.usage}"
    return (Alarm(code="usage_differs", detail=detail),)


def _price_alarms(reply: Reply, end: Ended, price: Price | None) -> tuple[Alarm, ...]:
    if price is not None or end.usage.input_tokens + end.usage.output_tokens == 0:
        return ()
    detail = f"{reply.queued.reply_id} used {reply.model}, which has no price; it was charged nothing"
    return (Alarm(code=UNPRICED, detail=detail),)


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
