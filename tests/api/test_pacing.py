"""Many that come together begin a few at a time, in order, and others run in between."""

import asyncio
import itertools

from api.pacing import Pacing


async def test_a_crowd_begins_in_order_and_leaves_room_for_others() -> None:
    turns = Pacing(at_once=3)
    begun: list[int] = []
    seen: list[int] = []

    async def one(number: int) -> None:
        await turns.turn()
        begun.append(number)

    async def other() -> None:
        while len(begun) < 30:
            seen.append(len(begun))
            await asyncio.sleep(0)

    await asyncio.gather(*[one(number) for number in range(30)], other())
    assert begun == list(range(30))
    assert len(seen) >= 30 // 3 - 1
    assert max(later - earlier for earlier, later in itertools.pairwise(seen)) <= 3


async def test_a_single_one_waits_for_nothing_and_who_leaves_the_line_holds_up_nobody() -> None:
    turns = Pacing(at_once=1)
    await turns.turn()
    waiting = [asyncio.ensure_future(turns.turn()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    await asyncio.wait_for(waiting[2], 5)
    await asyncio.wait_for(turns.turn(), 5)
