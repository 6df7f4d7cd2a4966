"""The people: they send, send again, edit, regenerate, cancel and delete. (Their readers are the `audience`.)

They stand where the API stands: an event is accepted when the log has acknowledged it.
"""

import random
from typing import Any

import msgspec

from schemas.events import (
    CancellationRequested,
    ConversationDeleted,
    ConversationRenamed,
    Event,
    MessageSubmitted,
    RegenerationRequested,
)
from schemas.ids import Identities
from streams.log.memory import MemoryLog
from streams.log.steps import NotAppended, Output
from tests.simulation.audience import Audience
from tests.simulation.store import MemoryStore

IDENTITIES = Identities(secret=b"of the simulation")
TIERS: dict[str, Any] = {"ann": "paid", "bob": "free", "cleo": "free", "dan": "paid"}
ACCOUNTS = tuple(TIERS)
TAIL = "." * 700
"""Makes a message longer than a block of a prefix."""
LONG = 30


class Sent(msgspec.Struct):
    """A send or regeneration: what was written, whether it was accepted, and what was done about it."""

    event: MessageSubmitted | RegenerationRequested
    accepted: bool = False
    cancelled_ms: int | None = None
    words: int = 0
    answers: list[str] = []
    """The reply ids that the client's sends of it were answered with."""


class Clients:
    """All of them; `act` is one thing that one of them does."""

    def __init__(
        self, log: MemoryLog, store: MemoryStore, rng: random.Random, sends: int, audience: Audience | None = None
    ) -> None:
        self._log = log
        self._store = store
        self._rng = rng
        self._left = sends
        self._writer = log.writer("api")
        self._number = 0
        self.sent: dict[str, Sent] = {}
        """By reply id."""
        self.deleted: set[str] = set()
        self._audience = audience

    @property
    def done(self) -> bool:
        """Everything that was sent is accepted."""
        return all(sent.accepted for sent in self.sent.values())

    def act(self, now_ms: int, *, only_retries: bool = False) -> None:
        """One act of one of them."""
        if self.sent and self._audience is not None and not only_retries and self._rng.random() < 0.35:
            sent = self._rng.choice(list(self.sent.values()))
            self._audience.come(sent.event.account_id, sent.event.reply_id)
        refused = [sent for sent in self.sent.values() if not sent.accepted]
        if refused and (only_retries or self._rng.random() < 0.3):
            self._append(self._rng.choice(refused), now_ms)
            return
        if only_retries:
            return
        acts = (
            [self._send] * 6 + [self._cancel] * 2 + [self._again] * 2 + [self._regenerate, self._rename, self._delete]
        )
        self._rng.choice(acts)(now_ms)

    def _send(self, now_ms: int) -> None:
        if self._left <= 0:
            return
        self._left -= 1
        self._number += 1
        account = self._rng.choice(ACCOUNTS)
        client_id = f"send {self._number}"
        mine = [sent.event for sent in self.sent.values() if sent.event.account_id == account and sent.accepted]
        follows = self._rng.choice(mine) if mine and self._rng.random() < 0.6 else None
        new = follows is None or follows.conversation_id in self.deleted
        conversation = (
            IDENTITIES.conversation(account, client_id) if new or follows is None else follows.conversation_id
        )
        words = self._rng.choice((0, 1, 3, 10, 10, LONG))
        parent = None
        if follows is not None and not new and self._rng.random() < 0.3:
            parent = self._rng.choice((follows.reply_id, conversation))
        content = f"{words}x{self._rng.choice((5, 20, 60))} from {account}{self._rng.choice(('', '', TAIL))}"
        event = self._submitted(account, client_id, conversation, content, now_ms, new=new, parent_id=parent)
        self._append(self.sent.setdefault(event.reply_id, Sent(event, words=words, answers=[])), now_ms)

    @staticmethod
    def _submitted(
        account: str, client_id: str, conversation: str, content: str, now_ms: int, *, new: bool, parent_id: str | None
    ) -> MessageSubmitted:
        """What the API makes of a send: its ids follow from account and client message id."""
        return MessageSubmitted(
            conversation_id=conversation,
            message_id=IDENTITIES.message(account, conversation, client_id),
            reply_id=IDENTITIES.reply(account, conversation, client_id),
            account_id=account,
            tier=TIERS[account],
            content=content,
            body_digest="d",
            submitted_at_ms=now_ms,
            new_conversation=new,
            client_message_id=client_id,
            parent_id=parent_id,
        )

    def _regenerate(self, now_ms: int) -> None:
        old = self._accepted()
        if old is None or old.event.conversation_id in self.deleted:
            return
        self._number += 1
        event = old.event
        reply_id = IDENTITIES.reply(event.account_id, event.conversation_id, f"again {self._number}")
        again = RegenerationRequested(
            conversation_id=event.conversation_id,
            reply_id=reply_id,
            regenerated_id=event.reply_id,
            account_id=event.account_id,
            tier=event.tier,
            body_digest="d",
            submitted_at_ms=now_ms,
        )
        self._append(self.sent.setdefault(reply_id, Sent(again, words=old.words, answers=[])), now_ms)

    def _again(self, now_ms: int) -> None:
        """The same send once more, or several times at once, as of a client that got no answer."""
        sent = self._accepted()
        if sent is None:
            return
        event = sent.event
        for _ in range(self._rng.choice((1, 1, 3))):
            again: MessageSubmitted | RegenerationRequested = msgspec.structs.replace(event, submitted_at_ms=now_ms)
            if isinstance(event, MessageSubmitted) and event.client_message_id is not None:
                again = self._submitted(
                    event.account_id,
                    event.client_message_id,
                    event.conversation_id,
                    event.content,
                    now_ms,
                    new=event.new_conversation,
                    parent_id=event.parent_id,
                )
            if self._log_event(again):
                sent.answers.append(again.reply_id)

    def _cancel(self, now_ms: int) -> None:
        if not self.sent:
            return
        sent = self._rng.choice(list(self.sent.values()))
        event = sent.event
        cancel = CancellationRequested(
            conversation_id=event.conversation_id,
            reply_id=event.reply_id,
            account_id=event.account_id,
            requested_at_ms=now_ms,
        )
        if self._log_event(cancel) and sent.cancelled_ms is None:
            sent.cancelled_ms = now_ms

    def _rename(self, now_ms: int) -> None:
        sent = self._accepted()
        if sent is not None:
            event = sent.event
            self._number += 1
            renamed = ConversationRenamed(
                conversation_id=event.conversation_id,
                account_id=event.account_id,
                title=f"title {self._number}",
                renamed_at_ms=now_ms,
                request_id=str(self._number),
            )
            self._log_event(renamed)

    def _delete(self, now_ms: int) -> None:
        sent = self._accepted()
        if sent is None or self._rng.random() < 0.5:
            return
        event = sent.event
        gone = ConversationDeleted(
            conversation_id=event.conversation_id, account_id=event.account_id, deleted_at_ms=now_ms
        )
        if self._log_event(gone):
            self.deleted.add(event.conversation_id)
            if not self._store.down:
                self._store.deleted.add(event.conversation_id)

    def _accepted(self) -> Sent | None:
        accepted = [sent for sent in self.sent.values() if sent.accepted]
        return self._rng.choice(accepted) if accepted else None

    def _append(self, sent: Sent, now_ms: int) -> None:
        if self._log_event(msgspec.structs.replace(sent.event, submitted_at_ms=now_ms)):
            sent.accepted = True
            sent.answers.append(sent.event.reply_id)
            if not self._store.down:
                self._store.recent.setdefault(sent.event.conversation_id, []).append(sent.event)

    def _log_event(self, event: Event) -> bool:
        try:
            self._writer.append(Output(event=event)).result(0)
        except NotAppended:
            return False
        return True
