"""The promises, from outside: what the clients of a run have, against what the service says when all is calm again."""

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from schemas.stream import Delta, Reset, Started
from tests.chaos.ledger import Asked, Ledger
from tests.chaos.traffic import Traffic
from tests.simulation import promises
from tests.simulation.frames import Kept, Read, end_of, events_of, parsed
from tests.simulation.promises import Broken, invariant, require

UNEXPECTED = ("stream_gap", "engine_error", "engine_stalled", "invalid_request")
"""Reasons for a failed end that nothing in a run gives; but `engine_stalled` to a reply that was told to hang, and to
others where engines fell silent (which ones, `tests.chaos.attempts` looks)."""
PROMPT_S = 5.0
VIEWS_S = 120.0
"""How long the views may be behind after the calm has come."""
ECHO = '"chunks"'
"""In a text: where a reply before it had none, two messages are asked as one, and the engine echoes them."""
CANCEL_WITHIN_MS = 2_000
SERVED_MAX = 4
"""Of the stored reply, behind the first event: `reset`, `started`, the text, the end."""


@dataclass(frozen=True)
class Checked:
    """A reply as it ended."""

    asked: Asked
    message: dict[str, Any]
    """What `GET /v1/messages/{id}` says of it."""
    stream: list[bytes]
    """Its whole stream; empty where nobody has all of it."""


class Report:
    """What was compared, and what did not hold."""

    def __init__(self) -> None:
        self.broken: list[Broken] = []
        self.statuses: dict[str, int] = defaultdict(int)
        self.streams = 0
        """Replies of which the whole stream is known."""
        self.frames = 0
        self.replies: list[Checked] = []

    def hold(self, check: Any, *arguments: Any) -> None:
        """Note what does not hold, and go on."""
        try:
            check(*arguments)
        except Broken as broken:
            self.broken.append(broken)


async def check(traffic: Traffic, report: Report) -> None:
    """All of it."""
    ledger = traffic.ledger
    bills = await _bills(traffic, {asked.reply_ids[0] for asked in ledger.answered()})
    for asked in ledger.answered():
        report.hold(promises.one_client_id_is_one_reply, asked.client_id, asked.reply_ids)
        reads = [one.read for one in ledger.readings if one.read.reply_id == asked.reply_ids[0]]
        final = await traffic.whole(asked.reply_ids[0])
        message = (await traffic.call("GET", f"/v1/messages/{asked.reply_ids[0]}")).json()
        report.statuses[message["status"]] += 1
        _check_reply(report, asked, [*reads, final], message, bills[asked.reply_ids[0]])
        report.hold(it_fails_for_a_reason, asked, message, ledger)
    await _check_conversations(traffic, report)
    report.hold(nobody_is_billed_unasked, ledger, set(bills))
    for reading in ledger.readings:
        report.hold(the_end_is_answered_as_the_end, reading.read, reading.after_end)
        report.hold(nobody_is_turned_away_without_reason, ledger, reading.read)


async def _bills(traffic: Traffic, wanted: set[str]) -> dict[str, list[Kept]]:
    """All charges by reply, once the views have those of all that was asked."""
    deadline = time.monotonic() + VIEWS_S
    while True:
        bills: dict[str, list[Kept]] = defaultdict(list)
        for record in await traffic.pages("/v1/usage/records"):
            if record["record_kind"] != "reply":
                continue
            bill = Kept(where="billed", status=record["status"], output_tokens=record["output_tokens"])
            bills[record["message_id"]].append(bill)
        if wanted <= bills.keys() or time.monotonic() > deadline:
            return bills
        await asyncio.sleep(1.0)


def _check_reply(report: Report, asked: Asked, reads: list[Read], message: dict[str, Any], bills: list[Kept]) -> None:
    reply_id = asked.reply_ids[0]
    frames = streamed(reads)
    end = _end(reads)
    whole = frames if end and sorted(frames) == list(range(1, end + 1)) else {}
    for read in reads:
        report.frames += len(read.frames)
        report.hold(a_reader_has_the_stream, read, frames, end, message["text"])
    stored = Kept(
        where="stored",
        status=message["status"],
        output_tokens=message["usage"]["output_tokens"],
        text=message["text"],
        final_offset=message["offset"],
    )
    report.hold(promises.everybody_has_the_same_end, reply_id, _last(reads), [*bills])
    stream = [whole[offset] for offset in sorted(whole)]
    report.replies.append(Checked(asked, message, stream))
    if stream:
        report.streams += 1
        if ECHO not in message["text"]:
            report.hold(promises.of_a_stream, reply_id, stream, asked.words)
        report.hold(promises.everybody_has_the_same_end, reply_id, stream, [stored, *bills])
        report.hold(promises.seen_is_stored, reply_id, stream, stored)
        report.hold(promises.seen_is_billed, reply_id, stream, bills)
    else:
        report.hold(stored_is_billed, reply_id, stored, bills)


def streamed(reads: list[Read]) -> dict[int, bytes]:
    """The stream by offset, of those who followed it.

    A read with a jump was served from the stored reply, and so was one that begins with a later attempt's `started`: a
    stream begins with the first attempt, or with a reset. Where it is long, it went on from the buffer.
    """
    frames: dict[int, bytes] = {}
    for read in reads:
        stored = _begins_stored(read)
        if _is_dense(read) and not (stored and len(read.frames) <= 1 + SERVED_MAX):
            for data in read.frames[stored:]:
                frames.setdefault(parsed(data)[0], data)
    return frames


def _is_dense(read: Read) -> bool:
    offsets = [parsed(data)[0] for data in read.frames]
    return offsets == list(range(read.after + 1, read.after + 1 + len(offsets)))


def _begins_stored(read: Read) -> bool:
    offset, event = parsed(read.frames[0]) if read.frames else (0, None)
    return offset == 1 and isinstance(event, Started) and event.attempt > 1


def _end(reads: list[Read]) -> int:
    """The final offset, of those who saw the end."""
    return max((read.cursor for read in reads if end_of(read.frames)), default=0)


def _last(reads: list[Read]) -> list[bytes]:
    return next((read.frames[-1:] for read in reads if end_of(read.frames)), [])


@invariant
def a_reader_has_the_stream(read: Read, frames: dict[int, bytes], final: int, text: str) -> None:
    """Each event once, in order, the same bytes for all, to the end; or the stored reply with the same text and end."""
    offsets = [parsed(data)[0] for data in read.frames]
    who = f"{read.who} of {read.reply_id} after {read.after}"
    require(read.told or read.cursor == final, f"{who} is at {read.cursor} of {final}")
    stored = _begins_stored(read)
    others = [(data, frames.get(parsed(data)[0])) for data in read.frames[stored:]]
    strange = next((pair for pair in others if pair[0] != pair[1]), None)
    if _is_dense(read) and not (stored and strange):
        require(strange is None, f"{who} got {strange and strange[0]!r}, others {strange and strange[1]!r}")
        return
    rest = offsets[1:] if read.after == 0 else offsets
    served = offsets[:1] == [1] or read.after == 1
    require(served and len(rest) <= SERVED_MAX, f"{who} got {offsets[:20]} of {final}")
    require(rest == list(range(final - len(rest) + 1, final + 1)), f"{who} got {offsets[:20]} of {final}")
    seen = [event for _, event in events_of(read.frames)]
    again = offsets[:1] == [1] and isinstance(seen[0], Reset) and not isinstance(seen[1], Reset)
    require(not again, f"{who} got {offsets[:20]}, and no reset before what the stored reply has")
    deltas = [event.text for event in seen if isinstance(event, Delta)]
    require("".join(deltas) == text, f"{who} was served {deltas}, stored is {text!r}")


@invariant
def it_fails_for_a_reason(asked: Asked, message: dict[str, Any], ledger: Ledger) -> None:
    """Nothing is missing from the log, and no engine has failed that was not told to."""
    code = (message["error"] or {}).get("code")
    told = code == "engine_stalled" and (asked.fault == "hangs" or ledger.silenced)
    require(told or code not in UNEXPECTED, f"{asked.reply_ids[0]} ended as {message['status']}: {message['error']}")


@invariant
def stored_is_billed(reply_id: str, stored: Kept, bills: list[Kept]) -> None:
    """Where nobody has seen the whole stream: one bill, as the stored reply says."""
    require(len(bills) == 1, f"{reply_id} has {len(bills)} bills")
    require(
        (bills[0].output_tokens, bills[0].status) == (stored.output_tokens, stored.status),
        f"{reply_id} is stored as {stored} and billed as {bills[0]}",
    )


@invariant
def nobody_is_billed_unasked(ledger: Ledger, billed: set[str]) -> None:
    """There is a bill for each reply that was asked for, and for no other."""
    asked = {asked.reply_ids[0] for asked in ledger.answered()}
    require(billed == asked, f"not billed: {sorted(asked - billed)}, not asked for: {sorted(billed - asked)}")


@invariant
def the_end_is_answered_as_the_end(read: Read, answer: int | None) -> None:
    """Whoever asks for more after the end is told that there is none."""
    require(answer in (None, 204), f"{read.who} of {read.reply_id}: after its end comes {answer}")


@invariant
def nobody_is_turned_away_without_reason(ledger: Ledger, read: Read) -> None:
    """410 is for what is lost: only a flushed Redis has lost something in a run."""
    require(not read.told or ledger.flushed, f"{read.who} of {read.reply_id} got 410 after {read.cursor}")


@invariant
def a_reader_is_prompt(who: str, waited_s: float) -> None:
    """In the calm all readers of a reply see its end at about the same time."""
    require(waited_s < PROMPT_S, f"{who} saw the end {waited_s:.1f} s after the first one")


async def _check_conversations(traffic: Traffic, report: Report) -> None:
    mine: dict[str, set[str]] = defaultdict(set)
    for asked in traffic.ledger.answered():
        mine[asked.conversation_id] |= {id_ for id_ in (asked.reply_ids[0], asked.message_id) if id_}
    for conversation_id, sent in mine.items():
        messages = await traffic.pages(f"/v1/conversations/{conversation_id}/messages")
        positions = [message["position"] for message in messages]
        has = {message["id"] for message in messages}
        report.hold(promises.a_conversation_has_what_was_sent, conversation_id, positions, has, sent)
