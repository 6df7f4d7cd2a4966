"""What each event, and time, do to a held conversation. Values in, values out: records follow from the difference.

1. A message or regeneration that is known changes nothing. Its reply is admitted, declined or waits: exactly one
   admission ever, while the conversation is held.
2. A turn waits while a reply on its branch is open, and while `conversation_running_max` replies of its conversation
   run. Every stored end lets those begin that waited for it, in the order of their positions.
3. A cancellation ends a reply that waits, is passed on for one that was admitted, and is remembered by the caller for
   one that is not known yet.
4. Deleting a conversation cancels its open replies. They are held until they end.
5. A reply without a stored end is ended by the sweeper: one that waits at its deadline, another one a margin later,
   and again after longer and longer times until its end is stored.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from schemas.codec import Envelope
from schemas.conversation import apply
from schemas.events import ConversationDeleted, Event, GenerationCancelled, MessageSubmitted, ReplyStored
from schemas.models import find
from schemas.values import EndStatus, Failure
from streams.log.steps import Output
from streams.turns import admission
from streams.turns.admission import Ready, Refused, Request, Waiting
from streams.turns.held import Held, Open, text_chars, weighed, without_old_text
from streams.turns.policy import Policy

SOURCE = "streams/turns"

Change = tuple[Held | None, tuple[Output, ...]]
"""The conversation afterwards, and what is written."""
Kept = tuple[Held, tuple[Output, ...]]


def requested(
    held: Held | None, envelope: Envelope[Event], request: Request, offset: int, policy: Policy, *, cancelled: bool
) -> Change:
    """A message or regeneration came. `cancelled`: its cancellation came before it."""
    fresh = _open(held, request, envelope, policy)
    begins = isinstance(request, MessageSubmitted) and request.new_conversation
    if held is None and not begins:
        return None, _decline(fresh, "refused", admission.ARCHIVED, envelope)
    if held is not None:
        if request.reply_id in held.known or request.reply_id in held.conversation.messages:
            return held, ()
        refused = _refused(held, request, policy)
        if refused is not None:
            return held, _decline(fresh, "refused", refused, envelope)
    conversation = apply(held.conversation if held else None, _resolved(held, request))
    if conversation is None or request.reply_id not in conversation.messages:
        return held, ()
    held = replace(held or Held(conversation=conversation), conversation=conversation, active_offset=offset)
    held, outputs = _begun(_with(held, fresh), fresh, policy, envelope, cancelled=cancelled)
    return without_old_text(weighed(held), policy.window_chars_max), outputs


def _refused(held: Held, request: Request, policy: Policy) -> Failure | None:
    if held.conversation.deleted:
        return admission.DELETED
    if held.conversation.account_id != request.account_id:
        return admission.UNKNOWN
    full = len(held.conversation.messages) + 2 > policy.messages_max or text_chars(held) > 2 * policy.window_chars_max
    return admission.FULL if full else None


def _resolved(held: Held | None, request: Request) -> Request:
    """The request with its parent named, so that it can be folded again without the history of branches."""
    if not isinstance(request, MessageSubmitted) or request.parent_id is not None:
        return request
    head_id = held.conversation.head_id if held else None
    return replace(request, parent_id=head_id or request.conversation_id)


def _open(held: Held | None, request: Request, envelope: Envelope[Event], policy: Policy) -> Open:
    model = find(policy.models, request.model)
    return Open(
        reply_id=request.reply_id,
        message_id=admission.answered(held.conversation if held else None, request),
        conversation_id=request.conversation_id,
        account_id=request.account_id,
        tier=request.tier,
        pool=model.pool if model else policy.models[0].pool,
        model=model.name if model else request.model,
        submitted_at_ms=request.submitted_at_ms,
        phase="waiting",
        due_ms=request.submitted_at_ms + policy.deadline_ms,
        traceparent=envelope.traceparent,
    )


def _begun(
    held: Held, open_: Open, policy: Policy, cause: Envelope[Event], *, cancelled: bool = False, since_ms: int = 0
) -> Kept:
    """The turn begins, is refused, or goes on waiting."""
    if cancelled:
        return _with(held, _declined(open_, policy)), _decline(open_, "cancelled", None, cause)
    match admission.admit(held, open_.reply_id, policy, since_ms):
        case Waiting():
            return held, ()
        case Refused(error):
            return _with(held, _declined(open_, policy)), _decline(open_, "refused", error, cause)
        case Ready() as ready:
            deadline_ms = ready.began_at_ms + policy.deadline_ms
            request = held.conversation.messages[open_.reply_id].request
            event = admission.admitted(open_, request, ready, policy, deadline_ms)
            after = replace(open_, phase="admitted", due_ms=deadline_ms + policy.sweep_margin_ms)
            return _with(held, after), (Output(event=event, cause=cause),)


def stored(held: Held, event: ReplyStored, offset: int, policy: Policy) -> Kept:
    """A reply's end is stored: it is open no more, and those that waited for it may begin."""
    conversation = apply(held.conversation, event) or held.conversation
    if conversation is held.conversation and event.reply_id not in held.open:
        return held, ()
    still = {reply_id: open_ for reply_id, open_ in held.open.items() if reply_id != event.reply_id}
    held = replace(held, conversation=conversation, open=still, active_offset=offset)
    outputs: list[Output] = []
    for open_ in _waiting(held):
        if admission.is_full(held, policy):
            break
        held, more = _begun(held, open_, policy, _brought(held, open_), since_ms=event.ended_at_ms)
        outputs.extend(more)
    return without_old_text(weighed(held), policy.window_chars_max), tuple(outputs)


def _waiting(held: Held) -> list[Open]:
    """Replies that wait, in the order in which they were asked for."""
    waiting = [open_ for open_ in held.open.values() if open_.phase == "waiting"]
    return sorted(waiting, key=lambda open_: held.conversation.messages[open_.reply_id].position)


def changed(held: Held, event: Event, offset: int, policy: Policy, cause: Envelope[Event]) -> Kept:
    """Any other event of the conversation: title, branch, summary, deletion."""
    before = held.conversation
    conversation = apply(before, event) or before
    if conversation is before:
        return held, ()
    held = replace(held, conversation=conversation, active_offset=offset)
    if not isinstance(event, ConversationDeleted):
        return held, ()
    replies = (message.id for message in before.messages.values() if message.role == "assistant")
    held = replace(held, known=frozenset(replies), stubs_until=0)
    outputs: list[Output] = []
    for reply_id in tuple(held.open):
        held, more = cancelled(held, reply_id, policy, cause)
        outputs.extend(more)
    return weighed(held), tuple(outputs)


def cancelled(held: Held, reply_id: str, policy: Policy, cause: Envelope[Event]) -> Kept:
    """The cancellation of a known reply; a repeated one, or one of an ended reply, changes nothing."""
    open_ = held.open.get(reply_id)
    if open_ is None or open_.phase == "declined" or open_.cancelled:
        return held, ()
    if open_.phase == "waiting":
        return _with(held, _declined(open_, policy)), _decline(open_, "cancelled", None, cause)
    event = GenerationCancelled(pool=open_.pool, reply_id=reply_id, conversation_id=open_.conversation_id)
    return _with(held, replace(open_, cancelled=True)), (Output(event=event, cause=cause),)


def swept(held: Held, now_ms: int, policy: Policy) -> Kept:
    """Open replies whose time is over are ended."""
    outputs: list[Output] = []
    for open_ in tuple(held.open.values()):
        if open_.due_ms > now_ms:
            continue
        status: EndStatus = "cancelled" if open_.cancelled else "failed"
        error = None if open_.cancelled else admission.DEADLINE
        outputs.extend(_decline(open_, status, error, None))
        phase = "declined" if open_.phase == "waiting" else open_.phase
        due_ms = now_ms + policy.sweep_margin_ms * 2 ** min(open_.sweeps, 10)
        held = _with(held, replace(open_, phase=phase, due_ms=due_ms, sweeps=open_.sweeps + 1))
    return held, tuple(outputs)


def _with(held: Held, open_: Open) -> Held:
    return replace(held, open={**held.open, open_.reply_id: open_})


def _declined(open_: Open, policy: Policy) -> Open:
    return replace(open_, phase="declined", due_ms=open_.due_ms + policy.sweep_margin_ms)


def _decline(
    open_: Open, status: EndStatus, error: Failure | None, cause: Envelope[Event] | None
) -> tuple[Output, ...]:
    event = admission.declined(open_, status, error)
    return (Output(event=event, cause=cause, traceparent=open_.traceparent),)


def _brought(held: Held, open_: Open) -> Envelope[Event]:
    """What brought the reply: its trace goes on."""
    request = held.conversation.messages[open_.reply_id].request
    return Envelope(event=request, source=SOURCE, traceparent=open_.traceparent)


def archivable(helds: Sequence[Held], excess: int, excess_chars: int) -> tuple[Held, ...]:
    """Of conversations, least recently active first, those to archive: none with an open reply."""
    chosen: list[Held] = []
    for held in helds:
        if len(chosen) >= excess and sum(one.chars for one in chosen) >= excess_chars:
            break
        if not held.open:
            chosen.append(held)
    return tuple(chosen)
