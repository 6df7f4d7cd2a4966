"""One run: start the stack, let clients talk while parts are killed, then calm, then check."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from system.product import Product

from schemas.values import Tier
from tests.chaos.attempts import check_attempts
from tests.chaos.check import CANCEL_WITHIN_MS, Report, a_reader_is_prompt, check
from tests.chaos.failover import Wait, told, waits
from tests.chaos.ledger import Ledger, joined
from tests.chaos.scripts import Wishes
from tests.chaos.traffic import Traffic
from tests.chaos.wreck import Arms, Stack, Strike, Wrecker
from tests.simulation.frames import Read, end_of
from tests.simulation.promises import Broken

READY_S = 180.0
READERS_S = 300.0
KNOWN_S = 30.0


@dataclass(frozen=True)
class Plan:
    """A run. The same seed strikes the same parts in the same order; what they do meanwhile is their own affair."""

    data: Path
    kills: int | None
    """None: as many as fit into `within_s`."""
    seed: int
    within_s: float | None = None
    every_s: float = 8.0
    users: int = 4
    """Of each account."""
    pace_s: float = 2.0
    accounts: tuple[Tier, ...] = ()
    """Their tiers; without any, the demo account is the only one."""
    workers: int = 2
    streams: int = 2
    """Instances of turns and of dispatch."""
    arms: Arms = field(default_factory=Arms)
    wishes: Wishes = field(default_factory=Wishes)
    attempts: bool = False
    """Whether attempts are compared everywhere: only where nothing but workers is struck, and metrics are served."""
    env: dict[str, str] = field(default_factory=dict)


def of_workers(plan: Plan) -> Plan:
    """The same, but workers alone are killed, stopped, drained and silenced; some replies hang or crash their engine.

    Accounts of both tiers share few slots, so that requests wait in line.
    """
    env = {
        "TURNLOG_METRICS": "true",
        "TURNLOG_SLOTS": "4",
        "TURNLOG_TOKEN_TIMEOUT_S": "3",
        "TURNLOG_FIRST_TOKEN_TIMEOUT_S": "5",
        "TURNLOG_ABORT_TIMEOUT_S": "3",
        "TURNLOG_DRAIN_GRACE_S": "2",
        "TURNLOG_ACCOUNT_RUNNING_MAX_FREE": "4",
    }
    return replace(
        plan,
        users=2,
        accounts=("paid", "free", "paid", "free"),
        streams=1,
        arms=Arms("worker", stops=0.2, drains=0.2, silences=0.25),
        wishes=Wishes((5, 60, 150, 250), (10, 30, 50), hangs=0.03, crashes=0.01),
        attempts=True,
        env=env | plan.env,
    )


@dataclass
class Result:
    """What a run has shown."""

    plan: Plan
    report: Report
    ledger: Ledger
    strikes: list[Strike]
    took_s: float
    waits: list[Wait]
    """Of readers at workers that were struck."""

    def summary(self) -> list[str]:
        """Some lines."""
        readings = self.ledger.readings
        hows = Counter(strike.how for strike in self.strikes)
        ends = Counter(f"{one.asked.fault or 'good'}: {_code(one.message)}" for one in self.report.replies)
        resets = Counter(reset["reason"] for one in self.report.replies for reset in one.message["resets"])
        line = (
            f"seed {self.plan.seed}: {len(self.strikes)} strikes {dict(hows)} in {self.took_s:.0f} s, "
            f"{len(self.ledger.answered())} replies {dict(self.report.statuses)}, {self.report.streams} whole streams, "
            f"{len(readings)} readers with {sum(r.connections for r in readings)} connections and "
            f"{self.report.frames} events, {len(self.report.broken)} violations"
        )
        return [line, f"ends {dict(ends)}, resets {dict(resets)}", *(told(self.waits) if self.waits else ())]


def run(plan: Plan, say: Callable[[str], None]) -> Result:
    """The whole of it; leaves nothing running."""
    numbers = {"--api": 2, "--workers": plan.workers, "--streams": plan.streams}
    options = [word for option, number in numbers.items() for word in (option, str(number))]
    product = Product(plan.data, "--engine", "scripted", *options, env=plan.env)
    try:
        keys = [product.open_account(f"{tier}-{n}", tier) for n, tier in enumerate(plan.accounts)]
        return asyncio.run(_run(plan, keys or [product.api_key], say))
    finally:
        product.close()


async def _run(plan: Plan, keys: list[str], say: Callable[[str], None]) -> Result:
    began_s = time.monotonic()

    def note(line: str) -> None:
        say(f"{time.monotonic() - began_s:7.1f} s  {line}")

    stack, report = Stack(plan.data), Report()
    clients = [
        Traffic(stack.addresses(), key, random.Random(f"{plan.seed}/{n}"), plan.wishes) for n, key in enumerate(keys)
    ]
    wrecker = Wrecker(stack, random.Random(plan.seed + 1), note, plan.arms)
    found: list[Wait] = []
    try:
        await asyncio.gather(*(traffic.is_known(KNOWN_S) for traffic in clients))
        await _storm(plan, clients, wrecker)
        note("calm")
        await _ready(stack)
        await _all_have_read(clients, report, 0)
        await _in_the_calm(clients[0], report)
        for traffic in clients:
            await check(traffic, report)
            report.broken += [Broken("an_answer_is_as_promised", one) for one in traffic.ledger.surprises]
        if plan.attempts:
            log, views = await asyncio.to_thread(check_attempts, stack, report, wrecker.strikes)
            found = waits(joined(traffic.ledger for traffic in clients).readings, views, log, wrecker.strikes)
    except AssertionError as error:
        report.broken.append(error if isinstance(error, Broken) else Broken("an_answer_is_as_promised", str(error)))
    finally:
        for traffic in clients:
            await traffic.close()
    ledger = joined(traffic.ledger for traffic in clients)
    result = Result(plan, report, ledger, wrecker.strikes, time.monotonic() - began_s, found)
    for line in result.summary():
        note(line)
    return result


async def _storm(plan: Plan, clients: list[Traffic], wrecker: Wrecker) -> None:
    """Users talk while parts are struck; returns when they have stopped, and nothing is paused any more."""
    stop = asyncio.Event()
    users = [asyncio.create_task(traffic.converse(stop, plan.pace_s)) for traffic in clients for _ in range(plan.users)]
    try:
        await wrecker.wreck(plan.kills, plan.every_s, plan.within_s)
    finally:
        wrecker.calm()
        stop.set()
    await asyncio.gather(*users)
    for traffic in clients:
        traffic.ledger.flushed, traffic.ledger.silenced = wrecker.flushed, wrecker.silenced


async def _all_have_read(clients: list[Traffic], report: Report, since: int) -> None:
    """Whoever does not come to its end breaks a promise; of the readers from number `since` on."""
    for traffic in clients:
        if not await traffic.all_have_read(READERS_S):
            report.broken += [_waits(r.read) for r in traffic.ledger.readings[since:] if not r.task_done]


async def _ready(stack: Stack) -> None:
    deadline = time.monotonic() + READY_S
    while not stack.ready():
        if time.monotonic() > deadline:
            states = {name: part["state"] for name, part in stack.parts().items() if part["state"] != "ready"}
            raise Broken("every_part_comes_back", f"not ready after {READY_S:.0f} s: {states}")
        await asyncio.sleep(0.2)


def _code(message: dict[str, Any]) -> str:
    """How it ended, and why, if that is told."""
    return str((message["error"] or {}).get("code") or message["status"])


def _waits(read: Read) -> Broken:
    return Broken("a_reader_sees_the_end", f"{read.who} of {read.reply_id} waits at {read.cursor}")


async def _in_the_calm(traffic: Traffic, report: Report) -> None:
    """With nothing in the way: readers are prompt, and a cancel stops a reply at once."""
    before = len(traffic.ledger.readings)
    for _ in range(5):
        asked = await traffic.send(script={"chunks": 60, "every_ms": 20})
        for _ in range(12):
            traffic.follow(asked.reply_ids[0], 1)
            await asyncio.sleep(0.1)
    await _all_have_read([traffic], report, before)
    for reading in traffic.ledger.readings[before:]:
        if reading.read.after == 0 and end_is_seen(reading.read):
            report.hold(a_reader_is_prompt, f"{reading.read.who} of {reading.read.reply_id}", reading.waited_s)
    asked = await traffic.send(script={"chunks": 2_000, "every_ms": 20})
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
