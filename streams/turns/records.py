"""State records of turns: conversations to records and back.

Keys, written in the partition of the conversation's messages:

- `<conversation_id>/head`: what changes with every event;
- `<conversation_id>/<reply_id>/request`, `…/stored`: the events, written once (again, without text, when forgotten);
- `<conversation_id>/<reply_id>/open`: an open reply;
- `early/<reply_id>`: note of a cancellation that came before its message;
- `declined/<reply_id>`: note of a reply that was declined and is not held, so that a repeated send stays ignored.

`restored(records of h) == h`, exactly.
"""

from collections.abc import Iterator, Mapping

import msgspec

from schemas.codec import to_json
from schemas.conversation import Conversation, Message, fold
from schemas.events import ConversationSummarised, MessageSubmitted, RegenerationRequested, ReplyStored
from streams.turns.held import Held, Open, weighed

_NOTES = ("early/", "declined/")


class HeadRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation without its messages."""

    account_id: str
    created_at_ms: int
    updated_at_ms: int
    next_position: int
    active_offset: int
    head_id: str | None = None
    renamed_to: str | None = None
    deleted: bool = False
    summaries: tuple[ConversationSummarised, ...] = ()
    stubs_until: int = 0
    known: tuple[str, ...] = ()


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What brought a reply, and the reply's position."""

    position: int
    submitted: MessageSubmitted | None = None
    regenerated: RegenerationRequested | None = None


_HEAD = msgspec.json.Decoder(HeadRecord)
_REQUEST = msgspec.json.Decoder(RequestRecord)
_STORED = msgspec.json.Decoder(ReplyStored)
_OPEN = msgspec.json.Decoder(Open)


def early_key(reply_id: str) -> str:
    return f"early/{reply_id}"


def declined_key(reply_id: str) -> str:
    return f"declined/{reply_id}"


def difference(conversation_id: str, before: Held | None, after: Held | None) -> dict[str, bytes | None]:
    """The records that lead from one state to the other; None is a tombstone."""
    if before is after:
        return {}
    records: dict[str, bytes | None] = {}
    head = f"{conversation_id}/head"
    old_head, new_head = (_head(held) if held else None for held in (before, after))
    if old_head != new_head:
        records[head] = to_json(new_head) if new_head else None
    old_messages, new_messages = (held.conversation.messages if held else {} for held in (before, after))
    for message in _changed(old_messages, new_messages):
        key = f"{conversation_id}/{message.id}"
        old, new = old_messages.get(message.id), new_messages.get(message.id)
        if new is None or old is None or old.request != new.request:
            records[f"{key}/request"] = to_json(_request(new)) if new else None
        old_stored, new_stored = (side.stored if side else None for side in (old, new))
        if old_stored != new_stored:
            records[f"{key}/stored"] = to_json(new_stored) if new_stored else None
    old_open, new_open = (held.open if held else {} for held in (before, after))
    for reply_id in {**old_open, **new_open}:
        if old_open.get(reply_id) != new_open.get(reply_id):
            opened = new_open.get(reply_id)
            records[f"{conversation_id}/{reply_id}/open"] = to_json(opened) if opened else None
    return records


def _changed(old: Mapping[str, Message], new: Mapping[str, Message]) -> Iterator[Message]:
    """The replies that are not the same object on both sides."""
    for id_, message in new.items():
        if message.role == "assistant" and old.get(id_) is not message:
            yield message
    for id_, message in old.items():
        if message.role == "assistant" and id_ not in new:
            yield message


def _head(held: Held) -> HeadRecord:
    conversation = held.conversation
    return HeadRecord(
        account_id=conversation.account_id,
        created_at_ms=conversation.created_at_ms,
        updated_at_ms=conversation.updated_at_ms,
        next_position=conversation.next_position,
        active_offset=held.active_offset,
        head_id=conversation.head_id,
        renamed_to=conversation.renamed_to,
        deleted=conversation.deleted,
        summaries=conversation.summaries,
        stubs_until=held.stubs_until,
        known=tuple(sorted(held.known)),
    )


def _request(reply: Message) -> RequestRecord:
    if isinstance(reply.request, MessageSubmitted):
        return RequestRecord(position=reply.position, submitted=reply.request)
    return RequestRecord(position=reply.position, regenerated=reply.request)


def restored(values: Mapping[str, bytes]) -> tuple[dict[str, Held], dict[str, int]]:
    """The conversations, least recently active first, and the notes, from the newest value of each key.

    Raises:
        msgspec.MsgspecError: a record that this program did not write.
    """
    parts: dict[str, dict[str, bytes]] = {}
    notes: dict[str, int] = {}
    for key, value in values.items():
        if key.startswith(_NOTES):
            notes[key] = msgspec.json.decode(value, type=int)
            continue
        conversation_id, rest = key.split("/", 1)
        parts.setdefault(conversation_id, {})[rest] = value
    held = [_held(conversation_id, records) for conversation_id, records in parts.items()]
    held.sort(key=lambda one: one.active_offset)
    return {one.conversation.id: one for one in held}, notes


def _held(conversation_id: str, records: Mapping[str, bytes]) -> Held:
    head = _HEAD.decode(records["head"])
    requests = [_REQUEST.decode(value) for key, value in records.items() if key.endswith("/request")]
    stored = [_STORED.decode(value) for key, value in records.items() if key.endswith("/stored")]
    opened = [_OPEN.decode(value) for key, value in records.items() if key.endswith("/open")]
    requests.sort(key=lambda record: record.position)
    conversation = Conversation(
        id=conversation_id,
        account_id=head.account_id,
        created_at_ms=head.created_at_ms,
        updated_at_ms=head.updated_at_ms,
    )
    events = [record.submitted or record.regenerated for record in requests]
    conversation = fold([event for event in events if event is not None], conversation) or conversation
    conversation = fold(stored, conversation) or conversation
    conversation = msgspec.structs.replace(
        conversation,
        head_id=head.head_id,
        next_position=head.next_position,
        renamed_to=head.renamed_to,
        updated_at_ms=head.updated_at_ms,
        deleted=head.deleted,
        summaries=head.summaries,
    )
    return weighed(
        Held(
            conversation=conversation,
            open={open_.reply_id: open_ for open_ in opened},
            active_offset=head.active_offset,
            stubs_until=head.stubs_until,
            known=frozenset(head.known),
        )
    )
