"""How long readers wait when a worker goes, and how soon a cancelled reply's slot serves the next one.

Twenty replies run on two workers, and each has a reader. One worker is killed (SIGKILL), told to drain with a grace of
one second (SIGTERM), or stopped (SIGSTOP), in turn. Of each reader whose reply it had: the time from the signal to the
`reset`, and to the first new word. Then a worker with one slot, one reply that runs and one that waits: the time from
the cancel of the one to the `started` event of the other; beside it the same of a send that finds the slot free.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence

import msgspec
import uvloop

from tests.benchmarks import report, sse_load
from tests.benchmarks.stack import Stack, running

STREAMS = 20
EVERY_MS = 50
WATCHED_S = 10.0
"""So long readers are watched after a signal."""
SILENT_S = 3.0
"""A reader that has had no word for so long at the end of it was left behind."""
RESET_TARGET_S = 5.0
WORD_TARGET_S = 6.0
SLOT_TARGET_S = 0.25
READY_S = 60.0
SIGNALS = {
    signal.SIGKILL: "SIGKILL",
    signal.SIGTERM: "SIGTERM, 1 s of grace",
    signal.SIGSTOP: "SIGSTOP",
}


class Watched(sse_load.Stream):
    """A stream that knows when each of its bytes came, on the clock of `time.perf_counter`."""

    def __init__(self, request: sse_load.Request) -> None:
        super().__init__(request)
        self.arrived: list[tuple[int, float]] = []
        """Length of what has come, and when."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.arrived.append((len(self.body), time.perf_counter()))

    def at(self, mark: bytes, after: int = 0) -> tuple[int, float] | None:
        """Where and when a mark came, the first after a place."""
        place = self.body.find(mark, after)
        if place < 0:
            return None
        return place, next(at for length, at in self.arrived if length >= place + len(mark))

    async def until(self, mark: bytes, within_s: float = READY_S) -> float:
        """When the mark came. Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while (found := self.at(mark)) is None:  # noqa: ASYNC110 - bytes that arrive, which nothing announces
                await asyncio.sleep(0.005)
        return found[1]


class Round(msgspec.Struct, frozen=True):
    """What the readers at the worker waited, in seconds, and how many got nothing more."""

    resets: list[float]
    words: list[float]
    left_behind: int


async def watch(stack: Stack, reply_id: str) -> Watched:
    """A reader of a reply."""
    loop = asyncio.get_running_loop()
    request = sse_load.follow(stack.port, stack.api_key, reply_id)
    _, stream = await loop.create_connection(lambda: Watched(request), "127.0.0.1", stack.port)
    return stream


async def cancel(stack: Stack, reply_id: str) -> None:
    """Ask for a reply's end."""
    path = f"/v1/messages/{reply_id}/cancel"
    await sse_load.fetch(stack.port, path, stack.api_key, method="POST", body={})


async def round_of(stack: Stack, victim: str, number: signal.Signals) -> Round:
    """Twenty replies, and the signal to one of the workers."""
    pid = await _when_ready(stack, victim)
    script = {"chunks": 4_000, "every_ms": EVERY_MS}
    replies = [await sse_load.accepted(stack.port, stack.api_key, script) for _ in range(STREAMS)]
    streams = [await watch(stack, reply_id) for reply_id in replies]
    await asyncio.wait_for(asyncio.gather(*(stream.spoken for stream in streams)), READY_S)
    await asyncio.sleep(1.0)
    os.kill(pid, number)
    struck = time.perf_counter()
    await asyncio.sleep(WATCHED_S)
    over = time.perf_counter()
    if number == signal.SIGSTOP:
        os.kill(pid, signal.SIGCONT)
    await asyncio.gather(*(cancel(stack, reply_id) for reply_id in replies))
    await asyncio.wait_for(asyncio.gather(*(stream.done for stream in streams)), READY_S)
    resets, words = [], []
    for stream in streams:
        reset = stream.at(b"event: reset")
        if reset is not None:
            resets.append(reset[1] - struck)
            word = stream.at(b"event: delta", reset[0])
            words.append(word[1] - struck if word else WATCHED_S)
    left = sum(
        stream.began + max(at for at, _ in stream.reads if stream.began + at <= over) < over - SILENT_S
        for stream in streams
    )
    return Round(resets, words, left)


async def _when_ready(stack: Stack, name: str) -> int:
    """The worker's pid, once every part is ready."""
    async with asyncio.timeout(READY_S):
        while True:
            parts = await asyncio.to_thread(stack.parts)
            if all(part["state"] == "ready" for part in parts.values()):
                return int(parts[name]["pid"])
            await asyncio.sleep(0.2)


async def failovers(stack: Stack, rounds: int) -> dict[signal.Signals, list[Round]]:
    """Each signal in turn, to each worker in turn."""
    found: dict[signal.Signals, list[Round]] = {}
    for number, name in SIGNALS.items():
        for count in range(rounds):
            made = await round_of(stack, f"worker-{count % 2}", number)
            found.setdefault(number, []).append(made)
            print(
                f"{name}: {len(made.resets)} readers, reset {max(made.resets, default=0):.2f} s, "
                f"word {max(made.words, default=0):.2f} s, left behind {made.left_behind}",
                flush=True,
            )
    return found


async def slots(stack: Stack, times: int) -> list[float]:
    """Seconds from the cancel of what runs to the start of what waits."""
    found: list[float] = []
    script = {"chunks": 4_000, "every_ms": EVERY_MS}
    runs = await sse_load.accepted(stack.port, stack.api_key, script)
    stream = await watch(stack, runs)
    await stream.until(b"event: delta")
    for _ in range(times):
        waits = await sse_load.accepted(stack.port, stack.api_key, script)
        following = await watch(stack, waits)
        await asyncio.sleep(0.5)
        cancelled = time.perf_counter()
        await cancel(stack, runs)
        found.append(await following.until(b"event: started") - cancelled)
        stream.leave()
        await following.until(b"event: delta")
        runs, stream = waits, following
    await cancel(stack, runs)
    stream.leave()
    return found


async def sends(stack: Stack, times: int) -> list[float]:
    """Seconds from a send to its start, when nothing runs."""
    found: list[float] = []
    for _ in range(times):
        sent = time.perf_counter()
        reply_id = await sse_load.accepted(stack.port, stack.api_key, {"chunks": 5})
        stream = await watch(stack, reply_id)
        found.append(await stream.until(b"event: started") - sent)
        await stream.done
        await asyncio.sleep(0.5)
    return found


async def begins(stack: Stack, times: int) -> tuple[list[float], list[float]]:
    """Starts after a cancel, and of sends to an idle worker."""
    return await slots(stack, times), await sends(stack, times)


def made(found: dict[signal.Signals, list[Round]], freed: Sequence[float], direct: Sequence[float]) -> report.Result:
    """Tables, figures and targets."""
    rows, figures, reached = [], {}, {}
    for number, rounds in found.items():
        resets = [reset for one in rounds for reset in one.resets]
        words = [word for one in rounds for word in one.words]
        left = sum(one.left_behind for one in rounds)
        name = signal.Signals(number).name.lower()
        shares = [
            report.percentile(resets, 0.5),
            max(resets, default=WATCHED_S),
            report.percentile(words, 0.5),
            max(words, default=WATCHED_S),
        ]
        rows.append((SIGNALS[number], str(len(resets)), *(f"{share:.2f} s" for share in shares), str(left)))
        figures |= {f"{name}_reset_max_s": shares[1], f"{name}_word_max_s": shares[3], f"{name}_left_behind": left}
        reached[f"{SIGNALS[number]}: every reader has the reset in {RESET_TARGET_S:g} s"] = shares[1] <= RESET_TARGET_S
        reached[f"{SIGNALS[number]}: and a new word in {WORD_TARGET_S:g} s"] = shares[3] <= WORD_TARGET_S and not left
    p50, p99 = report.percentile(freed, 0.5), report.percentile(freed, 0.99)
    figures |= {"slot_p50_s": p50, "slot_p99_s": p99, "send_p50_s": report.percentile(direct, 0.5)}
    reached[f"a cancelled reply's slot has begun the next one in {SLOT_TARGET_S * 1000:g} ms"] = p99 <= SLOT_TARGET_S
    columns = ("signal", "readers", "reset, p50", "max", "new word, p50", "max", "left behind")
    tables = [
        report.Table("From the signal", columns, tuple(rows)),
        report.Table(
            "To `started`",
            ("", "times", "p50", "p99"),
            (_row("from the cancel of what held the slot", freed), _row("from a send, the slot is free", direct)),
        ),
    ]
    how = f"""{STREAMS} replies on two workers with room for each other's, {len(next(iter(found.values())))} rounds of
        each signal; then a worker with one slot. The workers' leases are of 3 s."""
    return report.result("failover", how, tables, figures, reached)


def _row(name: str, values: Sequence[float]) -> tuple[str, ...]:
    p50, p99 = report.percentile(values, 0.5), report.percentile(values, 0.99)
    return name, str(len(values)), report.ms(p50), report.ms(p99)


def main() -> int:
    """Run it; exit code 1 when a target is missed."""
    parser = report.options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cancels", type=int, default=30)
    chosen = parser.parse_args()
    calm = {"TURNLOG_OVERLOAD_STAGES": "false", "TURNLOG_ACCOUNT_RUNNING_MAX_FREE": "64"}
    with running("--workers", "2", env=calm | {"TURNLOG_SLOTS": "32", "TURNLOG_DRAIN_GRACE_S": "1"}) as stack:
        found = uvloop.run(failovers(stack, chosen.rounds))
    with running("--workers", "1", env=calm | {"TURNLOG_SLOTS": "1"}) as stack:
        freed, direct = uvloop.run(begins(stack, chosen.cancels))
    return report.finish(made(found, freed, direct), chosen)


if __name__ == "__main__":
    sys.exit(main())
