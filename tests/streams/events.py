"""Events for the tests, with everything given that a test does not care about."""

from typing import Any

from schemas.events import (
    CancellationRequested,
    ConversationDeleted,
    GenerationAdmitted,
    GenerationCancelled,
    GenerationDeclined,
    GenerationFinished,
    MessageSubmitted,
    RegenerationRequested,
    ReplyStored,
    WorkerLeased,
    WorkerRegistered,
    WorkerReleased,
)
from schemas.values import PromptMessage, Sampling, Usage

NOW = 1_000_000
MODEL = "smollm2-135m-instruct"


def submitted(number: int, conversation: str = "conv_a", **given: Any) -> MessageSubmitted:
    """The message and reply of this number; number 1 begins the conversation."""
    members: dict[str, Any] = {
        "conversation_id": conversation,
        "message_id": f"msg_{conversation[5:]}{number}",
        "reply_id": f"rep_{conversation[5:]}{number}",
        "account_id": "acc",
        "tier": "free",
        "content": f"message {number}",
        "body_digest": "d",
        "submitted_at_ms": NOW,
        "new_conversation": number == 1,
    }
    return MessageSubmitted(**(members | given))


def regenerated(number: int, of: int, conversation: str = "conv_a", **given: Any) -> RegenerationRequested:
    """A sibling for the reply of number `of`."""
    members: dict[str, Any] = {
        "conversation_id": conversation,
        "reply_id": f"rep_{conversation[5:]}{number}",
        "regenerated_id": f"rep_{conversation[5:]}{of}",
        "account_id": "acc",
        "tier": "free",
        "body_digest": "d",
        "submitted_at_ms": NOW,
    }
    return RegenerationRequested(**(members | given))


def stored(number: int, conversation: str = "conv_a", **given: Any) -> ReplyStored:
    """The end of a reply."""
    members: dict[str, Any] = {
        "conversation_id": conversation,
        "reply_id": f"rep_{conversation[5:]}{number}",
        "message_id": f"msg_{conversation[5:]}{number}",
        "account_id": "acc",
        "tier": "free",
        "pool": "default",
        "model": MODEL,
        "status": "completed",
        "text": f"reply {number}",
        "attempt": 1,
        "final_offset": 3,
        "usage": Usage(input_tokens=3, output_tokens=2),
        "submitted_at_ms": NOW,
        "ended_at_ms": NOW + 5,
    }
    return ReplyStored(**(members | given))


def cancellation(number: int, conversation: str = "conv_a") -> CancellationRequested:
    return CancellationRequested(
        conversation_id=conversation,
        reply_id=f"rep_{conversation[5:]}{number}",
        account_id="acc",
        requested_at_ms=NOW,
    )


def deleted(conversation: str = "conv_a") -> ConversationDeleted:
    return ConversationDeleted(conversation_id=conversation, account_id="acc", deleted_at_ms=NOW)


def admitted(number: int, **given: Any) -> GenerationAdmitted:
    """Each reply in a conversation of its own, unless given."""
    members: dict[str, Any] = {
        "pool": "default",
        "priority": given.get("tier", "free"),
        "reply_id": f"rep_{number}",
        "message_id": f"msg_{number}",
        "conversation_id": f"conv_{number}",
        "account_id": "acc",
        "tier": "free",
        "model": MODEL,
        "prompt": (PromptMessage(role="user", content="hello"),),
        "prompt_tokens_estimate": 10,
        "sampling": Sampling(max_output_tokens=100),
        "submitted_at_ms": NOW,
        "deadline_at_ms": NOW + 900_000,
    }
    return GenerationAdmitted(**(members | given))


def gen_cancelled(number: int) -> GenerationCancelled:
    return GenerationCancelled(pool="default", reply_id=f"rep_{number}", conversation_id=f"conv_{number}")


def gen_declined(number: int, **given: Any) -> GenerationDeclined:
    members: dict[str, Any] = {
        "pool": "default",
        "reply_id": f"rep_{number}",
        "message_id": f"msg_{number}",
        "conversation_id": f"conv_{number}",
        "account_id": "acc",
        "tier": "free",
        "model": MODEL,
        "status": "refused",
        "error": None,
        "submitted_at_ms": NOW,
        "admitted": False,
    }
    return GenerationDeclined(**(members | given))


def registered(inbox: int = 0, **given: Any) -> WorkerRegistered:
    members: dict[str, Any] = {
        "pool": "default",
        "instance": f"i{inbox}",
        "inbox": inbox,
        "model": MODEL,
        "slots": 2,
        "kv_tokens": 0,
        "context_tokens": 8192,
    }
    return WorkerRegistered(**(members | given))


def leased(inbox: int = 0, epoch: int = 0, **given: Any) -> WorkerLeased:
    members: dict[str, Any] = {
        "pool": "default",
        "instance": f"i{inbox}",
        "inbox": inbox,
        "epoch": epoch,
        "renewal": 1,
        "free_slots": 2,
        "free_kv_tokens": 0,
    }
    return WorkerLeased(**(members | given))


def released(inbox: int = 0, epoch: int = 0, reason: str = "") -> WorkerReleased:
    return WorkerReleased(pool="default", instance=f"i{inbox}", inbox=inbox, epoch=epoch, reason=reason)


def finished(number: int, attempt: int = 1, inbox: int = 0, epoch: int = 0, **given: Any) -> GenerationFinished:
    members: dict[str, Any] = {
        "pool": "default",
        "inbox": inbox,
        "epoch": epoch,
        "reply_id": f"rep_{number}",
        "generation_id": f"gen_{number}_{attempt}",
        "attempt": attempt,
        "status": "completed",
    }
    return GenerationFinished(**(members | given))
