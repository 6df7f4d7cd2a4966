"""Which rows of the tables an event gives. Pure.

Times are text of Unix seconds with three decimals, which ClickHouse reads the same under every time zone. An event
whose values no column can hold gives `Unstorable`: its record goes to the dead letters.
"""

from datetime import date
from decimal import Context, Decimal, InvalidOperation

from projections.views.tables import ConversationRow, MessageRow, ReplyRow, Row, UsageRow
from schemas.codec import Envelope, hot_encode, to_json
from schemas.conversation import derived_title
from schemas.events import (
    BranchChosen,
    ConversationDeleted,
    ConversationRenamed,
    ConversationSummarised,
    Event,
    MessageSubmitted,
    RegenerationRequested,
    ReplyStored,
    UsageAdjusted,
    UsageRecorded,
)

VERSION_MAX = 2**63 - 1
_INT_MAX = 2**63 - 1
_TIME_MAX_MS = 9_000_000_000_000
_COST_MAX = Decimal(10) ** 26
_COST_STEP = Decimal(1).scaleb(-12)
_EXACT = Context(prec=60)
_DAYS = (date(1970, 1, 1), date(2148, 12, 31))


class Unstorable(Exception):
    """A value that its column cannot hold."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


def rows(envelope: Envelope[Event], partition: int, offset: int) -> tuple[Row, ...]:
    """The rows that an event gives, none where the views do not show it.

    Raises:
        Unstorable: see there.
    """
    event = envelope.event
    match event:
        case UsageRecorded():
            return (_usage(event, partition, offset),)
        case UsageAdjusted():
            return (_adjustment(event, partition, offset),)
        case MessageSubmitted():
            return _submission(event, _event(envelope), partition, offset)
        case RegenerationRequested():
            return (_regeneration(event, _event(envelope), partition, offset),)
        case ReplyStored():
            return (_reply(event, _event(envelope), partition, offset),)
        case _:
            return _change(event, _event(envelope), partition, offset)


def _submission(event: MessageSubmitted, text: str, partition: int, offset: int) -> tuple[Row, ...]:
    sampling = _sampling(event)
    submitted_at = _time("submitted_at_ms", event.submitted_at_ms)
    user = MessageRow(
        account_id=event.account_id,
        conversation_id=event.conversation_id,
        message_id=event.message_id,
        role="user",
        parent_id=event.parent_id or "",
        reply_id=event.reply_id,
        content=event.content,
        title=derived_title(event.content) if event.new_conversation else "",
        model=event.model,
        system=event.system or "",
        sampling=sampling,
        tier=event.tier,
        client_message_id=event.client_message_id or "",
        body_digest=event.body_digest,
        new_conversation=int(event.new_conversation),
        submitted_at=submitted_at,
        log_partition=partition,
        log_offset=offset,
        sub=0,
        event=text,
        version=VERSION_MAX - offset,
    )
    reply = MessageRow(
        account_id=event.account_id,
        conversation_id=event.conversation_id,
        message_id=event.reply_id,
        role="assistant",
        parent_id=event.message_id,
        reply_id=event.reply_id,
        model=event.model,
        sampling=sampling,
        tier=event.tier,
        client_message_id=event.client_message_id or "",
        body_digest=event.body_digest,
        submitted_at=submitted_at,
        log_partition=partition,
        log_offset=offset,
        sub=1,
        version=VERSION_MAX - offset,
    )
    return user, reply


def _regeneration(event: RegenerationRequested, text: str, partition: int, offset: int) -> Row:
    return MessageRow(
        account_id=event.account_id,
        conversation_id=event.conversation_id,
        message_id=event.reply_id,
        role="assistant",
        regenerated_id=event.regenerated_id,
        reply_id=event.reply_id,
        model=event.model,
        sampling=_sampling(event),
        tier=event.tier,
        client_message_id=event.client_message_id or "",
        body_digest=event.body_digest,
        submitted_at=_time("submitted_at_ms", event.submitted_at_ms),
        log_partition=partition,
        log_offset=offset,
        sub=1,
        event=text,
        version=VERSION_MAX - offset,
    )


def _reply(event: ReplyStored, text: str, partition: int, offset: int) -> Row:
    timings = event.timings
    return ReplyRow(
        account_id=event.account_id,
        conversation_id=event.conversation_id,
        reply_id=event.reply_id,
        message_id=event.message_id,
        tier=event.tier,
        pool=event.pool,
        model=event.model,
        status=event.status,
        text=event.text,
        attempt=_count("attempt", event.attempt, 2**32 - 1),
        final_offset=_count("final_offset", event.final_offset),
        input_tokens=_count("usage.input_tokens", event.usage.input_tokens),
        cached_input_tokens=_count("usage.cached_input_tokens", event.usage.cached_input_tokens),
        cache_write_tokens=_count("usage.cache_write_tokens", event.usage.cache_write_tokens),
        output_tokens=_count("usage.output_tokens", event.usage.output_tokens),
        counted=event.usage.counted,
        queued_ms=_span("timings.queued_ms", timings.queued_ms if timings else None),
        first_token_ms=_span("timings.first_token_ms", timings.first_token_ms if timings else None),
        total_ms=_span("timings.total_ms", timings.total_ms if timings else None),
        error_code=event.error.code if event.error else "",
        error_detail=event.error.detail if event.error else "",
        submitted_at=_time("submitted_at_ms", event.submitted_at_ms),
        ended_at=_time("ended_at_ms", event.ended_at_ms),
        log_partition=partition,
        log_offset=offset,
        event=text,
        version=VERSION_MAX - offset,
    )


def _change(event: Event, text: str, partition: int, offset: int) -> tuple[Row, ...]:
    match event:
        case ConversationRenamed():
            kind, value, name, at_ms = "renamed", event.title, "renamed_at_ms", event.renamed_at_ms
        case BranchChosen():
            kind, value, name, at_ms = "branch", event.message_id, "chosen_at_ms", event.chosen_at_ms
        case ConversationDeleted():
            kind, value, name, at_ms = "deleted", "", "deleted_at_ms", event.deleted_at_ms
        case ConversationSummarised():
            kind, value, name, at_ms = "summarised", event.summary, "summarised_at_ms", event.summarised_at_ms
        case _:
            return ()
    row = ConversationRow(
        account_id=event.account_id,
        conversation_id=event.conversation_id,
        kind=kind,
        value=value,
        at=_time(name, at_ms),
        log_partition=partition,
        log_offset=offset,
        event=text,
        version=VERSION_MAX - offset,
    )
    return (row,)


def _usage(event: UsageRecorded, partition: int, offset: int) -> Row:
    revision = _count("revision", event.revision)
    return UsageRow(
        account_id=event.account_id,
        conversation_id=event.conversation_id,
        usage_day=_day(event.usage_day),
        message_id=event.reply_id,
        record_kind=event.record_kind,
        revision=revision,
        status=event.status,
        tier=event.tier,
        pool=event.pool,
        model=event.model,
        attempts=_count("attempts", event.attempts, 2**32 - 1),
        uncached_input_tokens=_count("uncached_input_tokens", event.uncached_input_tokens),
        cache_read_input_tokens=_count("cache_read_input_tokens", event.cache_read_input_tokens),
        cache_write_input_tokens=_count("cache_write_input_tokens", event.cache_write_input_tokens),
        output_tokens=_count("output_tokens", event.output_tokens),
        counted=event.counted,
        cost=_cost(event.cost),
        currency=event.currency,
        price_version=event.price_version,
        ended_at=_time("ended_at_ms", event.ended_at_ms),
        log_partition=partition,
        log_offset=offset,
        version=revision,
    )


def _adjustment(event: UsageAdjusted, partition: int, offset: int) -> Row:
    revision = _count("revision", event.revision)
    return UsageRow(
        account_id=event.account_id,
        conversation_id="",
        usage_day=_day(event.usage_day),
        message_id=event.reply_id,
        record_kind=event.record_kind,
        revision=revision,
        cost=_cost(event.cost),
        currency=event.currency,
        reason=event.reason,
        ended_at=_time("adjusted_at_ms", event.adjusted_at_ms),
        log_partition=partition,
        log_offset=offset,
        version=revision,
    )


def _event(envelope: Envelope[Event]) -> str:
    return hot_encode(envelope).decode()


def _sampling(event: MessageSubmitted | RegenerationRequested) -> str:
    given = {
        "max_output_tokens": event.max_output_tokens,
        "temperature": event.temperature,
        "top_p": event.top_p,
        "seed": event.seed,
        "stop": event.stop or None,
    }
    return to_json({name: value for name, value in given.items() if value is not None}).decode()


def _time(field: str, at_ms: int) -> str:
    if not 0 <= at_ms <= _TIME_MAX_MS:
        raise Unstorable(field, f"not a time: {at_ms}")
    return f"{at_ms // 1000}.{at_ms % 1000:03}"


def _day(text: str) -> str:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = None
    if day is None or day.isoformat() != text or not _DAYS[0] <= day <= _DAYS[1]:
        raise Unstorable("usage_day", f"not a day: {text[:40]!r}")
    return text


def _cost(text: str) -> str:
    try:
        value = Decimal(text)
        stored = value.quantize(_COST_STEP, context=_EXACT) if value.is_finite() and abs(value) < _COST_MAX else None
    except InvalidOperation:
        stored = None
    if stored is None or stored != value:
        raise Unstorable("cost", f"not an amount with at most 26 and 12 digits: {text[:60]!r}")
    return f"{stored:f}"


def _count(field: str, value: int, most: int = _INT_MAX) -> int:
    if not 0 <= value <= most:
        raise Unstorable(field, f"not a count: {value}")
    return value


def _span(field: str, value: int | None) -> int | None:
    if value is not None and not -_INT_MAX <= value <= _INT_MAX:
        raise Unstorable(field, f"out of range: {value}")
    return value
