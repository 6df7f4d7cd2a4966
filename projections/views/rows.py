"""Which rows of the tables an event gives. Pure.

An event whose values no column can hold gives `columns.Unstorable`: its record goes to the dead letters.
"""

from projections.views import columns
from projections.views.columns import Unstorable
from projections.views.tables import (
    ConversationRow,
    GenerationRow,
    InvoiceRow,
    MessageRow,
    ReplyRow,
    Row,
    UsageRow,
    Void,
)
from schemas.codec import Envelope, hot_encode, to_json
from schemas.conversation import derived_title
from schemas.events import (
    BranchChosen,
    ConversationDeleted,
    ConversationRenamed,
    ConversationSummarised,
    Event,
    MessageSubmitted,
    PeriodClosed,
    RegenerationRequested,
    ReplyStored,
    UsageAdjusted,
    UsageRecorded,
)
from schemas.invoice import PERIOD, REVISION_MAX
from schemas.values import InvoiceLine

VERSION_MAX = 2**63 - 1
NO_LINE = InvoiceLine(
    description="",
    usage_period="",
    model="",
    tier="",
    price_version="",
    currency="",
    records=0,
    uncached_input_tokens=0,
    cache_read_input_tokens=0,
    cache_write_input_tokens=0,
    cache_write_long_input_tokens=0,
    output_tokens=0,
    amount="0",
)
PLACES = 2**43
"""Offsets that a version has room for, below each revision."""


def rows(  # noqa: PLR0911 - one return an event
    envelope: Envelope[Event], partition: int, offset: int
) -> tuple[Row, ...]:
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
        case PeriodClosed():
            return _invoice(event, partition, offset)
        case MessageSubmitted():
            return _submission(event, _event(envelope), partition, offset)
        case RegenerationRequested():
            return (_regeneration(event, _event(envelope), partition, offset),)
        case ReplyStored():
            reply = _reply(event, _event(envelope), partition, offset)
            return reply, _generation(event, reply)
        case _:
            return _change(event, _event(envelope), partition, offset)


def _submission(event: MessageSubmitted, text: str, partition: int, offset: int) -> tuple[Row, ...]:
    sampling = _sampling(event)
    submitted_at = columns.time_text("submitted_at_ms", event.submitted_at_ms)
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
        submitted_at=columns.time_text("submitted_at_ms", event.submitted_at_ms),
        log_partition=partition,
        log_offset=offset,
        sub=1,
        event=text,
        version=VERSION_MAX - offset,
    )


def _reply(event: ReplyStored, text: str, partition: int, offset: int) -> ReplyRow:
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
        attempt=columns.count("attempt", event.attempt, columns.SMALL_MAX),
        final_offset=columns.count("final_offset", event.final_offset),
        input_tokens=columns.count("usage.input_tokens", event.usage.input_tokens),
        cached_input_tokens=columns.count("usage.cached_input_tokens", event.usage.cached_input_tokens),
        cache_write_tokens=columns.count("usage.cache_write_tokens", event.usage.cache_write_tokens),
        output_tokens=columns.count("usage.output_tokens", event.usage.output_tokens),
        counted=event.usage.counted,
        queued_ms=columns.span("timings.queued_ms", timings.queued_ms if timings else None),
        first_token_ms=columns.span("timings.first_token_ms", timings.first_token_ms if timings else None),
        total_ms=columns.span("timings.total_ms", timings.total_ms if timings else None),
        error_code=event.error.code if event.error else "",
        error_detail=event.error.detail if event.error else "",
        submitted_at=columns.time_text("submitted_at_ms", event.submitted_at_ms),
        ended_at=columns.time_text("ended_at_ms", event.ended_at_ms),
        void_attempts=_void(event),
        void_details=_said(event),
        log_partition=partition,
        log_offset=offset,
        event=text,
        version=VERSION_MAX - offset,
    )


def _generation(event: ReplyStored, reply: ReplyRow) -> Row:
    usage = event.usage
    return GenerationRow(
        account_id=reply.account_id,
        conversation_id=reply.conversation_id,
        message_id=reply.message_id,
        reply_id=reply.reply_id,
        tier=reply.tier,
        pool=reply.pool,
        model=reply.model,
        status=reply.status,
        attempt=reply.attempt,
        final_offset=reply.final_offset,
        input_tokens=reply.input_tokens,
        cached_input_tokens=reply.cached_input_tokens,
        cache_write_tokens=reply.cache_write_tokens,
        cache_write_long_tokens=columns.count("usage.cache_write_long_tokens", usage.cache_write_long_tokens),
        output_tokens=reply.output_tokens,
        reasoning_tokens=columns.count("usage.reasoning_tokens", usage.reasoning_tokens),
        counted=reply.counted,
        queued_ms=reply.queued_ms,
        first_token_ms=reply.first_token_ms,
        total_ms=reply.total_ms,
        error_code=reply.error_code,
        void_attempts=reply.void_attempts,
        submitted_at=reply.submitted_at,
        ended_at=reply.ended_at,
        log_partition=reply.log_partition,
        log_offset=reply.log_offset,
        version=reply.version,
    )


def _said(event: ReplyStored) -> tuple[str, ...]:
    """Nothing where nothing was said, as of replies that were stored before anything was."""
    said = tuple(void.detail for void in event.void_attempts)
    return said if any(said) else ()


def _void(event: ReplyStored) -> tuple[Void, ...]:
    return tuple(
        Void(columns.count("void_attempts.attempt", void.attempt, columns.SMALL_MAX), void.reason, void.worker)
        for void in event.void_attempts
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
        at=columns.time_text(name, at_ms),
        log_partition=partition,
        log_offset=offset,
        event=text,
        version=VERSION_MAX - offset,
    )
    return (row,)


def _usage(event: UsageRecorded, partition: int, offset: int) -> Row:
    counts = (
        event.revision,
        event.attempts,
        event.uncached_input_tokens,
        event.cache_read_input_tokens,
        event.cache_write_input_tokens,
        event.cache_write_long_input_tokens,
        event.output_tokens,
        event.reasoning_tokens,
        event.queued_ms or 0,
        event.gpu_ms or 0,
    )
    if min(counts) < 0 or max(counts) > columns.INT_MAX or event.attempts > columns.SMALL_MAX:
        for name in UsageRecorded.__struct_fields__:
            value = getattr(event, name)
            if isinstance(value, int):
                columns.count(name, value, columns.SMALL_MAX if name == "attempts" else columns.INT_MAX)
    return UsageRow(
        account_id=event.account_id,
        conversation_id=event.conversation_id,
        usage_day=columns.day(event.usage_day),
        message_id=event.reply_id,
        record_kind=event.record_kind,
        revision=event.revision,
        status=event.status,
        tier=event.tier,
        pool=event.pool,
        model=event.model,
        attempts=event.attempts,
        uncached_input_tokens=event.uncached_input_tokens,
        cache_read_input_tokens=event.cache_read_input_tokens,
        cache_write_input_tokens=event.cache_write_input_tokens,
        cache_write_long_input_tokens=event.cache_write_long_input_tokens,
        output_tokens=event.output_tokens,
        reasoning_tokens=event.reasoning_tokens,
        counted=event.counted,
        charged=event.charged,
        cost=columns.cost(event.cost),
        currency=event.currency,
        price_version=event.price_version,
        queued_ms=event.queued_ms,
        gpu_ms=event.gpu_ms,
        ended_at=columns.time_text("ended_at_ms", event.ended_at_ms),
        log_partition=partition,
        log_offset=offset,
        version=_version(event.revision, offset),
    )


def _adjustment(event: UsageAdjusted, partition: int, offset: int) -> Row:
    return UsageRow(
        account_id=event.account_id,
        usage_day=columns.day(event.usage_day),
        message_id=event.reply_id,
        record_kind=event.record_kind,
        revision=event.revision,
        cost=columns.cost(event.cost),
        currency=event.currency,
        reason=event.reason,
        ended_at=columns.time_text("adjusted_at_ms", event.adjusted_at_ms),
        log_partition=partition,
        log_offset=offset,
        version=_version(event.revision, offset),
    )


def _version(revision: int, offset: int) -> int:
    """The highest revision wins, of equal ones the first in the log: as on bills (`schemas.invoice`, rule 1)."""
    return columns.count("revision", revision, REVISION_MAX) * PLACES + PLACES - 1 - offset


def _invoice(event: PeriodClosed, partition: int, offset: int) -> tuple[Row, ...]:
    """A row a line; of a bill without lines one that says that it is closed (line 0)."""
    closed_at = columns.time_text("closed_at_ms", event.closed_at_ms)
    if not PERIOD.fullmatch(event.period):
        raise Unstorable("period", f"not a month: {event.period[:40]!r}")
    return tuple(
        InvoiceRow(
            account_id=event.account_id,
            period=event.period,
            line=number,
            description=line.description,
            usage_period=line.usage_period,
            model=line.model,
            tier=line.tier,
            price_version=line.price_version,
            currency=line.currency,
            records=line.records,
            uncached_input_tokens=line.uncached_input_tokens,
            cache_read_input_tokens=line.cache_read_input_tokens,
            cache_write_input_tokens=line.cache_write_input_tokens,
            cache_write_long_input_tokens=line.cache_write_long_input_tokens,
            output_tokens=line.output_tokens,
            amount=columns.cost(line.amount),
            closed_at=closed_at,
            log_partition=partition,
            log_offset=offset,
            version=VERSION_MAX - offset,
        )
        for number, line in (enumerate(event.lines, 1) if event.lines else [(0, NO_LINE)])
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
