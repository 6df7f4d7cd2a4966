"""One contract for the hot store: in memory, and on a real Redis-compatible server."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest
import redis.asyncio as redis
from deployment import Deployment, Servers, delete_keys
from msgspec.structs import replace

from api.limits import Denied, Granted, TooLarge
from api.memory_hot import MemoryHot
from api.metrics import Metrics
from api.redis_live import RedisLive
from api.redis_store import RedisStore
from api.stores import Claim, HotStore, LiveFrames, PageLimit, StoreDown
from schemas.events import ConversationRenamed
from schemas.stream import Delta, Ended, frame
from schemas.tiers import Holder, buckets_of
from schemas.values import Usage
from tests.api.demands import RULES, demand
from tests.api.world import eventually

FIVE = PageLimit(frames=5, bytes=100_000)
FRAMES = [frame(n, Delta(text=f"t{n}")) for n in range(1, 10)]
END = frame(10, Ended(status="completed", usage=Usage(input_tokens=1, output_tokens=9)))

Publish = Callable[[str, int, bytes], Awaitable[None]]


@dataclass
class Hot:
    """A store, its live side, and the hand of the buffer's projection."""

    store: HotStore
    live: LiveFrames
    publish: Publish
    cut: Callable[[str], Awaitable[object]]
    """Close a reply's buffer before its end."""


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.servers)])
async def hot(request: pytest.FixtureRequest) -> AsyncIterator[Hot]:
    if request.param == "memory":
        memory = MemoryHot(lambda: time.time_ns() // 1000)

        async def publish(reply_id: str, first: int, frames: bytes) -> None:
            memory.publish(reply_id, first, frames, {"model": "m"})

        async def cut_in_memory(reply_id: str) -> None:
            memory.publish(reply_id, 1, b"", {"status": "cut"})

        yield Hot(memory, memory, publish, cut_in_memory)
        return
    servers: Servers = request.getfixturevalue("servers")
    namespace = f"test-{uuid.uuid4().hex[:12]}"
    metrics = Metrics()
    store = RedisStore(servers.redis_url, namespace, metrics)
    live = RedisLive(servers.redis_url, namespace, metrics)
    client = redis.Redis.from_url(servers.redis_url)
    keeper = asyncio.ensure_future(live.keep())
    await eventually("the subscription connects", lambda: live.connected)

    async def write(reply_id: str, first: int, frames: bytes) -> None:
        pieces = [piece + b"\n\n" for piece in frames.split(b"\n\n") if piece]
        await client.rpush(f"{namespace}:{{{reply_id}}}:frames", *pieces)
        await client.hset(f"{namespace}:{{{reply_id}}}:head", mapping={"model": "m"})
        payload = b"%d-%d\n%s" % (first, first + len(pieces) - 1, frames)
        await client.execute_command("SPUBLISH", f"{namespace}:{{{reply_id}}}:live", payload)

    async def cut(reply_id: str) -> None:
        await client.hset(f"{namespace}:{{{reply_id}}}:head", "status", "cut")

    yield Hot(store, live, write, cut)
    keeper.cancel()
    await store.close()
    await client.aclose()
    await asyncio.to_thread(delete_keys, servers.redis_url, f"{namespace}:")


async def test_a_claim_is_given_once_and_says_what_stood_there(hot: Hot) -> None:
    entries = await asyncio.gather(*(hot.store.enter(demand(f"rep_{n}"), Claim("id", "d")) for n in range(20)))
    assert [entry.claimed for entry in entries].count(None) == 1
    assert {entry.claimed for entry in entries} == {None, "d"}
    assert (await hot.store.enter(demand(account_id="b"), Claim("id", "e"))).claimed is None
    renamed = ConversationRenamed(conversation_id="conv", account_id="a", title="t", renamed_at_ms=1, request_id="r")
    await hot.store.remember("a", "conv", ((7, renamed),), 1, Claim("id", "d"))
    assert (await hot.store.enter(demand(), Claim("id", "e"))).claimed == "d+"


async def test_a_claim_is_given_back_by_who_made_it_and_only_while_nothing_came_of_it(hot: Hot) -> None:
    async def stands() -> str | None:
        return (await hot.store.enter(demand(), Claim("id", "d"))).claimed

    await hot.store.unclaim("a", Claim("id", "d"))
    assert await stands() is None
    for claim in (Claim("id", "e"), Claim("id", "d+"), Claim("other", "d")):
        await hot.store.unclaim("a", claim)
    await hot.store.unclaim("b", Claim("id", "d"))
    assert await stands() == "d"
    await hot.store.unclaim("a", Claim("id", "d"))
    assert await stands() is None
    renamed = ConversationRenamed(conversation_id="conv", account_id="a", title="t", renamed_at_ms=1, request_id="r")
    await hot.store.remember("a", "conv", ((7, renamed),), 1, Claim("id", "d"))
    await hot.store.unclaim("a", Claim("id", "d"))
    assert await stands() == "d+"


async def test_the_beginning_of_claims_is_noted_once(hot: Hot) -> None:
    claim = Claim("x", "d")
    assert (await hot.store.enter(demand(), claim)).claims_since_ms is None
    await hot.store.claims_begin(0)
    await hot.store.claims_begin(5)
    assert (await hot.store.enter(demand(), claim)).claims_since_ms == 0


async def test_five_at_once_never_get_more_than_the_bucket_holds_and_a_refusal_changes_nothing(hot: Hot) -> None:
    rules = replace(RULES, tokens_per_minute=60, burst_tokens=350)
    answers = await asyncio.gather(*(hot.store.reserve(demand(f"rep_{n}", rules=rules)) for n in range(5)))
    outcomes = [answer.outcome for answer in answers]
    assert [isinstance(outcome, Granted) for outcome in outcomes].count(True) == 3
    refused = [outcome for outcome in outcomes if isinstance(outcome, Denied)]
    assert {one.lacking for one in refused} == {"tokens"}
    assert all(45_000 < one.retry_after_ms <= 50_000 for one in refused)
    await hot.store.claims_begin(0)
    buckets = buckets_of(rules, "m", "p", Holder("a"))
    look = await hot.store.look(Holder("a"), buckets, 10)
    if look is not None:  # in Redis nobody has said that the buckets are whole
        assert [level.available for level in look.standing.levels] == [57, 50]
        assert look.reserved == (0, 300)
        assert look.standing.running == 3


async def test_a_reservation_is_given_back_whole_and_once(hot: Hot) -> None:
    rules = replace(RULES, burst_tokens=100, tokens_per_minute=1)
    assert isinstance((await hot.store.reserve(demand(rules=rules))).outcome, Granted)
    again = (await hot.store.reserve(demand(rules=rules))).outcome
    assert isinstance(again, Granted)
    assert not again.fresh
    other = demand("rep_2", rules=rules)
    assert isinstance((await hot.store.reserve(other)).outcome, Denied)
    for _ in range(2):
        await hot.store.release(Holder("a"), "rep_1")
    assert isinstance((await hot.store.reserve(other)).outcome, Granted)
    assert isinstance((await hot.store.reserve(demand("rep_3", rules=rules))).outcome, Denied)


async def test_what_no_bucket_ever_holds_is_refused_for_good_and_running_replies_have_a_limit(hot: Hot) -> None:
    large = (await hot.store.reserve(demand(output_tokens=991))).outcome
    assert isinstance(large, TooLarge)
    assert (large.lacking, large.tokens, large.capacity) == ("tokens", 1_001, 1_000)
    assert isinstance((await hot.store.reserve(demand(output_tokens=990))).outcome, Granted)
    rules = replace(RULES, running_max=1)
    assert isinstance((await hot.store.reserve(demand("rep_2", "b", rules))).outcome, Granted)
    full = (await hot.store.reserve(demand("rep_3", "b", rules))).outcome
    assert isinstance(full, Denied)
    assert full.lacking == "running"


async def test_when_keys_were_used_is_kept_by_account(hot: Hot) -> None:
    assert await hot.store.keys_used("ann") == {}
    await hot.store.note_keys({"ann": {"k1": 5, "k2": 6}, "bob": {"k3": 7}})
    await hot.store.note_keys({"ann": {"k1": 8}})
    assert await hot.store.keys_used("ann") == {"k1": 8, "k2": 6}
    assert await hot.store.keys_used("bob") == {"k3": 7}


async def test_what_was_written_is_remembered_in_the_order_of_the_log(hot: Hot) -> None:
    def renamed(title: str) -> ConversationRenamed:
        return ConversationRenamed(
            conversation_id="conv", account_id="a", title=title, renamed_at_ms=1, request_id=title
        )

    await hot.store.remember("a", "conv", ((9, renamed("nine")),), 10)
    await hot.store.remember("a", "conv", ((7, renamed("seven")), (8, renamed("eight \u2028 🦜"))), 20)
    await hot.store.remember("a", "conv-2", ((1, renamed("x")),), 30)
    recent = await hot.store.recent("conv")
    assert [(offset, event.title) for offset, event in recent.events] == [  # type: ignore[attr-defined]
        (7, "seven"),
        (8, "eight \u2028 🦜"),
        (9, "nine"),
    ]
    assert list(await hot.store.recent_conversations("a")) == ["conv-2", "conv"]
    assert await hot.store.recent_conversations("b") == {}


async def test_a_deleted_conversation_is_known_everywhere(hot: Hot) -> None:
    await hot.store.mark_deleted("conv", deleted=True)
    assert (await hot.store.recent("conv")).deleted
    assert (await hot.store.enter(demand(), None)).deleted
    assert (await hot.store.page("rep", "conv", 0, FIVE)).deleted
    await hot.store.mark_deleted("conv", deleted=False)
    assert not (await hot.store.recent("conv")).deleted


async def test_pages_of_the_buffer(hot: Hot) -> None:
    empty = await hot.store.page("rep", "conv", 0, FIVE)
    assert (empty.frames, empty.newest, empty.ended) == ((), 0, False)
    await hot.publish("rep", 1, b"".join(FRAMES))
    first = await hot.store.page("rep", "conv", 0, FIVE)
    assert (list(first.frames), first.newest, first.ended) == (FRAMES[:5], 9, False)
    await hot.publish("rep", 10, END)
    last = await hot.store.page("rep", "conv", 8, FIVE)
    assert (list(last.frames), last.newest, last.ended) == ([FRAMES[8], END], 10, True)
    assert (await hot.store.page("rep", "conv", 20, FIVE)).frames == ()
    few = await hot.store.page("rep", "conv", 0, PageLimit(frames=100, bytes=1))
    assert 1 <= len(few.frames) <= 16
    assert few.newest == 10
    live, nothing = await hot.store.live(("rep", "other"))
    assert (live.head["model"], list(live.frames)) == ("m", [*FRAMES, END])
    assert not few.cut
    await hot.cut("rep")
    assert (await hot.store.page("rep", "conv", 9, FIVE)).cut
    assert (dict(nothing.head), nothing.frames) == ({}, ())


async def test_a_follower_gets_what_is_published_after_it_was_confirmed(hot: Hot) -> None:
    woken: list[str] = []
    one = hot.live.follow("rep", lambda: woken.append("wake"), lambda: woken.append("again"))
    two = hot.live.follow("rep", lambda: None, lambda: None)
    await eventually("it is confirmed", lambda: one.confirmed)
    await hot.publish("rep", 1, b"".join(FRAMES[:3]))
    await eventually("it arrives", lambda: one.tail.newest == 3)
    assert one.tail.after(1) == (3, b"".join(FRAMES[1:3]))
    assert two.tail.after(0) == (3, b"".join(FRAMES[:3]))
    assert "wake" in woken
    two.close()
    await hot.publish("rep", 4, FRAMES[3])
    await eventually("it arrives", lambda: one.tail.newest == 4)
    one.close()
    three = hot.live.follow("rep", lambda: None, lambda: None)
    await eventually("it is confirmed", lambda: three.confirmed)
    await hot.publish("rep", 5, FRAMES[4])
    await eventually("it arrives", lambda: three.tail.newest == 5)
    three.close()


@pytest.mark.servers
async def test_a_subscription_survives_the_loss_of_its_connection(deployment: Deployment) -> None:
    metrics = Metrics()
    live = RedisLive(deployment.redis_url, deployment.namespace, metrics)
    client = redis.Redis.from_url(deployment.redis_url)
    keeper = asyncio.ensure_future(live.keep())
    again: list[int] = []
    subscription = live.follow("rep", lambda: None, lambda: again.append(1))
    await eventually("it is confirmed", lambda: subscription.confirmed)
    channel = f"{deployment.namespace}:{{rep}}:live"
    mine = [c for c in await client.client_list() if c["ssub"] == "1" and c["cmd"] in ("ping", "ssubscribe")]
    (name,) = {k.decode() for k in await client.execute_command("PUBSUB SHARDCHANNELS", channel)}
    assert name == channel
    for one in mine:
        await client.client_kill_filter(_id=one["id"])
    await eventually("it is confirmed again", lambda: len(again) >= 2 and subscription.confirmed)
    await client.execute_command("SPUBLISH", channel, b"1-1\n" + FRAMES[0])
    await eventually("it arrives", lambda: subscription.tail.newest == 1)
    subscription.close()
    keeper.cancel()
    await client.aclose()


async def test_a_store_that_is_not_there_is_down_and_nothing_else() -> None:
    store = RedisStore("redis://127.0.0.1:1/0", "x", Metrics())
    with pytest.raises(StoreDown):
        await store.ping()
    with pytest.raises(StoreDown):
        await store.page("rep", "conv", 0, FIVE)
    await store.close()
