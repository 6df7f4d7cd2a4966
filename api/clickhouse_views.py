"""The views on ClickHouse. The only module of the API that imports clickhouse_connect.

Every query names the account, which is the first column of each table's sort key, so `FINAL` reads little.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import clickhouse_connect
import structlog
from clickhouse_connect.driver.exceptions import ClickHouseError

from api import bill_rows as bills
from api.bill_queries import LINES, RECORDS_OF, SUMS
from api.clickhouse_queries import (
    CONVERSATION,
    CONVERSATIONS,
    FIRST_USE,
    HEADS,
    PROGRESS,
    RECORD_COLUMNS,
    RECORDS,
    REPLY,
    TOTAL_COLUMNS,
    events_between,
    totals,
)
from api.metrics import Metrics
from api.stores import ConversationHead, FirstUse, OwnConversation, Placed, StoreDown, UsageQuery
from schemas.codec import Undecodable, hot_decode
from schemas.events import Event, ReplyStored
from schemas.invoice import Amounts, Bill, Heading

log = structlog.get_logger()

TIMEOUT_S = 5.0
CONNECTIONS_MAX = 16


class ClickHouseViews:
    """See `Views`. Connects at the first question, and again after a failure."""

    def __init__(self, url: str, database: str, metrics: Metrics) -> None:
        self._url = url
        self._database = database
        self._metrics = metrics
        self._client: Any = None
        self._connecting = asyncio.Lock()

    async def conversation_events(self, account_id: str, conversation_id: str) -> tuple[tuple[int, Event], ...]:
        rows = await self._rows(CONVERSATION, {"account": account_id, "conversation": conversation_id})
        events = ((offset, _event(event, conversation_id)) for offset, event in rows)
        return tuple((offset, event) for offset, event in events if event is not None)

    async def stored_reply(self, account_id: str, conversation_id: str, reply_id: str) -> ReplyStored | None:
        names = {"account": account_id, "conversation": conversation_id, "reply": reply_id}
        rows = await self._rows(REPLY, names)
        event = hot_decode(rows[0][0].encode()) if rows else None
        return event if isinstance(event, ReplyStored) else None

    async def first_use(self, account_id: str, client_message_id: str) -> FirstUse | None:
        rows = await self._rows(FIRST_USE, {"account": account_id, "client": client_message_id})
        return FirstUse(digest=rows[0][0]) if rows else None

    async def conversations(
        self, account_id: str, before: tuple[int, str] | None, limit: int
    ) -> tuple[ConversationHead, ...]:
        at_ms, conversation_id = before or (2**62, "")
        names = {"account": account_id, "at": at_ms, "id": conversation_id, "limit": limit}
        return tuple(_head(row) for row in await self._rows(CONVERSATIONS, names))

    async def conversation_heads(
        self, account_id: str, conversation_ids: Sequence[str]
    ) -> tuple[ConversationHead, ...]:
        if not conversation_ids:
            return ()
        names = {"account": account_id, "ids": list(conversation_ids)}
        return tuple(_head(row) for row in await self._rows(HEADS, names))

    async def progress(self) -> Mapping[int, int]:
        return dict(await self._rows(PROGRESS, {}))

    async def events_between(
        self, conversations: Sequence[OwnConversation], ranges: Mapping[int, tuple[int, int]]
    ) -> tuple[Placed, ...]:
        if not conversations or not ranges:
            return ()
        wanted = frozenset(conversations)
        names: dict[str, Any] = {
            "accounts": list({account_id for account_id, _ in conversations}),
            "conversations": [conversation_id for _, conversation_id in conversations],
        }
        for number, (partition, (first, behind)) in enumerate(ranges.items()):
            names |= {f"p{number}": partition, f"from{number}": first, f"to{number}": behind}
        placed: list[Placed] = []
        for account_id, conversation_id, offset, text in await self._rows(events_between(len(ranges)), names):
            event = _event(text, conversation_id)
            if event is not None and (account_id, conversation_id) in wanted:
                placed.append(Placed((account_id, conversation_id), offset, event))
        return tuple(placed)

    async def usage_totals(self, account_id: str, query: UsageQuery) -> tuple[dict[str, Any], ...]:
        names = {"account": account_id, "from": query.from_day, "to": query.to_day}
        rows = await self._rows(totals(query.group_by), names)
        return tuple(dict(zip(TOTAL_COLUMNS, row, strict=True)) for row in rows)

    async def bill_sums(self, account_id: str) -> Mapping[Heading, Amounts]:
        return bills.sums(await self._rows(SUMS, {"account": account_id}))

    async def closed_bills(self, account_id: str) -> tuple[Bill, ...]:
        return bills.closed_bills(await self._rows(LINES, {"account": account_id}))

    async def records_of(self, account_id: str, reply_id: str) -> tuple[dict[str, Any], ...]:
        rows = await self._rows(RECORDS_OF, {"account": account_id, "reply": reply_id})
        names = ("record_kind", "usage_day", "currency", "cost", "reason")
        return tuple(dict(zip(names, row, strict=True)) for row in rows)

    async def usage_records(
        self, account_id: str, query: UsageQuery, after: tuple[str, str, str] | None, limit: int
    ) -> tuple[dict[str, Any], ...]:
        day, message_id, kind = after or ("0000-00-00", "", "")
        names = {
            "account": account_id,
            "from": query.from_day,
            "to": query.to_day,
            "day": day,
            "message": message_id,
            "kind": kind,
            "limit": limit,
        }
        return tuple(dict(zip(RECORD_COLUMNS, row, strict=True)) for row in await self._rows(RECORDS, names))

    async def ping(self) -> None:
        await self._rows("SELECT 1", {})

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _rows(self, sql: str, names: Mapping[str, Any]) -> list[Any]:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                client = self._client or await self._connected()
                result = await client.query(sql, parameters=dict(names))
                rows: list[Any] = result.result_rows
                return rows
        except (ClickHouseError, aiohttp.ClientError, OSError, TimeoutError) as error:
            self._metrics.store_failures.labels("clickhouse").inc()
            raise StoreDown("clickhouse", _first_line(error)) from error

    async def _connected(self) -> Any:
        async with self._connecting:
            if self._client is None:
                self._client = await clickhouse_connect.create_async_client(
                    dsn=self._url,
                    database=self._database,
                    connector_limit=CONNECTIONS_MAX,
                    connector_limit_per_host=CONNECTIONS_MAX,
                    connect_timeout=int(TIMEOUT_S),
                    send_receive_timeout=int(TIMEOUT_S),
                    query_retries=1,
                    autogenerate_session_id=False,
                )
        return self._client


def _event(text: str, conversation_id: str) -> Event | None:
    try:
        return hot_decode(text.encode())
    except Undecodable as error:
        log.warning("row of a conversation cannot be read", conversation_id=conversation_id, reason=str(error))
        return None


def _head(row: Sequence[Any]) -> ConversationHead:
    return ConversationHead(id=row[0], title=row[1], created_at_ms=row[2], updated_at_ms=row[3])


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return re.split(r"[\r\n]", text, maxsplit=1)[0][:300]
