"""Pages read from Redis over one connection: in order, bounded, shared where they may be, asked again when lost."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis.asyncio as redis
from deployment import Deployment

from api.redis_pages import AT_ONCE, Question, RedisPages
from api.stores import StoreDown

pytestmark = pytest.mark.servers


@pytest.fixture
async def store(provisioned: Deployment) -> AsyncIterator[redis.Redis]:
    client = redis.Redis.from_url(provisioned.redis_url)
    yield client
    await client.aclose()


@pytest.fixture
async def pages(provisioned: Deployment) -> AsyncIterator[RedisPages]:
    made = RedisPages(provisioned.redis_url)
    yield made
    await made.close()


def question(deployment: Deployment, name: str = "r", after: int = 0) -> Question:
    prefix = f"{deployment.namespace}:{{{name}}}"
    return Question(f"{prefix}:deleted", f"{prefix}:frames", f"{prefix}:head", after, 1000, 65_536)


async def test_each_question_gets_its_own_answer(
    provisioned: Deployment, store: redis.Redis, pages: RedisPages
) -> None:
    names = [f"r{number}" for number in range(5 * AT_ONCE)]
    for number, name in enumerate(names):
        await store.rpush(question(provisioned, name).frames_key, *[f"{name}-{n}" for n in range(number + 1)])
    answers = await asyncio.gather(*[pages.ask(question(provisioned, name)) for name in names])
    for number, (name, (deleted, page)) in enumerate(zip(names, answers, strict=True)):
        assert deleted == 0
        assert page[:3] == [number + 1, b"%b-%d" % (name.encode(), number), page[2]]
        assert page[2] == [b"%b-%d" % (name.encode(), n) for n in range(number + 1)]


async def test_those_who_ask_for_the_same_in_line_share_one_reading(
    provisioned: Deployment, store: redis.Redis, pages: RedisPages
) -> None:
    await store.rpush(question(provisioned).frames_key, "a")
    busy = [pages.ask(question(provisioned, f"other{number}")) for number in range(AT_ONCE)]
    same = [pages.ask(question(provisioned)) for _ in range(500)]
    answers = (await asyncio.gather(*busy, *same))[AT_ONCE:]
    assert answers[0][1][2] == [b"a"]
    assert all(answer is answers[0] for answer in answers)


async def test_what_comes_after_a_reading_began_is_in_the_next_one(
    provisioned: Deployment, store: redis.Redis, pages: RedisPages
) -> None:
    key = question(provisioned).frames_key
    for number in range(1, 50):
        first = asyncio.ensure_future(pages.ask(question(provisioned)))
        await asyncio.sleep(0)
        await store.rpush(key, "a")
        _, page = await pages.ask(question(provisioned))
        assert page[0] == number, "it was asked after the frame was there"
        await first


async def test_a_lost_connection_and_a_flushed_script_are_not_seen_by_who_asks(
    provisioned: Deployment, store: redis.Redis, pages: RedisPages
) -> None:
    await store.rpush(question(provisioned).frames_key, "a")
    for _ in range(3):
        assert (await pages.ask(question(provisioned)))[1][2] == [b"a"]
        assert pages.address is not None
        host, port = pages.address
        await store.client_kill(f"{host}:{port}")
        assert (await pages.ask(question(provisioned)))[1][2] == [b"a"]
        await store.script_flush()


async def test_a_server_that_is_away_is_told_at_once() -> None:
    pages = RedisPages("redis://127.0.0.1:1/0")
    answers = await asyncio.gather(
        *[pages.ask(Question("d", "f", "h", number, 1, 1)) for number in range(20)], return_exceptions=True
    )
    assert all(isinstance(answer, StoreDown) for answer in answers)
    await pages.close()


async def test_who_leaves_while_he_waits_takes_nobody_else_with_him(
    provisioned: Deployment, store: redis.Redis, pages: RedisPages
) -> None:
    await store.rpush(question(provisioned).frames_key, "a")
    one, other = (asyncio.ensure_future(pages.ask(question(provisioned))) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    assert (await other)[1][2] == [b"a"]
    assert one.cancelled()
