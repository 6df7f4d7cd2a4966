"""A small world whose every number can be counted by hand: what the analysts' queries are asked about in the tests.

Three accounts send for seven weeks; replies end in every way; records come twice, in other groups, with older
revisions behind newer ones. `World.usage` and `World.replies` are the truth: each record once, as it counts.
"""

import random
from datetime import UTC, datetime
from decimal import Decimal

import msgspec

from projections.clickhouse.client import Database
from projections.views.pace import Pace
from projections.views.step import Batch, ViewsStep
from schemas import events as e
from schemas.examples import AT_MS, EXAMPLES
from schemas.values import Failure, InvoiceLine, Timings, Usage, VoidAttempt
from streams.log.steps import Partition
from tests.projections.logs import arrived

MESSAGES = Partition("messages", 0)
USAGE = Partition("usage", 0)
MONDAY_MS = 1_759_708_800_000
"""2025-10-06T00:00:00Z."""
HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS
ACCOUNTS = {"acme": "paid", "solo": "free", "labs": "paid"}
BEGIN = {"acme": 0, "solo": 1, "labs": 1}
"""Weeks after the first Monday in which each comes for the first time."""
WEEKS = {"acme": (0, 1, 2, 3, 5, 6), "solo": (1, 2, 4), "labs": (1, 2, 3, 4, 5, 6)}
AT_ONCE = Pace(burst=1e9, per_s=1e9, left=1e9)
replace = msgspec.structs.replace


class World(msgspec.Struct, frozen=True):
    """What was written to the log, and what of it counts."""

    messages: tuple[e.Event, ...]
    records: tuple[e.Event, ...]
    replies: tuple[e.ReplyStored, ...]
    usage: tuple[e.UsageRecorded, ...]
    adjustments: tuple[e.UsageAdjusted, ...]
    submitted: tuple[e.MessageSubmitted, ...]
    closed: e.PeriodClosed


def day(at_ms: int) -> str:
    """Of a time, UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d")


def _reply(rng: random.Random, sent: e.MessageSubmitted, reply_id: str, at_ms: int) -> e.ReplyStored:
    status = rng.choices(["completed", "length", "cancelled", "failed", "refused"], [60, 8, 16, 10, 6])[0]
    output = (
        0
        if status == "refused"
        else rng.choice([0, 5, 40, 250, 1500])
        if status == "cancelled"
        else rng.randint(2, 400)
    )
    cached = rng.choice([0, 0, 64, 512])
    read = 0 if status == "refused" else cached + rng.randint(10, 900)
    queued = rng.randint(0, 900)
    first = queued + rng.randint(20, 600) if output else None
    total = (first or queued) + output * rng.randint(4, 30)
    voids = (VoidAttempt(attempt=1, reason=rng.choice(["worker_lost", "engine_dead"]), worker="w-1"),)
    return replace(
        EXAMPLES[e.ReplyStored],
        conversation_id=sent.conversation_id,
        reply_id=reply_id,
        message_id=sent.message_id,
        account_id=sent.account_id,
        tier=sent.tier,
        pool=rng.choice(["default", "large"]),
        model=rng.choice(["small", "large"]),
        status=status,
        text=f"text of {reply_id}",
        attempt=2 if rng.random() < 0.15 else 1,
        final_offset=output + 2,
        usage=Usage(
            input_tokens=read,
            output_tokens=output,
            cached_input_tokens=min(cached, read),
            cache_write_tokens=3 if read else 0,
            counted=status != "failed",
        ),
        submitted_at_ms=at_ms,
        ended_at_ms=at_ms + total,
        timings=None if status == "refused" else Timings(queued_ms=queued, first_token_ms=first, total_ms=total),
        error=Failure(code=rng.choice(["engine_failed", "timeout"]), detail="…")
        if status == "failed"
        else Failure(code="high_demand", detail="…")
        if status == "refused"
        else None,
        void_attempts=voids,
    )


def _usage(reply: e.ReplyStored, revision: int = 1) -> e.UsageRecorded:
    used, charged = reply.usage, reply.status != "failed"
    cost = Decimal(used.input_tokens + 4 * used.output_tokens) / 10**7 if charged else Decimal(0)
    timings = reply.timings
    return replace(
        EXAMPLES[e.UsageRecorded],
        account_id=reply.account_id,
        reply_id=reply.reply_id,
        conversation_id=reply.conversation_id,
        record_kind="reply",
        revision=revision,
        usage_day=day(reply.ended_at_ms),
        status=reply.status,
        tier=reply.tier,
        pool=reply.pool,
        model=reply.model,
        attempts=reply.attempt,
        uncached_input_tokens=used.input_tokens - used.cached_input_tokens - used.cache_write_tokens,
        cache_read_input_tokens=used.cached_input_tokens,
        cache_write_input_tokens=used.cache_write_tokens,
        output_tokens=used.output_tokens,
        counted=used.counted,
        charged=charged,
        cost=f"{cost:f}",
        price_version="2025-10" if day(reply.ended_at_ms) < "2025-11-01" else "2025-11",
        ended_at_ms=reply.ended_at_ms,
        queued_ms=timings.queued_ms if timings else None,
        gpu_ms=timings.total_ms - timings.queued_ms if timings else None,
    )


def _void_usage(reply: e.ReplyStored, void: VoidAttempt) -> e.UsageRecorded:
    """Of an attempt that came to nothing."""
    return replace(
        _usage(reply),
        record_kind=f"attempt-{void.attempt}",
        status="failed",
        attempts=void.attempt,
        uncached_input_tokens=0,
        cache_read_input_tokens=0,
        cache_write_input_tokens=0,
        output_tokens=7,
        counted=False,
        charged=False,
        cost="0",
        gpu_ms=None,
    )


def world(seed: int = 7) -> World:
    """The same for the same seed."""
    rng = random.Random(seed)
    messages: list[e.Event] = []
    records: list[e.Event] = []
    replies: list[e.ReplyStored] = []
    usage: list[e.UsageRecorded] = []
    submitted: list[e.MessageSubmitted] = []
    for account_id, tier in ACCOUNTS.items():
        for week in WEEKS[account_id]:
            for number in range(rng.randint(2, 7)):
                at_ms = MONDAY_MS + week * WEEK_MS + rng.randrange(WEEK_MS - HOUR_MS)
                name = f"{account_id}_{week}_{number}"
                fresh = number < 2 or rng.random() < 0.5
                conversation = f"conv_{name}" if fresh else f"conv_{account_id}_{week}_0"
                sent = replace(
                    EXAMPLES[e.MessageSubmitted],
                    account_id=account_id,
                    tier=tier,
                    conversation_id=conversation,
                    message_id=f"msg_{name}",
                    reply_id=f"rep_{name}_0",
                    client_message_id=name,
                    content=f"question {name}",
                    submitted_at_ms=at_ms,
                    new_conversation=fresh,
                )
                submitted.append(sent)
                messages.append(sent)
                for again in range(1 + (rng.random() < 0.2)):
                    reply = _reply(rng, sent, f"rep_{name}_{again}", at_ms + 60_000 * again)
                    if reply.attempt == 1:
                        reply = replace(reply, void_attempts=())
                    if again:
                        messages.append(
                            replace(
                                EXAMPLES[e.RegenerationRequested],
                                account_id=account_id,
                                tier=tier,
                                conversation_id=conversation,
                                reply_id=reply.reply_id,
                                regenerated_id=f"rep_{name}_0",
                                client_message_id=f"{name}+",
                                submitted_at_ms=reply.submitted_at_ms,
                            )
                        )
                    messages.append(reply)
                    replies.append(reply)
                    revision = 2 if rng.random() < 0.2 else 1
                    record = _usage(reply, revision)
                    usage.append(record)
                    records.append(record)
                    if revision == 2:
                        records.append(replace(record, revision=1, model="other", tier="free", output_tokens=99_999))
                    for void in reply.void_attempts:
                        usage.append(_void_usage(reply, void))
                        records.append(usage[-1])
    adjustments = tuple(
        replace(
            EXAMPLES[e.UsageAdjusted],
            account_id=record.account_id,
            reply_id=record.reply_id,
            record_kind="refund-1",
            usage_day=record.usage_day,
            cost=f"-{record.cost}",
            adjusted_at_ms=record.ended_at_ms + 5 * 24 * HOUR_MS,
        )
        for record in [one for one in usage if Decimal(one.cost) > 0][::9]
    )
    closed = replace(
        EXAMPLES[e.PeriodClosed],
        account_id="acme",
        period="2025-10",
        lines=tuple(
            replace(_line(), model=model, amount=amount) for model, amount in (("small", "0.0123"), ("large", "1.5"))
        ),
    )
    records += [*adjustments, closed]
    return World(tuple(messages), tuple(records), tuple(replies), tuple(usage), adjustments, tuple(submitted), closed)


def _line() -> InvoiceLine:
    return EXAMPLES[e.PeriodClosed].lines[0]


def fill(database: Database, told: World) -> None:
    """Write the world as a projection would that is killed, started anew, and reads in other batches."""
    for size in (7, 50):
        for partition, events in ((MESSAGES, told.messages), (USAGE, told.records)):
            step = ViewsStep(database, Batch(), AT_ONCE)
            step.assigned({partition: 0})
            for first in range(0, len(events), size):
                step.submit(arrived(events[first : first + size], partition, first), AT_MS)
                step.poll(AT_MS)
                assert not step.trouble, step.trouble
