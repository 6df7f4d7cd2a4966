"""The hot store on Redis. The only module of the API that imports redis.

Commands are pipelined without MULTI and each names keys of one account, conversation or reply only. What each send asks
goes over one connection (`api.redis_calls`). Keys:

    <ns>:limits:{<tag>}…                    buckets and reservations, see schemas/tiers/limits.lua
    <ns>:{limits}:whole                     name of the store, while its buckets are whole
    <ns>:claim:<account>:<client id>        "<digest>" while a send is on its way, "<digest>+" once it is in the log
    <ns>:claims-since                       since when claims are complete, ms; 0: since the first message
    <ns>:deleted:<conversation>             the conversation is gone
    <ns>:hot:<conversation>                 list of "<offset> <event>", what was written lately
    <ns>:hot-conversations:<account>        sorted set of conversations by time of the last write, ms
    <ns>:keys-used:<account>                hash of key id -> when it was last used, ms
    <ns>:{<reply>}:frames, :head            the stream buffer, written by its projection
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from api.limits import Demand, Looked, Reserved, bucket_words, confirm_words, looked, outcome, reserve_words
from api.metrics import Metrics
from api.redis_calls import RedisCalls
from api.redis_pages import Question, RedisPages
from api.redis_scripts import UNCLAIM
from api.redis_wire import ReplyError, packed
from api.stores import Claim, Entry, HotConversation, Live, Page, PageLimit, StoreDown
from api.tails import END_MARK
from schemas.codec import Envelope, hot_decode, hot_encode
from schemas.events import Event
from schemas.tiers import Bucket, Holder
from schemas.tiers.library import CONFIRM, LOOK, RELEASE, RESERVE, SOURCE, marker_keys

CONNECTIONS_MAX = 16
LINE_S = 10.0
"""So long a call waits for a free connection: a burst is slow and not told that Redis is down."""
TIMEOUT_S = 2.0
CLAIM_S = 24 * 3600
HOT_S = 120
HOT_EVENTS_MAX = 500
HOT_CONVERSATIONS_MAX = 100
DELETED_S = 2 * 3600
KEYS_USED_S = 400 * 24 * 3600

APPENDED = "+"
"""Ends a claim whose message is in the log."""


class RedisStore:
    """See `HotStore`."""

    def __init__(self, url: str, namespace: str, metrics: Metrics) -> None:
        self._ns = namespace
        self._metrics = metrics
        pool = redis.BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS_MAX,
            timeout=LINE_S,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 1),
        )
        self._redis: redis.Redis = redis.Redis(connection_pool=pool)
        self._pool = pool
        self._pages = RedisPages(url)
        self._calls = RedisCalls(url)
        self._whole = packed(b"GET", marker_keys(namespace)[1])

    async def enter(self, demand: Demand, claim: Claim | None) -> Entry:
        commands = [self._reservation(demand), packed(b"EXISTS", self._key("deleted", demand.conversation_id).encode())]
        count = 4
        if claim is not None:
            key = self._claim(demand.holder.account_id, claim).encode()
            commands.append(packed(b"GET", self._key("claims-since").encode()))
            commands.append(packed(b"SET", key, claim.digest.encode(), b"NX", b"GET", b"EX", b"%d" % CLAIM_S))
            count = 6
        answers = await self._ask(b"".join(commands), count)
        claimed = since = None
        if claim is not None:
            since, claimed = answers[4], answers[5]
        return Entry(
            reserved=await self._reserved(demand, answers),
            deleted=bool(answers[3]),
            claimed=claimed.decode() if claimed is not None else None,
            claims_since_ms=int(since) if since is not None else None,
        )

    async def reserve(self, demand: Demand) -> Reserved:
        return await self._reserved(demand, await self._ask(self._reservation(demand), 3))

    async def release(self, holder: Holder, reply_id: str) -> None:
        await self._function(RELEASE, holder, [reply_id.encode()])

    async def look(self, holder: Holder, buckets: Sequence[Bucket], running_max: int) -> Looked | None:
        answer = await self._function(LOOK, holder, bucket_words(buckets))
        (name,) = await self._ask(self._whole, 1)
        return looked(answer, buckets, running_max) if name is not None else None

    async def unclaim(self, account_id: str, claim: Claim) -> None:
        pipe = self._redis.pipeline(transaction=False)
        pipe.eval(UNCLAIM, 1, self._claim(account_id, claim), claim.digest)
        await self._execute(pipe)

    async def claims_begin(self, since_ms: int) -> None:
        async with self._answered():
            await self._redis.set(self._key("claims-since"), since_ms, nx=True)

    async def remember(
        self,
        account_id: str,
        conversation_id: str,
        events: Sequence[tuple[int, Event]],
        now_ms: int,
        claim: Claim | None = None,
        confirmed: Demand | None = None,
    ) -> None:
        hot = self._key("hot", conversation_id).encode()
        listed = self._key("hot-conversations", account_id).encode()
        commands = [
            packed(b"RPUSH", hot, *(_written(offset, event) for offset, event in events)),
            packed(b"LTRIM", hot, b"%d" % -HOT_EVENTS_MAX, b"-1"),
            packed(b"EXPIRE", hot, b"%d" % HOT_S),
            packed(b"ZADD", listed, b"%d" % now_ms, conversation_id.encode()),
            packed(b"ZREMRANGEBYRANK", listed, b"0", b"%d" % (-HOT_CONVERSATIONS_MAX - 1)),
            packed(b"EXPIRE", listed, b"%d" % HOT_S),
        ]
        if claim is not None:
            words = (
                self._claim(account_id, claim).encode(),
                (claim.digest + APPENDED).encode(),
                b"EX",
                b"%d" % CLAIM_S,
            )
            commands.append(packed(b"SET", *words))
        if confirmed is not None:
            commands.append(self._fcall(CONFIRM, confirmed.holder, confirm_words(confirmed)))
        await self._ask(b"".join(commands), len(commands))

    async def recent(self, conversation_id: str) -> HotConversation:
        return (await self._recent([conversation_id]))[conversation_id]

    async def recent_conversations(self, account_id: str) -> dict[str, HotConversation]:
        async with self._answered():
            listed: Any = await self._redis.zrevrange(self._key("hot-conversations", account_id), 0, -1)
        return await self._recent([conversation_id.decode() for conversation_id in listed])

    async def _recent(self, conversation_ids: Sequence[str]) -> dict[str, HotConversation]:
        if not conversation_ids:
            return {}
        pipe = self._redis.pipeline(transaction=False)
        for conversation_id in conversation_ids:
            pipe.exists(self._key("deleted", conversation_id))
            pipe.lrange(self._key("hot", conversation_id), 0, -1)
        answers = await self._execute(pipe)
        return {
            conversation_id: HotConversation(deleted=bool(deleted), events=_read(entries))
            for conversation_id, deleted, entries in zip(conversation_ids, answers[::2], answers[1::2], strict=True)
        }

    async def mark_deleted(self, conversation_id: str, *, deleted: bool) -> None:
        key = self._key("deleted", conversation_id)
        async with self._answered():
            await (self._redis.set(key, 1, ex=DELETED_S) if deleted else self._redis.delete(key))

    async def page(self, reply_id: str, conversation_id: str, after: int, limit: PageLimit) -> Page:
        question = Question(
            self._key("deleted", conversation_id),
            self._stream(reply_id, "frames"),
            self._stream(reply_id, "head"),
            after,
            limit.frames,
            limit.bytes,
        )
        try:
            deleted, (newest, last, frames, status) = await self._pages.ask(question)
        except StoreDown:
            self._metrics.store_failures.labels("redis").inc()
            raise
        return Page(
            frames=tuple(frames),
            newest=newest,
            ended=last is not None and END_MARK in last,
            cut=status == b"cut",
            deleted=bool(deleted),
            opened=status is not None,
        )

    async def live(self, reply_ids: Sequence[str]) -> tuple[Live, ...]:
        if not reply_ids:
            return ()
        pipe = self._redis.pipeline(transaction=False)
        for reply_id in reply_ids:
            pipe.hgetall(self._stream(reply_id, "head"))
            pipe.lrange(self._stream(reply_id, "frames"), 0, -1)
        answers = await self._execute(pipe)
        return tuple(
            Live({name.decode(): value.decode() for name, value in head.items()}, tuple(frames))
            for head, frames in zip(answers[::2], answers[1::2], strict=True)
        )

    async def note_keys(self, used: Mapping[str, Mapping[str, int]]) -> None:
        pipe = self._redis.pipeline(transaction=False)
        for account_id, keys in used.items():
            key = self._key("keys-used", account_id)
            fields: dict[Any, Any] = dict(keys)
            pipe.hset(key, mapping=fields)
            pipe.expire(key, KEYS_USED_S)
        await self._execute(pipe)

    async def keys_used(self, account_id: str) -> dict[str, int]:
        async with self._answered():
            used: Any = await self._redis.hgetall(self._key("keys-used", account_id))
        return {key_id.decode(): int(at_ms) for key_id, at_ms in used.items()}

    async def ping(self) -> None:
        async with self._answered():
            await self._redis.ping()

    async def close(self) -> None:
        await self._calls.close()
        await self._pages.close()
        await self._redis.aclose()
        await self._pool.aclose()

    def _reservation(self, demand: Demand) -> bytes:
        """Between two looks at whether the buckets are whole: if it was one store, its answer counts."""
        return self._whole + self._fcall(RESERVE, demand.holder, reserve_words(demand)) + self._whole

    async def _reserved(self, demand: Demand, answers: Sequence[Any]) -> Reserved:
        before, answer, after = answers[:3]
        if _is_missing(answer):
            await self._load()
            before, answer, after = await self._ask(self._reservation(demand), 3)
        whole = before is not None and before == after
        return Reserved(whole, outcome(self._good(answer), demand))

    async def _function(self, name: bytes, holder: Holder, words: Sequence[bytes]) -> Any:
        (answer,) = await self._ask(self._fcall(name, holder, words), 1)
        if _is_missing(answer):
            await self._load()
            (answer,) = await self._ask(self._fcall(name, holder, words), 1)
        return self._good(answer)

    async def _load(self) -> None:
        (answer,) = await self._calls.ask(packed(b"FUNCTION", b"LOAD", SOURCE.encode()), 1)
        if isinstance(answer, ReplyError) and "already exists" not in str(answer):
            self._good(answer)

    def _fcall(self, name: bytes, holder: Holder, words: Sequence[bytes]) -> bytes:
        return packed(b"FCALL", name, b"2", *holder.keys(self._ns), *words)

    async def _ask(self, commands: bytes, count: int) -> list[Any]:
        try:
            answers = await self._calls.ask(commands, count)
        except StoreDown:
            self._metrics.store_failures.labels("redis").inc()
            raise
        return [answer if _is_missing(answer) else self._good(answer) for answer in answers]

    def _good(self, answer: Any) -> Any:
        """The answer. Raises `StoreDown` when it is an error."""
        if isinstance(answer, ReplyError):
            self._metrics.store_failures.labels("redis").inc()
            raise StoreDown("redis", str(answer))
        return answer

    async def _execute(self, pipe: Any) -> list[Any]:
        async with self._answered():
            answers: list[Any] = await pipe.execute()
            return answers

    @asynccontextmanager
    async def _answered(self) -> AsyncIterator[None]:
        try:
            yield
        except (RedisError, OSError, TimeoutError) as error:
            self._metrics.store_failures.labels("redis").inc()
            raise StoreDown("redis", str(error) or type(error).__name__) from error

    def _key(self, *parts: str) -> str:
        return ":".join((self._ns, *parts))

    def _claim(self, account_id: str, claim: Claim) -> str:
        return self._key("claim", account_id, claim.client_message_id)

    def _stream(self, reply_id: str, part: str) -> str:
        return f"{self._ns}:{{{reply_id}}}:{part}"


def _written(offset: int, event: Event) -> bytes:
    return b"%d %s" % (offset, hot_encode(Envelope(event=event, source="")))


def _read(entries: Sequence[bytes]) -> tuple[tuple[int, Event], ...]:
    events: dict[int, Event] = {}
    for entry in entries:
        offset, _, event = entry.partition(b" ")
        events[int(offset)] = hot_decode(event)
    return tuple(sorted(events.items()))


def _is_missing(answer: Any) -> bool:
    """The server has no such function: it was restarted empty."""
    return isinstance(answer, ReplyError) and "unction not found" in str(answer)
