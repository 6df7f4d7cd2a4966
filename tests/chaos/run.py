"""One run: start the stack, let clients talk while parts are killed, then calm, then check."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from system.product import Product

from tests.chaos.check import CANCEL_WITHIN_MS, Report, a_reader_is_prompt, check
from tests.chaos.ledger import Ledger
from tests.chaos.traffic import Traffic
from tests.chaos.wreck import Stack, Wrecker
from tests.simulation.frames import Read, end_of
from tests.simulation.promises import Broken

READY_S = 180.0
READERS_S = 300.0


@dataclass(frozen=True)
class Plan:
    """A run. The same seed strikes the same parts in the same order; what they do meanwhile is their own affair."""

    data: Path
    kills: int
    seed: int
    every_s: float = 8.0
    users: int = 4
    pace_s: float = 2.0
    only: str = ""
    """Strike only parts whose names begin so."""
    env: dict[str, str] = field(default_factory=dict)


@dataclass
class Result:
    """What a run has shown."""

    plan: Plan
    report: Report
    ledger: Ledger
    struck: dict[str, int]
    took_s: float

    def summary(self) -> str:
        """One line."""
        readings = self.ledger.readings
        return (
            f"seed {self.plan.seed}: {sum(self.struck.values())} kills in {self.took_s:.0f} s, "
            f"{len(self.ledger.answered())} replies {dict(self.report.statuses)}, {self.report.streams} whole streams, "
            f"{len(readings)} readers with {sum(r.connections for r in readings)} connections and "
            f"{self.report.frames} events, {len(self.report.broken)} violations"
        )


def run(plan: Plan, say: Callable[[str], None]) -> Result:
    """The whole of it; leaves nothing running."""
    product = Product(plan.data, "--engine", "scripted", "--api", "2", "--workers", "2", "--streams", "2", env=plan.env)
    try:
        return asyncio.run(_run(plan, product, say))
    finally:
        product.close()


async def _run(plan: Plan, product: Product, say: Callable[[str], None]) -> Result:
    began_s = time.monotonic()

    def note(line: str) -> None:
        say(f"{time.monotonic() - began_s:7.1f} s  {line}")

    stack, report = Stack(plan.data), Report()
    traffic = Traffic(stack.addresses(), product.api_key, random.Random(plan.seed))
    wrecker = Wrecker(stack, random.Random(plan.seed + 1), note, plan.only)
    try:
        stop = asyncio.Event()
        users = [asyncio.create_task(traffic.converse(stop, plan.pace_s)) for _ in range(plan.users)]
        try:
            await wrecker.wreck(plan.kills, plan.every_s)
        finally:
            wrecker.calm()
            stop.set()
        note("calm")
        await asyncio.gather(*users)
        traffic.ledger.flushed = wrecker.flushed
        await _ready(stack)
        if not await traffic.all_have_read(READERS_S):
            report.broken += [_waits(r.read) for r in traffic.ledger.readings if not r.task_done]
        await _in_the_calm(traffic, report)
        await check(traffic, report)
        report.broken += [Broken("an_answer_is_as_promised", one) for one in traffic.ledger.surprises]
    except AssertionError as error:
        report.broken.append(error if isinstance(error, Broken) else Broken("an_answer_is_as_promised", str(error)))
    finally:
        await traffic.close()
    result = Result(plan, report, traffic.ledger, wrecker.struck, time.monotonic() - began_s)
    note(result.summary())
    return result


async def _ready(stack: Stack) -> None:
    deadline = time.monotonic() + READY_S
    while not stack.ready():
        if time.monotonic() > deadline:
            states = {name: part["state"] for name, part in stack.parts().items() if part["state"] != "ready"}
            raise Broken("every_part_comes_back", f"not ready after {READY_S:.0f} s: {states}")
        await asyncio.sleep(0.2)


def _waits(read: Read) -> Broken:
    return Broken("a_reader_sees_the_end", f"{read.who} of {read.reply_id} waits at {read.cursor}")


async def _in_the_calm(traffic: Traffic, report: Report) -> None:
    """With nothing in the way: readers are prompt, and a cancel stops a reply at once."""
    before = len(traffic.ledger.readings)
    for _ in range(5):
        asked = await traffic.send(words=60, every_ms=20)
        for _ in range(12):
            traffic.follow(asked.reply_ids[0], 1)
            await asyncio.sleep(0.1)
    if not await traffic.all_have_read(READERS_S):
        report.broken += [_waits(r.read) for r in traffic.ledger.readings[before:] if not r.task_done]
    for reading in traffic.ledger.readings[before:]:
        if reading.read.after == 0 and end_is_seen(reading.read):
            report.hold(a_reader_is_prompt, f"{reading.read.who} of {reading.read.reply_id}", reading.waited_s)
    asked = await traffic.send(words=2_000, every_ms=20)
    await asyncio.sleep(1.0)
    cancelled_s = time.monotonic()
    await traffic.cancel(asked)
    await traffic.all_have_read(READERS_S)
    status = (await traffic.call("GET", f"/v1/messages/{asked.reply_ids[0]}")).json()["status"]
    after_ms = round((traffic.ledger.ended_s.get(asked.reply_ids[0], time.monotonic()) - cancelled_s) * 1000)
    if status != "cancelled" or after_ms > CANCEL_WITHIN_MS:
        detail = f"{asked.reply_ids[0]} ended as {status} {after_ms} ms after its cancellation"
        report.broken.append(Broken("a_cancelled_reply_stops", detail))


def end_is_seen(read: Read) -> bool:
    """Whether the reader has the end."""
    return end_of(read.frames) is not None


def save(result: Result, folder: Path) -> Path:
    """Write what the clients saw, and what did not hold; the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"chaos-{result.plan.seed}.json"
    evidence = {
        "summary": result.summary(),
        "broken": [str(broken) for broken in result.report.broken],
        "asked": [vars(asked) for asked in result.ledger.asked],
        "readers": [
            {
                "who": one.read.who,
                "reply_id": one.read.reply_id,
                "after": one.read.after,
                "told": one.read.told,
                "frames": [data.decode() for data in one.read.frames],
            }
            for one in result.ledger.readings
        ],
    }
    path.write_text(json.dumps(evidence, indent=1))
    return path
