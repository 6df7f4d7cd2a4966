"""What a worker is told: the topics `inference.<pool>.<priority>`, whose partition is the worker's ordinal."""

from schemas.events.base import Event
from schemas.values import Priority, PromptMessage, Sampling, TimeMs


class GenerationRequested(Event, frozen=True):
    """One attempt at a reply was given to one worker, under the lease epoch that it names.

    Version 2 added `kv_tokens`.
    """

    KEY = "reply_id"
    VERSION = 2

    pool: str
    priority: Priority
    epoch: int
    reply_id: str
    conversation_id: str
    account_id: str
    generation_id: str
    attempt: int
    model: str
    prompt: tuple[PromptMessage, ...]
    sampling: Sampling
    submitted_at_ms: TimeMs
    deadline_at_ms: TimeMs
    kv_tokens: int = 0
    """What dispatch counts for it in the engine's KV cache: prompt and longest output, less the cached prefix."""

    def identity(self) -> str:
        return f"{self.generation_id}/requested"


class GenerationRevoked(Event, frozen=True):
    """A worker shall stop a generation that was taken from it; nothing that it still emits counts."""

    KEY = "reply_id"

    pool: str
    epoch: int
    reply_id: str
    generation_id: str

    def identity(self) -> str:
        return f"{self.generation_id}/revoked"
