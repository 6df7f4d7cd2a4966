"""What must hold at the end of a history, whatever happened in it: `promises`, and what only a simulation can see.

Each function here asks one question of the whole history. What falls is a `Broken` that names its invariant.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from decimal import Decimal

from api.replay import Unserved, stored_frames
from schemas.conversation import Conversation, branch, fold
from schemas.events import (
    ConversationDeleted,
    Event,
    GenerationAdmitted,
    MessageSubmitted,
    RegenerationRequested,
    ReplyStored,
    UsageRecorded,
)
from schemas.models import DEFAULT_MODELS, cost
from schemas.reply import Reply, apply
from schemas.stream import frame
from tests.simulation import promises
from tests.simulation.clients import Clients, Sent
from tests.simulation.frames import Kept, Read
from tests.simulation.processes import DEADLINE_MS
from tests.simulation.promises import invariant, require
from tests.simulation.world import World

CANCEL_WITHIN_MS = 6_000
SERVED_WITHIN_MS = 25_000
"""After the last fault: its lease, a restart, and what stood before it in the line."""
SWEPT = "deadline_exceeded"


class Outcome:
    """The log of a history, folded anew, without any of the processes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clients: Clients = world.clients
        self.messages = world.log.events("messages")
        self.replies: dict[str, Reply] = {}
        self.frames: dict[str, list[bytes]] = defaultdict(list)
        for event in world.log.events("tokens"):
            self._take(event)
        self.stored: dict[str, list[ReplyStored]] = defaultdict(list)
        for event in self.messages:
            if isinstance(event, ReplyStored):
                self.stored[event.reply_id].append(event)
        self.usage: dict[str, list[UsageRecorded]] = defaultdict(list)
        """What replies are charged with."""
        self.void: dict[str, list[UsageRecorded]] = defaultdict(list)
        """What attempts used that came to nothing."""
        for event in world.log.events("usage"):
            if isinstance(event, UsageRecorded):
                kept = self.usage if event.record_kind == "reply" else self.void
                kept[event.reply_id].append(event)
        self.accepted: dict[str, Sent] = {id_: sent for id_, sent in self.clients.sent.items() if sent.accepted}
        self.conversations = self._conversations()
        self.deleted = {event.conversation_id for event in self.messages if isinstance(event, ConversationDeleted)}
        """Also by a call that was not answered."""

    def _take(self, event: Event) -> None:
        reply_id = getattr(event, "reply_id", "")
        after, given = apply(self.replies.get(reply_id), event)
        if after is not None:
            self.replies[reply_id] = after
            first = after.offset - len(given) + 1
            self.frames[reply_id] += [frame(offset, seen) for offset, seen in enumerate(given, start=first)]

    def _conversations(self) -> dict[str, Conversation]:
        histories: dict[str, list[Event]] = defaultdict(list)
        for event in self.messages:
            histories[event.conversation_id].append(event)  # type: ignore[attr-defined]
        folded = {id_: fold(history) for id_, history in histories.items()}
        return {id_: conversation for id_, conversation in folded.items() if conversation is not None}

    def stored_of(self, reply_id: str) -> tuple[bytes, ...]:
        """What a reader from the beginning, or from the first event, gets where only the stored reply is left."""
        if not self.stored[reply_id]:
            return ()
        served = [stored_frames(self.stored[reply_id][0], after) for after in (0, 1)]
        return tuple(data for frames in served if not isinstance(frames, Unserved) for data in frames)


def check(world: World) -> None:
    """All promises. Raises `Broken` that names the invariant and the reply."""
    outcome = Outcome(world)
    for question in QUESTIONS:
        question(outcome)


def readers_see_the_stream(outcome: Outcome) -> None:
    """Every reader has the stream of the log, or was told why not."""
    frames_belong_to_their_offsets(outcome)
    for follower in outcome.world.audience.followers:
        read = follower.read
        a_reader_is_prompt(follower.late)
        nobody_is_turned_away_without_reason(outcome, read)
        the_end_is_answered_as_the_end(outcome, read.reply_id, follower.after_end)
        promises.of_a_reader(read, outcome.frames[read.reply_id], outcome.stored_of(read.reply_id))


def streams_keep_their_promises(outcome: Outcome) -> None:
    """What a stream says about itself, what is stored and what is billed."""
    for reply_id, sent in outcome.accepted.items():
        frames = outcome.frames[reply_id]
        promises.of_a_stream(reply_id, frames, sent.words)
        stored = [_stored(one) for one in outcome.stored[reply_id]]
        billed = list(dict.fromkeys(_billed(one) for one in outcome.usage[reply_id]))
        promises.everybody_has_the_same_end(reply_id, frames, [*stored, *billed])
        for one in stored:
            promises.seen_is_stored(reply_id, frames, one)
        promises.seen_is_billed(reply_id, frames, billed)
        the_bill_is_its_price(outcome, reply_id)
    nobody_answers_unasked(outcome)


def sends_are_idempotent(outcome: Outcome) -> None:
    """One message and one reply for one client id; each turn is admitted once at most."""
    for sent in outcome.accepted.values():
        promises.one_client_id_is_one_reply(sent.event.identity(), sent.answers)
    for conversation in outcome.conversations.values():
        if not conversation.deleted:
            has = {message.request.identity() for message in conversation.messages.values()}
            positions = [message.position for message in conversation.messages.values()]
            mine = {
                sent.event.identity()
                for sent in outcome.accepted.values()
                if sent.event.conversation_id == conversation.id
            }
            promises.a_conversation_has_what_was_sent(conversation.id, positions, has, mine)
    a_turn_is_admitted_once(outcome)


def cancels_work(outcome: Outcome) -> None:
    """What was cancelled in time does not run to its end."""
    for reply_id, sent in outcome.accepted.items():
        reply = outcome.replies[reply_id]
        if sent.cancelled_ms is not None and reply.end is not None:
            promises.a_cancelled_reply_stops(
                reply_id, reply.end.status, reply.ended_at_ms, sent.cancelled_ms, CANCEL_WITHIN_MS
            )


def _stored(event: ReplyStored) -> Kept:
    return Kept(
        where="stored",
        status=event.status,
        output_tokens=event.usage.output_tokens,
        text=event.text,
        final_offset=event.final_offset,
    )


def _billed(event: UsageRecorded) -> Kept:
    return Kept(where="billed", status=event.status, output_tokens=event.output_tokens)


@invariant
def frames_belong_to_their_offsets(outcome: Outcome) -> None:
    """Whoever writes the buffer writes the same bytes at the same offset, and what is there is what the log says."""
    require(not outcome.world.store.wrong, f"{outcome.world.store.wrong[:3]}")
    for reply_id in outcome.accepted:
        there = outcome.world.store.frames(reply_id)
        if there or not outcome.world.store.losses:
            wanted = outcome.frames[reply_id]
            require(there == wanted, f"{reply_id} has {len(there)} frames in the buffer, {len(wanted)} in the log")


@invariant
def a_reader_is_prompt(late: str) -> None:
    """A connected reader does not wait for what is there until the next heartbeat comes along."""
    require(not late, late)


@invariant
def nobody_is_turned_away_without_reason(outcome: Outcome, read: Read) -> None:
    """A cursor is refused only where its events are lost, or the conversation is deleted."""
    if read.told == "gone":
        stored = outcome.stored_of(read.reply_id)
        served = any(data in stored for data in read.frames) or read.after > 0
        require(outcome.world.store.losses or served, f"{read.who} of {read.reply_id} got 410 after {read.cursor}")
    elif read.told == "deleted":
        conversation = outcome.clients.sent[read.reply_id].event.conversation_id
        require(conversation in outcome.deleted, f"{read.who} of {read.reply_id} got 404")


@invariant
def the_end_is_answered_as_the_end(outcome: Outcome, reply_id: str, answer: int | None) -> None:
    """Whoever asks for more after the end is told that there is none."""
    conversation = outcome.clients.sent[reply_id].event.conversation_id
    allowed = (None, 204, 404) if conversation in outcome.deleted else (None, 204)
    require(answer in allowed, f"{reply_id}: after its end comes {answer}")


@invariant
def the_bill_is_its_price(outcome: Outcome, reply_id: str) -> None:
    """The bills of a reply are equal, and of the price of its tokens; what failed and what was void costs nothing."""
    bills = outcome.usage[reply_id]
    require(all(bill == bills[0] for bill in bills), f"{reply_id} has the bills {bills}")
    end = outcome.replies[reply_id].end
    wanted = cost(end.usage, DEFAULT_MODELS[0].price) if end else None
    if end and end.status == "failed":
        wanted = Decimal(0)
    void = {(one.record_kind, one.cost, one.charged, one.output_tokens) for one in outcome.void[reply_id]}
    require(all(amount == "0" and not charged for _, amount, charged, _ in void), f"{reply_id} pays for {void}")
    require(len({kind for kind, *_ in void}) == len(void), f"{reply_id} has void attempts in two versions: {void}")
    require(bills and Decimal(bills[0].cost) == wanted, f"{reply_id} costs {bills[0].cost}, not {wanted}")


@invariant
def nobody_answers_unasked(outcome: Outcome) -> None:
    """Every reply was asked for."""
    strangers = outcome.replies.keys() - outcome.clients.sent.keys()
    require(not strangers, f"nobody asked for {strangers}")


@invariant
def a_turn_is_admitted_once(outcome: Outcome) -> None:
    """No reply is generated on two admissions."""
    admitted = Counter(e.reply_id for e in outcome.world.log.events("requests") if isinstance(e, GenerationAdmitted))
    twice = [reply_id for reply_id, count in admitted.items() if count > 1]
    require(not twice, f"{twice} were admitted twice")


@invariant
def a_turn_knows_what_was_said(outcome: Outcome) -> None:
    """The prompt of a turn is its branch, with the replies as they were stored."""
    for event in outcome.world.log.events("requests"):
        if not isinstance(event, GenerationAdmitted):
            continue
        conversation = outcome.conversations[event.conversation_id]
        if conversation.deleted:
            continue
        request = conversation.messages[event.reply_id].request
        assert isinstance(request, MessageSubmitted | RegenerationRequested)
        path = branch(conversation, conversation.messages[event.reply_id].parent_id)
        said = _joined([(message.role, message.text) for message in path if message.text])
        prompt = [(message.role, message.content) for message in event.prompt if message.content]
        require(prompt == said, f"{event.reply_id} was asked {prompt}, the branch is {said}")


def _joined(said: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbours of one role are one message of a prompt (a reply without text is left out)."""
    joined: list[tuple[str, str]] = []
    for role, text in said:
        if joined and joined[-1][0] == role:
            joined[-1] = (role, f"{joined[-1][1]}\n\n{text}")
        else:
            joined.append((role, text))
    return joined


@invariant
def nothing_is_left_behind(outcome: Outcome) -> None:
    """No process holds a reply that has not ended, and nothing had to raise an alarm.

    Settlement may hold one that has: a dispatch that was stopped opens it late, after settlement was restarted. It is
    given up after a declared time (`test_faults_found`), and until then it costs folding again.
    """
    require(not outcome.world.alarms, f"alarms: {outcome.world.alarms}")
    for process in outcome.world.processes:
        settled = getattr(process.running, "_step", None)
        if process.group == "settlement" and settled is not None:
            held = {reply_id for book in settled._books.values() for reply_id in book.open}
            left = held - outcome.stored.keys()
            require(not left, f"{process.name} holds {left} open")


@invariant
def every_reply_ends_in_time(outcome: Outcome) -> None:
    """The sweeper's bound; and what runs is not left to the sweeper: no deadline is so short."""
    late = [
        reply_id
        for reply_id in outcome.accepted
        if outcome.replies[reply_id].ended_at_ms - outcome.replies[reply_id].queued.submitted_at_ms > 3 * DEADLINE_MS
    ]
    require(not late, f"late: {late}")
    for reply_id in outcome.accepted:
        reply = outcome.replies[reply_id]
        since_ms = max(reply.queued.submitted_at_ms, outcome.world.calm_ms)
        promises.nobody_waits_for_ever(reply_id, reply.ended_at_ms, since_ms, SERVED_WITHIN_MS)
    ends = {reply_id: outcome.replies[reply_id].end for reply_id in outcome.accepted}
    swept = [reply_id for reply_id, end in ends.items() if end and end.error and end.error.code == SWEPT]
    require(not swept, f"nobody ended {swept} but the sweeper")


QUESTIONS: tuple[Callable[[Outcome], None], ...] = (
    streams_keep_their_promises,
    readers_see_the_stream,
    sends_are_idempotent,
    cancels_work,
    a_turn_knows_what_was_said,
    nothing_is_left_behind,
    every_reply_ends_in_time,
)
