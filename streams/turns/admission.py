"""Whether a turn can begin: refused, waiting for other replies of its conversation, or ready with model and context."""

import msgspec

from schemas.conversation import Conversation, Message, branch
from schemas.events import GenerationAdmitted, GenerationDeclined, MessageSubmitted, RegenerationRequested
from schemas.models import Model, find
from schemas.tiers import rules_of
from schemas.values import EndStatus, Failure, Sampling
from streams.turns.context import Fitted, TooLarge, fit
from streams.turns.held import Held, Open
from streams.turns.policy import Policy

Request = MessageSubmitted | RegenerationRequested

ARCHIVED = Failure(code="conversation_archived", detail="This conversation is not held any more. Begin a new one.")
DELETED = Failure(code="conversation_deleted", detail="This conversation was deleted.")
UNKNOWN = Failure(code="conversation_unknown", detail="There is no such conversation.")
FULL = Failure(code="conversation_full", detail="This conversation has reached its limit. Begin a new one.")
MODEL_UNKNOWN = Failure(code="model_unknown", detail="No model of this name is served any more.")
PARENT_UNKNOWN = Failure(
    code="parent_unknown", detail="The message that this one refers to is not in the conversation."
)
MESSAGE_ARCHIVED = Failure(
    code="message_archived", detail="The message that this one refers to is too old to go on from."
)
DEADLINE = Failure(code="deadline_exceeded", detail="The reply did not end within its time.")


class Refused(msgspec.Struct, frozen=True):
    """It cannot begin at all."""

    error: Failure


class Waiting(msgspec.Struct, frozen=True):
    """A reply on its branch is still open, or as many replies of its conversation run as may."""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """It can begin. `began_at_ms` is when the last thing that it waited for happened."""

    model: Model
    context: Fitted
    began_at_ms: int


def admit(held: Held, reply_id: str, policy: Policy, since_ms: int = 0) -> Refused | Waiting | Ready:
    """Whether the turn of this (held, open) reply can begin. It waited until `since_ms`, if it did."""
    conversation = held.conversation
    reply = conversation.messages[reply_id]
    refused = _reference(held, reply)
    if refused is not None:
        return refused
    path = branch(conversation, reply.parent_id)
    if any(message.role == "assistant" and message.stored is None for message in path):
        return Waiting()
    model = find(policy.models, reply.request.model)
    if model is None:
        return Refused(MODEL_UNKNOWN)
    readable = [message for message in path if message.position > held.stubs_until or message is path[-1]]
    match fit(_with_system(path, readable), model, reply.request.max_output_tokens):
        case TooLarge() as large:
            detail = (
                f"The message has about {large.prompt_tokens} tokens with its system prompt; "
                f"{model.name} takes {large.prompt_tokens_max}."
            )
            return Refused(Failure(code="prompt_too_large", detail=detail))
        case Fitted() if is_full(held, policy):
            return Waiting()
        case Fitted() as context:
            ends = (message.stored.ended_at_ms for message in path if message.stored is not None)
            return Ready(model=model, context=context, began_at_ms=max(reply.submitted_at_ms, *ends, since_ms))


def is_full(held: Held, policy: Policy) -> bool:
    """Whether as many replies of the conversation run as may."""
    return sum(open_.phase == "admitted" for open_ in held.open.values()) >= policy.conversation_running_max


def _reference(held: Held, reply: Message) -> Refused | None:
    """Whether what the turn refers to is there: the message that it answers, and what that one follows."""
    messages = held.conversation.messages
    asked = messages.get(reply.parent_id or "")
    if asked is None or asked.role != "user":
        return Refused(PARENT_UNKNOWN)
    if asked.position <= held.stubs_until:
        return Refused(MESSAGE_ARCHIVED)
    if asked.parent_id is None:
        return None
    parent = messages.get(asked.parent_id)
    if parent is None:
        return Refused(PARENT_UNKNOWN)
    return Refused(MESSAGE_ARCHIVED) if parent.position <= held.stubs_until else None


def _with_system(path: tuple[Message, ...], readable: list[Message]) -> list[Message]:
    """A forgotten message that brought the system prompt stays, without text, so that its prompt counts."""
    bringing = [
        message
        for message in path
        if message not in readable
        and isinstance(message.request, MessageSubmitted)
        and message.request.system is not None
    ]
    return [*bringing[-1:], *readable]


def admitted(open_: Open, request: Request, ready: Ready, policy: Policy, deadline_at_ms: int) -> GenerationAdmitted:
    """The event for the dispatch of the model's pool."""
    return GenerationAdmitted(
        pool=ready.model.pool,
        priority=request.priority or rules_of(policy.tiers, open_.tier).priority,
        reply_id=open_.reply_id,
        message_id=open_.message_id,
        conversation_id=open_.conversation_id,
        account_id=open_.account_id,
        tier=open_.tier,
        model=ready.model.name,
        prompt=ready.context.prompt,
        prompt_tokens_estimate=ready.context.prompt_tokens,
        sampling=Sampling(
            max_output_tokens=ready.context.output_tokens_max,
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            seed=request.seed,
            stop=request.stop,
        ),
        submitted_at_ms=open_.submitted_at_ms,
        deadline_at_ms=deadline_at_ms,
        notices=ready.context.notices,
    )


def declined(open_: Open, status: EndStatus, error: Failure | None) -> GenerationDeclined:
    """The event that ends the reply without running; of one admitted before, its stream is open already."""
    return GenerationDeclined(
        pool=open_.pool,
        reply_id=open_.reply_id,
        message_id=open_.message_id,
        conversation_id=open_.conversation_id,
        account_id=open_.account_id,
        tier=open_.tier,
        model=open_.model,
        status=status,
        error=error,
        submitted_at_ms=open_.submitted_at_ms,
        admitted=open_.phase != "waiting",
    )


def answered(conversation: Conversation | None, request: Request) -> str:
    """The id of the user message that a request's reply answers; empty when there is none."""
    if isinstance(request, MessageSubmitted):
        return request.message_id
    regenerated = conversation.messages.get(request.regenerated_id) if conversation else None
    return (regenerated.parent_id or "") if regenerated else ""
