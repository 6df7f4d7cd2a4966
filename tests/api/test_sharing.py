"""Questions that many ask at once."""

import asyncio

import pytest

from api.sharing import Shared


class Store:
    """Counts the questions that reach it, and answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = asyncio.Event()

    async def ask(self, what: str) -> str:
        self.asked.append(what)
        number = len(self.asked)
        await self.answers.wait()
        return f"{what} {number}"


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_those_who_wait_for_the_same_share_one_question_that_has_not_begun() -> None:
    store, shared = Store(), Shared[str](1)
    first = asyncio.ensure_future(shared.ask("a", lambda: store.ask("a")))
    await settled()
    later = [asyncio.ensure_future(shared.ask("a", lambda: store.ask("a"))) for _ in range(50)]
    other = asyncio.ensure_future(shared.ask("b", lambda: store.ask("b")))
    await settled()
    assert store.asked == ["a"], "one is on its way, the rest waits"
    store.answers.set()
    assert await first == "a 1"
    assert set(await asyncio.gather(*later)) == {"a 2"}, "nobody gets an answer from before his asking"
    assert await other == "b 3"


async def test_an_error_is_told_to_all_and_a_reader_that_leaves_takes_nobody_along() -> None:
    shared = Shared[str](1)
    begun = asyncio.Event()

    async def broken() -> str:
        await begun.wait()
        raise ValueError("down")

    askers = [asyncio.ensure_future(shared.ask("a", broken)) for _ in range(3)]
    await settled()
    askers[0].cancel()
    begun.set()
    for asker in askers[1:]:
        with pytest.raises(ValueError, match="down"):
            await asker
