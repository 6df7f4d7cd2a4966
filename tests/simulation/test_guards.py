"""Without any one of its guards the service breaks a promise, and the checker says which, within a few histories.

A guard is taken out from here, by a substitution; each names the invariants of which one falls.
"""

import logging
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import pytest
import structlog

from api.reading import Reader
from schemas.events import TokensGenerated
from schemas.ids import Identities
from schemas.reply import Reply
from schemas.stream import Delta
from streams.log.memory.groups import Group
from streams.log.steps import Partition
from streams.settlement.step import Settle
from tests.simulation.__main__ import play, quiet
from tests.simulation.promises import Broken
from tests.simulation.store import Buffer, MemoryStore

SEEDS = 150
"""So many histories at most until the checker has to notice."""


class BlindStore(MemoryStore):
    """Appends whatever comes, wherever it belongs."""

    def _append_one(self, reply_id: str, first: int, new: list[bytes], *, ends: bool) -> int:
        return self.put(reply_id, self.buffers.setdefault(reply_id, Buffer()), new, ends=ends)


class StoreWithoutMarker(MemoryStore):
    """Is always the one that is expected."""

    def _mark(self, key: bytes, args: list[bytes]) -> bytes:
        return args[1] or args[0]


class ListFirst(Reader):
    """Reads the list, then subscribes, then goes on with what is pushed."""

    __slots__ = ("_confirmed_once",)

    def follow(self) -> None:
        """Not yet."""

    async def _available(self) -> bytes:
        if self._subscription is None:
            self._confirmed_once = False
            frames = await self._from_list()
            if not frames and not self._again:
                super().follow()
                self._confirmed_once, self._again = self._again, False
            return frames
        return await super()._available()

    def _look_again(self) -> None:
        if self._confirmed_once:
            super()._look_again()
        self._confirmed_once = True

    def beat(self) -> None:
        self._confirmed_once = True
        super().beat()


class BeatWithoutLook(Reader):
    """Sends its heartbeats and does not read the list for them."""

    __slots__ = ()

    def beat(self) -> None:
        self._beat_due = True
        self.wake()


class GreedySettle(Settle):
    """Commits all that it has read."""

    def settled(self) -> Mapping[Partition, int]:
        return {partition: book.next_offset for partition, book in self._books.items()}


class ForgetfulIdentities(Identities, frozen=True):
    """Gives a repeated send new ids."""

    def message(self, account_id: str, conversation_id: str, client_message_id: str | None) -> str:
        return super().message(account_id, conversation_id, None)

    def reply(self, account_id: str, conversation_id: str, client_message_id: str | None) -> str:
        return super().reply(account_id, conversation_id, None)


def any_generation_owns(reply: Reply, generation_id: str, attempt: int) -> bool:
    """Without the fence of attempts."""
    return generation_id != ""


def any_piece_counts(reply: Reply, event: TokensGenerated) -> tuple[Reply, tuple[Delta, ...]]:
    """Without the numbers of pieces."""
    if event.generation_id != reply.generation_id or event.attempt != reply.attempt:
        return reply, ()
    after = msgspec.structs.replace(
        reply,
        next_seq=event.seq + 1,
        pieces=(*reply.pieces, event.text),
        tokens=reply.tokens + event.tokens,
        offset=reply.offset + 1,
    )
    return after, (Delta(text=event.text),)


def anybody_commits(group: Group, member: object, offsets: Mapping[Partition, int]) -> bool:
    """Without the fence of owners."""
    group.committed.update(offsets)
    return True


def nothing_closes(_: object) -> bool:
    """Markers are asked by the clock only."""
    return False


WORLD = "tests.simulation.world"
LOST_END = ("a_reader_sees_the_end", "frames_belong_to_their_offsets")


class Guard(NamedTuple):
    """A guard, by what it is replaced where it is taken out, and which invariants may fall then."""

    name: str
    without: Mapping[str, object]
    falls: tuple[str, ...]
    first: int = 0
    """Where the search begins: any seed would do, this one is near to a history that shows it."""


GUARDS = (
    Guard(
        "offset fence of the append",
        {f"{WORLD}.MemoryStore": BlindStore},
        ("frames_belong_to_their_offsets",),
        first=150,
    ),
    Guard(
        "attempt fence of the fold",
        {"schemas.reply._owns": any_generation_owns},
        ("a_zombie_is_not_heard", "a_reset_precedes_a_new_attempt", "nothing_is_left_behind"),
        first=400,
    ),
    Guard("subscribe before replay", {"api.following.Reader": ListFirst}, ("a_reader_is_prompt",)),
    Guard("numbers of pieces", {"schemas.reply._tokens": any_piece_counts}, ("no_token_is_missed_or_doubled",)),
    Guard(
        "checkpoint at the oldest open",
        {"tests.simulation.processes.Settle": GreedySettle},
        ("an_accepted_message_ends_once",),
    ),
    Guard(
        "ids of a repeated send",
        {"tests.simulation.clients.IDENTITIES": ForgetfulIdentities(secret=b"of the simulation")},
        ("one_client_id_is_one_reply", "nobody_answers_unasked"),
    ),
    Guard("marker of a lost store", {f"{WORLD}.MemoryStore": StoreWithoutMarker}, LOST_END),
    Guard(
        "marker with every end",
        {"projections.buffer.replies.Replies.closing": nothing_closes, "projections.buffer.step.MARK_MS": 3_000},
        LOST_END,
    ),
    Guard(
        "look with every heartbeat", {"api.following.Reader": BeatWithoutLook}, ("a_reader_sees_the_end",), first=300
    ),
    Guard(
        "owners only commit",
        {"streams.log.memory.groups.Group.commit": anybody_commits},
        ("a_turn_is_admitted_once", "the_bill_is_its_price", "everybody_has_the_same_end"),
    ),
)


@pytest.fixture(autouse=True)
def _silent():
    quiet()
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    structlog.reset_defaults()


@pytest.mark.parametrize("guard", GUARDS, ids=[guard.name for guard in GUARDS])
def test_the_checker_notices_a_missing_guard(guard, monkeypatch):
    for target, without in guard.without.items():
        monkeypatch.setattr(target, without)
    seeds = range(guard.first, guard.first + SEEDS)
    fallen = next((broken for broken in map(broken_by, seeds) if broken is not None), None)
    assert fallen is not None, f"{SEEDS} histories without the guard `{guard.name}` broke nothing"
    assert fallen.invariant in guard.falls, fallen


def broken_by(seed: int) -> Broken | None:
    """What a history breaks."""
    try:
        play(seed)
    except Broken as broken:
        return broken
    return None
