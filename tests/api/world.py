"""The API in one process, with the log and the stores in memory, and a client that speaks ASGI to it.

What the other processes do is done by hand: `queue`, `say` and `end` fold a reply's events as the buffer's projection
does, `store` writes what settlement would, `project` brings `messages` into the views.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from msgspec.structs import replace

from api.account_changes import AccountChanges
from api.app import create_app
from api.context import Service
from api.conversations import Conversations
from api.edge import Edge
from api.feed import Feeds
from api.feed_response import FeedAnswers
from api.following import Streams
from api.health import Health
from api.issuers import Tokens
from api.last_used import LastUsed
from api.limits import Leases
from api.limits_door import Door, LimitPolicy
from api.limits_spend import Spending
from api.load import Load
from api.memory_hot import MemoryHot
from api.memory_views import MemoryViews
from api.metrics import Metrics
from api.operator import OperatorKey
from api.prompt_tokens import PromptTokens
from api.reading import Patience
from api.sending import Appender, Sender
from api.sse import OpenStreams
from api.stores import PageLimit
from schemas import conversation as conversations
from schemas import reply as replies
from schemas.account import Accounts
from schemas.codec import decode
from schemas.events import (
    AccountOpened,
    Event,
    GenerationEnded,
    GenerationQueued,
    GenerationReset,
    GenerationStarted,
    KeyIssued,
    LimitsChanged,
    LoadMeasured,
    MessageSubmitted,
    ReplyStored,
    TokensGenerated,
)
from schemas.ids import Identities, key_hash
from schemas.models import DEFAULT_MODELS, SMOLLM2, Model
from schemas.stream import frame
from schemas.tiers import DEFAULT_TIERS
from schemas.topics import ACCOUNTS
from schemas.values import EndStatus, Failure, Stage, Usage
from streams.log.compacted import CompactedReader
from streams.log.log import BEGINNING
from streams.log.memory import MemoryLog
from streams.log.steps import Output, Partition, Record

ALICE, BOB = "key-of-alice", "key-of-bob"
OPERATOR = "operator-of-the-tests"
PATIENCE = Patience(
    heartbeat_s=30.0, send_timeout_s=30.0, outage_s=30.0, idle_s=60.0, page=PageLimit(frames=7, bytes=10_000)
)


async def eventually(what: str, condition: Callable[[], Any], within_s: float = 5.0) -> Any:
    """The first true value of the condition."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what}")
        await asyncio.sleep(0.002)
    return value


@dataclass
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Call:
    """A call on its way. `take` False: the client reads nothing, as if its socket were full."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    received: bytes = b""
    whole: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    takes: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    @property
    def frames(self) -> list[bytes]:
        """What came, without the connection's own lines, cut into events; an unfinished one would show."""
        lines = self.received.splitlines(keepends=True)
        text = b"".join(line for line in lines if not line.startswith((b":", b"retry:")))
        return [piece + b"\n\n" for piece in text.split(b"\n\n") if piece]

    async def until(self, events: int) -> None:
        await eventually(f"{events} events", lambda: len(self.frames) >= events)

    async def end(self) -> None:
        assert self.task is not None
        await asyncio.wait_for(self.task, 10)

    async def leave(self) -> None:
        self.gone.set()
        await self.end()


TIERS = DEFAULT_TIERS | {
    "free": replace(DEFAULT_TIERS["free"], running_max=100),
    "paid": replace(DEFAULT_TIERS["paid"], requests_per_minute=60_000_000, tokens_per_minute=1_000_000_000),
}


class Process:
    """One API process over the world's stores."""

    def __init__(
        self, world: "World", patience: Patience, hot: MemoryHot | None = None, policy: LimitPolicy | None = None
    ) -> None:
        metrics = Metrics()
        hot = hot or world.hot
        self.metrics = metrics
        self.open_streams = OpenStreams(patience, metrics, 1000)
        appender = Appender(world.log.writer("api"), world.append_timeout_s)
        self.health = Health(world.accounts_reader, hot, hot, world.views)
        conversations = Conversations(ids=world.ids, appender=appender, hot=hot, views=world.views, now_ms=world.now_ms)
        self.feeds = Feeds(world.views, every_s=0.01)
        spending = Spending(world.views, metrics, world.now_ms, lambda: world.time_ms / 1000)
        door = Door(
            hot=hot,
            views=world.views,
            prompt_tokens=PromptTokens({}),
            spending=spending,
            policy=policy or world.policy,
            metrics=metrics,
            now_ms=world.now_ms,
        )
        service = Service(
            ids=world.ids,
            models=DEFAULT_MODELS,
            tiers=world.tiers,
            accounts=world.accounts,
            sender=Sender(
                ids=world.ids,
                models=DEFAULT_MODELS,
                appender=appender,
                hot=hot,
                views=world.views,
                load=world.load,
                door=door,
                metrics=metrics,
                now_ms=world.now_ms,
                pause_s=world.pause_s,
            ),
            conversations=conversations,
            streams=Streams(
                hot=hot,
                live=hot,
                views=world.views,
                open_streams=self.open_streams,
                patience=patience,
                now_s=time.monotonic,
                now_ms=world.now_ms,
            ),
            feeds=FeedAnswers(
                conversations=conversations, feeds=self.feeds, open_streams=self.open_streams, patience=patience
            ),
            hot=hot,
            views=world.views,
            spending=spending,
            health=self.health,
            metrics=metrics,
            ticket_ms=300_000,
            now_ms=world.now_ms,
            used=LastUsed(hot, world.now_ms),
            tokens=world.tokens,
            changes=AccountChanges(appender, world.accounts),
            operator=OperatorKey(OPERATOR),
        )
        self.asgi = create_app(service)
        self.service = service
        self.app = Edge(self.asgi, metrics, hidden=service.hidden)

    def begin(
        self,
        method: str,
        path: str,
        *,
        key: str | None = ALICE,
        body: Any = None,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        takes: bool = True,
    ) -> Call:
        """Start a call."""
        sent = {"authorization": f"Bearer {key}"} if key else {}
        if body is not None:
            raw = json.dumps(body).encode()
            sent["content-type"] = "application/json"
        sent |= {name.lower(): value for name, value in (headers or {}).items()}
        address, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(address),
            "raw_path": address.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in sent.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        call = Call()
        if takes:
            call.takes.set()
        bodies = [raw or b""]

        async def receive() -> dict[str, Any]:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await call.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                call.headers = {name.decode(): value.decode() for name, value in message["headers"]}
                return
            await call.takes.wait()
            call.received += message.get("body", b"")
            call.whole = not message.get("more_body", False)

        call.task = asyncio.ensure_future(self.app(scope, receive, send))
        return call

    async def call(self, method: str, path: str, **how: Any) -> Answer:
        """A whole call."""
        call = self.begin(method, path, **how)
        await call.end()
        return Answer(call.status, call.headers, call.received)

    async def send(self, content: str = "hello", *, key: str = ALICE, **members: Any) -> dict[str, Any]:
        """An accepted message."""
        answer = await self.call("POST", "/v1/messages", key=key, body={"content": content} | members)
        assert answer.status in (200, 202), answer.body
        return dict(answer.json)

    async def follow(self, reply_id: str, after: int = 0) -> list[bytes]:
        """All events behind a cursor, to the end."""
        call = self.begin("GET", f"/v1/messages/{reply_id}/events", headers={"Last-Event-ID": str(after)})
        await call.end()
        assert call.status in (200, 204), call.received
        assert call.whole
        return call.frames


class World:
    """See the head of this module."""

    def __init__(self) -> None:
        self.time_ms = 1_796_000_000_000
        self.append_timeout_s = 5.0
        self.tiers = dict(TIERS)
        self.policy = LimitPolicy(leases=Leases(door_ms=15_000, reply_ms=1_860_000))
        self.log = MemoryLog()
        self.hot = MemoryHot(lambda: self.time_ms * 1000)
        self.views = MemoryViews()
        self.ids = Identities(b"a secret of the tests")
        self.tokens = Tokens()
        self.accounts = Accounts()
        self.accounts_reader = CompactedReader(self.log, ACCOUNTS.name, self.accounts.apply, poll_s=0.01)
        self.load = Load(lambda: self.time_ms / 1000)
        self._replies: dict[str, replies.Reply | None] = {}
        self._projected: dict[int, int] = {}

    async def pause_s(self, seconds: float) -> None:
        """Time passes, and the views come up to the log."""
        self.time_ms += round(seconds * 1000)
        self.project()

    def now_ms(self) -> int:
        self.time_ms += 1
        return self.time_ms

    def process(
        self, patience: Patience = PATIENCE, hot: MemoryHot | None = None, policy: LimitPolicy | None = None
    ) -> Process:
        return Process(self, patience, hot, policy)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["World"]:
        """The accounts are there and known."""
        for account_id, key, tier in (("alice", ALICE, "paid"), ("bob", BOB, "free")):
            self.append(AccountOpened(account_id=account_id, name=account_id, tier=tier, opened_at_ms=1))
            self.append(KeyIssued(account_id=account_id, key_id="1", key_hash=key_hash(key), issued_at_ms=1))
        self.append(LimitsChanged(account_id="alice", requests_per_minute=1_000_000, changed_at_ms=1))
        self.accounts_reader.start()
        try:
            await eventually("the accounts are known", lambda: self.accounts_reader.complete)
            yield self
        finally:
            await asyncio.to_thread(self.accounts_reader.close)

    def append(self, event: Event) -> int:
        """Write an event; its offset."""
        return self.log.writer("test").append(Output(event=event)).result(1).offset

    def events(self, topic: str) -> list[Event]:
        """All events of a topic, by partition and offset."""
        return [event for _, _, event in self._records(topic)]

    def messages_of(self, conversation_id: str) -> conversations.Conversation | None:
        """The fold of a conversation from the log, as turns has it."""
        return conversations.fold(event for event in self.events("messages") if event.key() == conversation_id)

    def project(self) -> None:
        """The views catch up with the log."""
        for partition, offset, event in self._records("messages"):
            self.views.write(offset, event, partition)

    def queue(self, sent: Mapping[str, Any], key: str = "alice") -> str:
        """Dispatch takes the reply of a sent message; its id."""
        reply_id = sent["reply"]["id"]
        self._fold(
            GenerationQueued(
                reply_id=reply_id,
                message_id=(sent["message"] or {}).get("id", ""),
                conversation_id=sent["conversation_id"],
                account_id=key,
                tier="paid",
                pool="default",
                model="smollm2-135m-instruct",
                submitted_at_ms=self.time_ms,
            )
        )
        return reply_id

    def start(self, reply_id: str, attempt: int = 1) -> None:
        """A worker begins."""
        self._fold(
            GenerationStarted(
                reply_id=reply_id,
                conversation_id="",
                generation_id=f"gen_{attempt}",
                attempt=attempt,
                model="smollm2-135m-instruct",
                worker="w",
                started_at_ms=self.time_ms,
            )
        )

    def say(self, reply_id: str, *texts: str) -> None:
        """Pieces of text."""
        for text in texts:
            reply = self.reply(reply_id)
            self._fold(
                TokensGenerated(
                    reply_id=reply_id,
                    conversation_id="",
                    generation_id=reply.generation_id,
                    attempt=reply.attempt,
                    seq=reply.next_seq,
                    text=text,
                    tokens=1,
                )
            )

    def reset(self, reply_id: str, reason: str = "worker_lost", detail: str = "") -> None:
        """The attempt is void, as when its worker has died."""
        attempt = self.reply(reply_id).attempt + 1
        self._fold(
            GenerationReset(reply_id=reply_id, conversation_id="", attempt=attempt, reason=reason, detail=detail)
        )

    def end(self, reply_id: str, status: EndStatus = "completed", error: Failure | None = None) -> None:
        """The end."""
        reply = self.reply(reply_id)
        self._fold(
            GenerationEnded(
                reply_id=reply_id,
                conversation_id="",
                generation_id=reply.generation_id,
                attempt=reply.attempt,
                seq=reply.next_seq if reply.generation_id else 0,
                status=status,
                ended_at_ms=self.now_ms(),
                usage=Usage(input_tokens=3, output_tokens=reply.tokens) if reply.generation_id else None,
                error=error,
            )
        )

    def measure(
        self,
        stage: Stage,
        *,
        model: Model = SMOLLM2,
        workers: int = 1,
        retry_after_s: int = 7,
        free: Stage | None = None,
    ) -> None:
        """Dispatch tells the load, now: the stage of paid traffic, and of free traffic if it differs."""
        event = LoadMeasured(
            pool=model.pool,
            model=model.name,
            measured_at_ms=self.time_ms,
            workers=workers,
            slots=4 * workers,
            free_slots=0,
            kv_tokens=0,
            kv_tokens_held=0,
            running=4 * workers,
            waiting_paid=9,
            waiting_free=0,
            wait_paid_ms=20_000 if workers else None,
            wait_free_ms=20_000 if workers else None,
            stage_paid=stage,
            stage_free=free or stage,
            retry_after_s=retry_after_s,
        )
        self.load.apply(event.key(), event)

    def store(self, reply_id: str) -> ReplyStored:
        """Settlement writes the stored reply."""
        reply = self.reply(reply_id)
        assert reply.end is not None
        queued = reply.queued
        stored = ReplyStored(
            conversation_id=queued.conversation_id,
            reply_id=reply_id,
            message_id=queued.message_id,
            account_id=queued.account_id,
            tier=queued.tier,
            pool=queued.pool,
            model=reply.model,
            status=reply.end.status,
            text=reply.text,
            attempt=reply.attempt,
            final_offset=reply.offset,
            usage=reply.end.usage,
            submitted_at_ms=queued.submitted_at_ms,
            ended_at_ms=reply.ended_at_ms,
            timings=reply.end.timings,
            error=reply.end.error,
            void_attempts=reply.void_attempts,
        )
        self.append(stored)
        return stored

    def whole(self, sent: Mapping[str, Any], *texts: str) -> str:
        """A reply from beginning to end; its id."""
        reply_id = self.queue(sent)
        self.start(reply_id)
        self.say(reply_id, *texts)
        self.end(reply_id)
        return reply_id

    def reply(self, reply_id: str) -> replies.Reply:
        """The fold of a reply."""
        found = self._replies[reply_id]
        assert found is not None
        return found

    def submitted(self) -> list[MessageSubmitted]:
        """All sends in the log."""
        return [event for event in self.events("messages") if isinstance(event, MessageSubmitted)]

    def _fold(self, event: Any) -> None:
        before = self._replies.get(event.reply_id)
        after, seen = replies.apply(before, event)
        self._replies[event.reply_id] = after
        first = before.offset + 1 if before is not None else 1
        frames = b"".join(frame(first + index, one) for index, one in enumerate(seen))
        head = {"model": after.model, "submitted_ms": str(after.queued.submitted_at_ms)} if after else {}
        self.hot.publish(event.reply_id, first, frames, head)

    def raw(self, topic: str) -> list[tuple[tuple[int, int], Record]]:
        """All records of a topic."""
        partitions = [Partition(topic, number) for number in range(self.log.partitions(topic))]
        reader = self.log.reader(partitions, BEGINNING)
        found: list[tuple[tuple[int, int], Record]] = []
        while records := reader.poll(0):
            found += [((r.partition, r.offset), r) for r in records]
        reader.close()
        return sorted(found, key=lambda item: item[0])

    def _records(self, topic: str) -> list[tuple[int, int, Event]]:
        return [(*place, decode(r.value, r.headers).event) for place, r in self.raw(topic)]
