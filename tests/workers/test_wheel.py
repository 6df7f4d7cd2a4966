"""The timer wheel, on the event loops that a worker may run on."""

import asyncio

import pytest
import uvloop

from inference_workers.engines.wheel import Wheel


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_items_whose_time_has_come_go_off_on_every_loop(new_loop) -> None:
    fired: list[str] = []

    async def scene() -> None:
        done = asyncio.Event()

        def fire(item: str, _now: float) -> None:
            fired.append(item)
            if len(fired) == 50:
                done.set()

        wheel: Wheel[str] = Wheel(fire)
        now = asyncio.get_running_loop().time()
        for number in range(50):
            wheel.add(f"{number}", now - 1.0)
        await asyncio.wait_for(done.wait(), 10)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scene())
    assert sorted(fired, key=int) == [str(number) for number in range(50)]
