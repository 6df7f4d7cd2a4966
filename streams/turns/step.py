"""The transactional step of turns: records of `messages` and `cancellations` in, admissions and declines out."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from schemas.codec import to_json
from schemas.events import (
    CancellationRequested,
    Event,
    MessageSubmitted,
    RegenerationRequested,
    ReplyStored,
)
from streams.log.steps import NOTHING, Arrived, Decision, Output, Record, StateRecord
from streams.state import newest
from streams.turns import rules
from streams.turns.admission import Request
from streams.turns.held import Held, next_due_ms
from streams.turns.policy import Policy
from streams.turns.records import declined_key, difference, early_key, restored

NUMBERS: Mapping[str, str] = {
    "turnlog_turns_conversations": "Conversations held",
    "turnlog_turns_chars": "Characters held of them",
    "turnlog_turns_open_replies": "Replies without a stored end",
    "turnlog_turns_notes": "Cancellations that came before their message, and declines of what is not held",
}


class Shard:
    """What one partition holds; changed by `Turns.committed` only."""

    def __init__(self, held: dict[str, Held], notes: dict[str, int]) -> None:
        self.held = held
        """Least recently active first."""
        self.notes = notes
        """Key of a note (`streams.turns.records`) -> when it was made."""
        self.chars = sum(one.chars for one in held.values())
        self.due = {id_: due for id_, one in held.items() if (due := next_due_ms(one)) is not None}
        self.next_due_ms = 0
        """Nothing is due before this."""


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to a shard; None removes."""

    held: Mapping[str, Held | None]
    notes: Mapping[str, int | None]
    next_due_ms: int | None = None
    """Found by the sweeper."""


class Turns:
    """A `TransactionalStep`."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._shards: dict[int, Shard] = {}

    def shard(self, number: int) -> Shard:
        """What a partition holds, for metrics and tests."""
        return self._shards[number]

    def numbers(self) -> Mapping[str, float]:
        """What `NUMBERS` names."""
        shards = self._shards.values()
        counts = (
            sum(len(shard.held) for shard in shards),
            sum(shard.chars for shard in shards),
            sum(len(shard.held[id_].open) for shard in shards for id_ in shard.due),
            sum(len(shard.notes) for shard in shards),
        )
        return dict(zip(NUMBERS, counts, strict=True))

    def restore(self, number: int, records: Iterable[Record], now_ms: int, flow_ms: int) -> None:  # noqa: ARG002
        """Takes the newest record of each key."""
        self._shards[number] = Shard(*restored(newest(records)))

    def decide(self, number: int, batch: Sequence[Arrived], now_ms: int, flow_ms: int) -> Decision:  # noqa: ARG002
        """Every record of the batch, then the sweeper, then the limits."""
        round_ = _Round(self._shards[number], self._policy, now_ms)
        for arrived in batch:
            round_.take(arrived)
        next_due_ms = round_.sweep()
        round_.archive()
        if not batch and next_due_ms is None:
            return NOTHING
        return round_.decision(next_due_ms)

    def committed(self, number: int, decision: Decision) -> None:
        """Take over the changes."""
        staged: Staged | None = decision.staged
        if staged is not None:
            _take_over(self._shards[number], staged)

    def written(self, number: int, decision: Decision) -> None:
        """Turns writes nothing outside of its transactions."""

    def revoked(self, number: int) -> None:
        """Forget the shard."""
        self._shards.pop(number, None)


class _Round:
    """One decision: changes over a shard that is not touched."""

    def __init__(self, shard: Shard, policy: Policy, now_ms: int) -> None:
        self._shard = shard
        self._policy = policy
        self._now_ms = now_ms
        self._held: dict[str, Held | None] = {}
        self._notes: dict[str, int | None] = {}
        self._outputs: list[Output] = []

    def take(self, arrived: Arrived) -> None:
        """One record."""
        event = arrived.envelope.event
        match event:
            case CancellationRequested():
                self._cancel(event, arrived)
            case MessageSubmitted() | RegenerationRequested():
                self._request(event, arrived)
            case _:
                self._other(event, arrived)

    def _request(self, event: Request, arrived: Arrived) -> None:
        declined, early = declined_key(event.reply_id), early_key(event.reply_id)
        if self._noted(declined) is not None:
            return
        cancelled = self._noted(early) is not None
        before = self._get(event.conversation_id)
        change = rules.requested(
            before, arrived.envelope, event, arrived.record.offset, self._policy, cancelled=cancelled
        )
        self._put(event.conversation_id, change)
        held, outputs = change
        if outputs and held is before:
            self._notes[declined] = self._now_ms
        if cancelled:
            self._notes[early] = None

    def _other(self, event: Event, arrived: Arrived) -> None:
        conversation_id = getattr(event, "conversation_id", None)
        held = self._get(conversation_id) if conversation_id is not None else None
        if conversation_id is None or held is None:
            return
        offset = arrived.record.offset
        if isinstance(event, ReplyStored):
            self._put(conversation_id, rules.stored(held, event, offset, self._policy))
        else:
            self._put(conversation_id, rules.changed(held, event, offset, self._policy, arrived.envelope))

    def _cancel(self, event: CancellationRequested, arrived: Arrived) -> None:
        held = self._get(event.conversation_id)
        if held is not None and (event.reply_id in held.open or _is_known(held, event.reply_id)):
            change = rules.cancelled(held, event.reply_id, self._policy, arrived.envelope)
            self._put(event.conversation_id, change)
        elif self._noted(early_key(event.reply_id)) is None:
            self._notes[early_key(event.reply_id)] = self._now_ms

    def sweep(self) -> int | None:
        """Ends what is overdue. Returns when the next one is due if it had to look, else None."""
        if self._now_ms < self._shard.next_due_ms:
            return None
        for conversation_id, due in self._shard.due.items():
            held = self._get(conversation_id)
            if due <= self._now_ms and held is not None:
                self._put(conversation_id, rules.swept(held, self._now_ms, self._policy))
        self._forget_notes()
        dues = {**self._shard.due, **{id_: next_due_ms(one) for id_, one in self._held.items() if one is not None}}
        look_again_ms = self._now_ms + self._policy.notes_ttl_ms
        return min([look_again_ms, *(due for due in dues.values() if due is not None)])

    def _forget_notes(self) -> None:
        for key, at_ms in self._shard.notes.items():
            if at_ms + self._policy.notes_ttl_ms <= self._now_ms:
                self._notes[key] = None

    def archive(self) -> None:
        """Keeps the limits of the partition."""
        shard, policy = self._shard, self._policy
        if self._notes:
            self._limit_notes()
        added = sum(1 for id_, one in self._held.items() if one is not None and id_ not in shard.held)
        chars = shard.chars + sum(
            (one.chars if one else 0) - (shard.held[id_].chars if id_ in shard.held else 0)
            for id_, one in self._held.items()
        )
        excess = len(shard.held) + added - policy.conversations_max
        excess_chars = chars - policy.chars_max
        if excess <= 0 and excess_chars <= 0:
            return
        untouched = [one for id_, one in shard.held.items() if id_ not in self._held]
        for held in rules.archivable(untouched, excess, excess_chars):
            self._held[held.conversation.id] = None

    def _limit_notes(self) -> None:
        notes = {**self._shard.notes, **self._notes}
        excess = sum(1 for at_ms in notes.values() if at_ms is not None) - self._policy.notes_max
        if excess > 0:
            kept = sorted((at_ms, key) for key, at_ms in notes.items() if at_ms is not None)
            self._notes.update({key: None for _, key in kept[:excess]})

    def decision(self, next_due_ms: int | None) -> Decision:
        """All changes and what they write."""
        states: list[StateRecord] = []
        for conversation_id, held in self._held.items():
            records = difference(conversation_id, self._shard.held.get(conversation_id), held)
            states.extend(StateRecord(key=key, value=value) for key, value in records.items())
        for key, at_ms in self._notes.items():
            if self._shard.notes.get(key) != at_ms:
                states.append(StateRecord(key=key, value=None if at_ms is None else to_json(at_ms)))
        return Decision(
            outputs=tuple(self._outputs),
            states=tuple(states),
            staged=Staged(held=self._held, notes=self._notes, next_due_ms=next_due_ms),
        )

    def _get(self, conversation_id: str) -> Held | None:
        if conversation_id in self._held:
            return self._held[conversation_id]
        return self._shard.held.get(conversation_id)

    def _put(self, conversation_id: str, change: rules.Change) -> None:
        held, outputs = change
        self._outputs.extend(outputs)
        if held is not self._get(conversation_id):
            self._held[conversation_id] = held

    def _noted(self, key: str) -> int | None:
        return self._notes[key] if key in self._notes else self._shard.notes.get(key)


def _is_known(held: Held, reply_id: str) -> bool:
    return reply_id in held.conversation.messages or reply_id in held.known


def _take_over(shard: Shard, staged: Staged) -> None:
    next_due_ms = shard.next_due_ms if staged.next_due_ms is None else staged.next_due_ms
    moved = sorted(staged.held.items(), key=lambda item: item[1].active_offset if item[1] else -1)
    for conversation_id, held in moved:
        before = shard.held.get(conversation_id)
        shard.chars += (held.chars if held else 0) - (before.chars if before else 0)
        if held is None or before is None or held.active_offset != before.active_offset:
            shard.held.pop(conversation_id, None)
        if held is not None:
            shard.held[conversation_id] = held
        shard.due.pop(conversation_id, None)
        due = _due(held)
        if due is not None:
            shard.due[conversation_id] = due
            next_due_ms = min(next_due_ms, due)
    for key, at_ms in staged.notes.items():
        if at_ms is None:
            shard.notes.pop(key, None)
        else:
            shard.notes[key] = at_ms
    shard.next_due_ms = next_due_ms


def _due(held: Held | None) -> int | None:
    return None if held is None else next_due_ms(held)
