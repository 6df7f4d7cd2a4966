"""From SIGKILL of turns or dispatch until sends move again, at 20 sends a second, none lost and none doubled.

Two instances of each run and are killed in turn (one pool is one instance's); the supervisor starts them again.
Recovery is the longest that a send of the time around the kill waited for its first token: the first one that nobody
served. Afterwards every accepted message must have one reply with its whole text, and one usage record.
"""

import asyncio
import os
import signal
import sys
import time
import uuid
from typing import Any

import msgspec
import uvloop

from tests.benchmarks import report, sse_load
from tests.benchmarks.stack import Stack, running

RATE_PER_S = 20.0
BEFORE_S = 3.0
AFTER_S = 12.0
CHUNKS = 5
TARGET_S = 4.0
VICTIMS = ("streams-turns", "streams-dispatch")
TEXT = " ".join(f"word{number}" for number in range(1, CHUNKS + 1))


class Sent(msgspec.Struct):
    """One send: when (of the clock that the kill is timed with), its first token, and what was wrong with it."""

    at: float
    first_at: float | None
    reply_id: str | None
    fault: str | None


async def send(stack: Stack) -> Sent:
    """Send and read to the end, resuming by the rules for clients."""
    at = time.perf_counter()
    stream = await sse_load.read(
        stack.port,
        sse_load.send(stack.port, stack.api_key, {"chunks": CHUNKS}, client_message_id=uuid.uuid4().hex),
        within_s=90,
    )
    events = stream.events()
    sent = Sent(at, None, None, None)
    if stream.reads:
        sent.first_at = stream.began + stream.reads[0][0]
    text = ""
    for _, kind, data in events:
        if kind == "started":
            sent.reply_id = data["message_id"]
        text = "" if kind == "reset" else text + data.get("text", "")
    offsets = [offset for offset, _, _ in events]
    if not events or events[-1][1] != "ended":
        sent.fault = f"no end (status {stream.status})"
    elif events[-1][2]["status"] != "completed" or text != TEXT:
        sent.fault = f"{events[-1][2]['status']} with {text!r}"
    elif offsets != list(range(1, len(offsets) + 1)):
        sent.fault = f"offsets {offsets}"
    return sent


async def round_of(stack: Stack, victim: str) -> tuple[float, float, list[Sent]]:
    """Kill the victim under load; the longest wait before and after the kill, and all sends."""
    begin = time.perf_counter()
    killed_at: float | None = None
    sends: list[asyncio.Task[Sent]] = []
    pid = int(stack.parts()[victim]["pid"])
    for number in range(int(RATE_PER_S * (BEFORE_S + AFTER_S))):
        await asyncio.sleep(max(0.0, begin + number / RATE_PER_S - time.perf_counter()))
        if killed_at is None and time.perf_counter() - begin >= BEFORE_S:
            os.kill(pid, signal.SIGKILL)
            killed_at = time.perf_counter()
        sends.append(asyncio.create_task(send(stack)))
    made = await asyncio.gather(*sends)
    calm, disturbed = [0.0], [0.0]
    for sent in made:
        if sent.first_at is not None and killed_at is not None:
            (calm if sent.first_at < killed_at else disturbed).append(sent.first_at - sent.at)
    return max(calm), max(disturbed), list(made)


async def doubled(stack: Stack, sends: list[Sent]) -> int:
    """Replies whose usage records are not exactly one, once the views have caught up."""
    wanted = {sent.reply_id for sent in sends if sent.reply_id}
    counts: dict[str, int] = {}
    deadline = time.perf_counter() + 30
    while time.perf_counter() < deadline:
        counts = {}
        cursor = ""
        while True:
            path = f"/v1/usage/records?limit=200{cursor}"
            status, page = await sse_load.fetch(stack.port, path, stack.api_key)
            if status != 200:
                raise RuntimeError(f"{path}: {status} {page}")
            for record in page["data"]:
                counts[record["message_id"]] = counts.get(record["message_id"], 0) + 1
            if not page.get("next_cursor"):
                break
            cursor = f"&cursor={page['next_cursor']}"
        if wanted <= counts.keys():
            break
        await asyncio.sleep(0.5)
    return sum(counts.get(str(reply_id), 0) != 1 for reply_id in wanted)


async def measure(stack: Stack, rounds: int) -> report.Result:
    """Each victim in turn, several times."""
    rows, figures, reached = [], {}, {}
    everything: list[Sent] = []
    for victim in VICTIMS:
        calm, disturbed = [], []
        for number in range(rounds):
            calm_s, disturbed_s, sends = await round_of(stack, f"{victim}-{number % 2}")
            calm.append(calm_s)
            disturbed.append(disturbed_s)
            everything += sends
        figures[f"{victim}_max_s"] = max(disturbed)
        reached[f"sends move {TARGET_S:g} s after SIGKILL of {victim}"] = max(disturbed) <= TARGET_S
        each = ", ".join(f"{disturbed_s:.1f}" for disturbed_s in disturbed)
        rows.append((victim, f"{max(calm):.2f} s", f"{max(disturbed):.2f} s", each))
    faults: dict[str, int] = {}
    for sent in everything:
        if sent.fault:
            faults[sent.fault] = faults.get(sent.fault, 0) + 1
    figures["sends"] = len(everything)
    figures["lost"] = sum(faults.values())
    figures["doubled"] = await doubled(stack, everything)
    reached["none lost"] = not faults
    reached["none doubled"] = not figures["doubled"]
    counts: list[tuple[str, Any]] = [("sends", len(everything)), ("lost or wrong", faults or 0)]
    counts.append(("without exactly one usage record", int(figures["doubled"])))
    how = f"Two instances of turns and of dispatch, {RATE_PER_S:g} sends a second, {rounds} kills of each."
    tables = [
        report.Table(
            "Until sends move again",
            ("killed", "longest wait before", "longest wait after", "each kill (s)"),
            tuple(rows),
        ),
        report.Table("What became of the sends", ("", ""), tuple((name, str(count)) for name, count in counts)),
    ]
    return report.result("recovery", how, tables, figures, reached)


def main() -> int:
    """Run it; exit code 1 when a target is missed."""
    parser = report.options(__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    chosen = parser.parse_args()
    with running("--streams", "2") as stack:
        return report.finish(uvloop.run(measure(stack, chosen.rounds)), chosen)


if __name__ == "__main__":
    sys.exit(main())
