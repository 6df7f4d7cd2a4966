"""One contract for the views: in memory, and on a real ClickHouse filled with the projection's rows."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from api.clickhouse_views import ClickHouseViews
from api.memory_views import MemoryViews
from api.metrics import Metrics
from api.stores import StoreDown, UsageQuery, Views
from projections.clickhouse import migrations
from projections.clickhouse.client import Database
from projections.views.rows import rows
from projections.views.tables import PROGRESS, TABLES, Progress
from schemas.codec import Envelope
from schemas.events import (
    ConversationDeleted,
    ConversationRenamed,
    Event,
    MessageSubmitted,
    RegenerationRequested,
    ReplyStored,
    UsageRecorded,
)
from schemas.invoice import adjustment
from schemas.values import Failure, Usage, VoidAttempt

WHEN_MS = 1_796_000_000_000


@dataclass
class Filled:
    """Views, and the hand of their projection."""

    views: Views
    write: Callable[[int, Event], Any]


@pytest.fixture(params=["memory", pytest.param("clickhouse", marks=pytest.mark.servers)])
async def filled(request: pytest.FixtureRequest) -> AsyncIterator[Filled]:
    if request.param == "memory":
        memory = MemoryViews()

        async def keep(offset: int, event: Event) -> None:
            memory.write(offset, event)

        yield Filled(memory, keep)
        return
    deployment = request.getfixturevalue("deployment")
    migrations.apply(deployment.clickhouse_url, deployment.database)
    database = Database(deployment.clickhouse_url, deployment.database)
    views = ClickHouseViews(deployment.clickhouse_url, deployment.database, Metrics())

    async def insert(offset: int, event: Event) -> None:
        for row in rows(Envelope(event=event, source="t"), 0, offset):
            for _ in range(2):
                await asyncio.to_thread(database.insert, TABLES[type(row)], [row])
        told = Progress(topic="messages", log_partition=0, next_offset=offset + 1)
        await asyncio.to_thread(database.insert, PROGRESS, [told])

    yield Filled(views, insert)
    await views.close()


def submitted(n: int, conversation: str = "conv_1", account: str = "a", **members: Any) -> MessageSubmitted:
    return MessageSubmitted(
        conversation_id=conversation,
        message_id=f"msg_{n}",
        reply_id=f"rep_{n}",
        account_id=account,
        tier="paid",
        content=members.pop("content", f"text {n} 🦜\n\u2028\\'\""),
        body_digest=f"digest-{n}",
        submitted_at_ms=WHEN_MS + n,
        new_conversation=members.pop("new", False),
        client_message_id=f"client-{n}",
        **members,
    )


def stored(n: int, conversation: str = "conv_1") -> ReplyStored:
    return ReplyStored(
        conversation_id=conversation,
        reply_id=f"rep_{n}",
        message_id=f"msg_{n}",
        account_id="a",
        tier="paid",
        pool="default",
        model="m",
        status="completed",
        text="answer",
        attempt=2,
        final_offset=4,
        usage=Usage(input_tokens=3, output_tokens=2),
        submitted_at_ms=WHEN_MS + n,
        ended_at_ms=WHEN_MS + n + 500,
        error=Failure(code="c", detail="d", retry_after_s=3),
        void_attempts=(VoidAttempt(attempt=1, reason="worker_lost", worker="w"),),
    )


def used(n: int, day: str = "2026-11-29", account: str = "a", **members: Any) -> UsageRecorded:
    return UsageRecorded(
        account_id=account,
        reply_id=f"rep_{n}",
        conversation_id=f"conv_{n % 2}",
        record_kind="reply",
        revision=members.pop("revision", 1),
        usage_day=day,
        status="completed",
        tier="paid",
        pool="default",
        model=members.pop("model", "m"),
        attempts=1,
        uncached_input_tokens=10,
        cache_read_input_tokens=2,
        cache_write_input_tokens=1,
        output_tokens=n,
        counted=True,
        cost=members.pop("cost", "0.000000000001"),
        currency="USD",
        price_version="v",
        ended_at_ms=WHEN_MS + n,
        **members,
    )


async def test_a_conversations_events_come_in_the_order_of_the_log(filled: Filled) -> None:
    events: list[tuple[int, Event]] = [
        (3, submitted(1, new=True)),
        (5, stored(1)),
        (6, submitted(2, parent_id="rep_1", seed=5, stop=("x",), system="s")),
        (
            8,
            RegenerationRequested(
                conversation_id="conv_1",
                reply_id="rep_9",
                regenerated_id="rep_1",
                account_id="a",
                tier="paid",
                body_digest="d",
                submitted_at_ms=WHEN_MS,
            ),
        ),
        (
            9,
            ConversationRenamed(
                conversation_id="conv_1", account_id="a", title="T", renamed_at_ms=WHEN_MS, request_id="r"
            ),
        ),
    ]
    for offset, event in reversed(events):
        await filled.write(offset, event)
    await filled.write(4, submitted(1, conversation="conv_2", new=True))
    assert await filled.views.conversation_events("a", "conv_1") == tuple(events)
    assert await filled.views.conversation_events("b", "conv_1") == ()
    assert await filled.views.stored_reply("a", "conv_1", "rep_1") == stored(1)
    assert await filled.views.stored_reply("a", "conv_1", "rep_2") is None
    assert await filled.views.stored_reply("b", "conv_1", "rep_1") is None


async def test_what_is_between_two_offsets_is_found_for_the_conversations_that_are_asked_for(filled: Filled) -> None:
    assert await filled.views.progress() == {}
    assert await filled.views.events_between([("a", "conv_1")], {}) == ()
    for n in range(1, 7):
        await filled.write(n, submitted(n, conversation=f"conv_{n % 3}", account="b" if n % 3 == 2 else "a"))
    await filled.write(7, stored(1))
    await filled.write(3, submitted(3, conversation="conv_0"))
    assert await filled.views.progress() == {0: 8}
    asked = [("a", "conv_1"), ("a", "conv_2"), ("a", "conv_0")]

    async def found(first: int, behind: int) -> dict[tuple[str, str], list[int]]:
        places: dict[tuple[str, str], list[int]] = {}
        for one in await filled.views.events_between(asked, {0: (first, behind), 5: (0, 100)}):
            offsets = places.setdefault(one.conversation, [])
            if one.offset not in offsets:
                offsets.append(one.offset)
        return places

    assert await found(0, 8) == {("a", "conv_1"): [1, 4, 7], ("a", "conv_0"): [3, 6]}
    assert await found(4, 7) == {("a", "conv_1"): [4], ("a", "conv_0"): [6]}
    assert await found(8, 8) == {}
    (last, *_) = await filled.views.events_between([("a", "conv_1")], {0: (7, 8)})
    assert last.event == stored(1)


async def test_the_first_use_of_a_client_id_is_known_per_account(filled: Filled) -> None:
    await filled.write(1, submitted(1, new=True))
    first = await filled.views.first_use("a", "client-1")
    assert first is not None
    assert first.digest == "digest-1"
    assert await filled.views.first_use("b", "client-1") is None
    assert await filled.views.first_use("a", "client-2") is None


async def test_conversations_are_listed_newest_first_in_pages(filled: Filled) -> None:
    for n in range(5):
        await filled.write(n * 10, submitted(n * 1000, conversation=f"conv_{n}", new=True, content=f"title {n}"))
    await filled.write(2, submitted(9000, conversation="conv_0"))
    renamed = ConversationRenamed(
        conversation_id="conv_1", account_id="a", title="named", renamed_at_ms=WHEN_MS + 1500, request_id="r"
    )
    await filled.write(11, renamed)
    await filled.write(90, submitted(1, conversation="conv_x", account="b", new=True))
    first = await filled.views.conversations("a", None, 2)
    assert [head.id for head in first] == ["conv_0", "conv_4"]
    assert first[0].updated_at_ms == WHEN_MS + 9000
    last = first[-1]
    rest = await filled.views.conversations("a", (last.updated_at_ms, last.id), 10)
    assert [(head.id, head.title) for head in rest] == [
        ("conv_3", "title 3"),
        ("conv_2", "title 2"),
        ("conv_1", "named"),
    ]
    heads = await filled.views.conversation_heads("a", ("conv_1", "conv_x", "nothing"))
    assert [(head.id, head.created_at_ms) for head in heads] == [("conv_1", WHEN_MS + 1000)]
    assert await filled.views.conversation_heads("a", ()) == ()
    deleted = ConversationDeleted(conversation_id="conv_4", account_id="a", deleted_at_ms=WHEN_MS + 99_000)
    await filled.write(41, deleted)
    assert "conv_4" not in [head.id for head in await filled.views.conversations("a", None, 10)]


async def test_what_is_listed_is_what_is_totalled(filled: Filled) -> None:
    for n in range(1, 6):
        await filled.write(n, used(n, day=f"2026-11-2{n}"))
    await filled.write(9, used(5, day="2026-11-25", revision=2, cost="1.5", model="other"))
    await filled.write(10, used(7, account="b"))
    query = UsageQuery(from_day="2026-11-22", to_day="2026-11-25")
    (total,) = await filled.views.usage_totals("a", query)
    listed: list[dict[str, Any]] = []
    place: tuple[str, str, str] | None = None
    while page := await filled.views.usage_records("a", query, place, 3):
        listed += page
        place = (page[-1]["usage_day"], page[-1]["message_id"], page[-1]["record_kind"])
    assert [record["message_id"] for record in listed] == ["rep_2", "rep_3", "rep_4", "rep_5"]
    assert total["replies"] == 4
    assert total["output_tokens"] == sum(record["output_tokens"] for record in listed) == 14
    assert total["cost"].rstrip("0") == "1.500000000003"
    assert listed[0]["ended_at_ms"] == WHEN_MS + 2
    by_model = await filled.views.usage_totals(
        "a", UsageQuery(from_day="2026-11-22", to_day="2026-11-25", group_by="model")
    )
    assert [(row["group"], row["output_tokens"]) for row in by_model] == [("m", 9), ("other", 5)]
    by_day = await filled.views.usage_totals(
        "a", UsageQuery(from_day="2026-11-01", to_day="2026-11-30", group_by="day")
    )
    assert [row["group"] for row in by_day] == [f"2026-11-2{n}" for n in range(1, 6)]
    by_conversation = await filled.views.usage_totals(
        "a", UsageQuery(from_day="0001-01-01", to_day="9999-12-31", group_by="conversation")
    )
    assert [row["group"] for row in by_conversation] == ["conv_0", "conv_1"]


async def test_replies_are_counted_and_no_corrections_or_attempts(filled: Filled) -> None:
    for n in (1, 2):
        await filled.write(n, used(n))
    void = msgspec.structs.replace(used(3, charged=False, cost="0"), record_kind="attempt-1", status="failed")
    await filled.write(3, void)
    # The attempt of a reply that has not ended yet, and refunds: of a reply, and of one on another day.
    await filled.write(4, msgspec.structs.replace(void, reply_id="rep_1"))
    for n, (reply, day) in enumerate((("rep_1", "2026-11-29"), ("rep_9", "2026-11-28"))):
        refund = adjustment(
            account_id="a",
            reply_id=reply,
            usage_day=day,
            currency="USD",
            adjustment_id="one",
            amount="-0.000000000001",
            reason="It was empty.",
            now_ms=WHEN_MS,
        )
        await filled.write(5 + n, refund)

    async def replies(group_by: Any) -> dict[str, int]:
        query = UsageQuery(from_day="2026-11-01", to_day="2026-11-30", group_by=group_by)
        return {row["group"]: row["replies"] for row in await filled.views.usage_totals("a", query)}

    assert await replies(None) == {"": 2}
    assert await replies("day") == {"2026-11-28": 0, "2026-11-29": 2}
    assert await replies("model") == {"": 0, "m": 2}
    assert await replies("conversation") == {"": 0, "conv_0": 1, "conv_1": 1}
    (total,) = await filled.views.usage_totals("a", UsageQuery(from_day="2026-11-01", to_day="2026-11-30"))
    assert Decimal(total["cost"]) == 0
    listed = await filled.views.usage_records(
        "a", UsageQuery(from_day="2026-11-01", to_day="2026-11-30"), None, limit=100
    )
    kinds = [row["record_kind"] for row in listed]
    assert kinds == ["adjustment-one", "adjustment-one", "attempt-1", "reply", "reply", "attempt-1"]


async def test_views_that_are_not_there_are_down_and_nothing_else() -> None:
    views = ClickHouseViews("http://127.0.0.1:1", "x", Metrics())
    with pytest.raises(StoreDown):
        await views.ping()
    await views.close()
