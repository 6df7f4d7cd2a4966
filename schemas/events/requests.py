"""What turns decided, for the dispatch of a pool: the topic `requests`, and its dead letters."""

from schemas.events.base import Event
from schemas.values import EndStatus, Failure, Notice, Priority, PromptMessage, Sampling, Tier, TimeMs


class GenerationAdmitted(Event, frozen=True):
    """A turn was admitted to a pool: everything that a worker needs, and until when it is wanted."""

    TOPIC = "requests"
    KEY = "pool"

    pool: str
    priority: Priority
    reply_id: str
    message_id: str
    conversation_id: str
    account_id: str
    tier: Tier
    model: str
    prompt: tuple[PromptMessage, ...]
    prompt_tokens_estimate: int
    sampling: Sampling
    submitted_at_ms: TimeMs
    deadline_at_ms: TimeMs
    notices: tuple[Notice, ...] = ()

    def identity(self) -> str:
        return f"{self.reply_id}/admitted"


class GenerationDeclined(Event, frozen=True):
    """A reply ends without (or instead of) running: refused at admission, cancelled early, or past its deadline.

    Version 2 added `retry_after_s` to errors.
    """

    TOPIC = "requests"
    KEY = "pool"
    VERSION = 2

    pool: str
    reply_id: str
    message_id: str
    conversation_id: str
    account_id: str
    tier: Tier
    model: str
    status: EndStatus
    error: Failure | None
    submitted_at_ms: TimeMs
    admitted: bool
    """It had been admitted before, so its stream is open already."""

    def identity(self) -> str:
        return f"{self.reply_id}/declined"


class GenerationCancelled(Event, frozen=True):
    """An admitted reply shall stop; in order with its admission."""

    TOPIC = "requests"
    KEY = "pool"

    pool: str
    reply_id: str
    conversation_id: str

    def identity(self) -> str:
        return f"{self.reply_id}/cancelled"


class GenerationParked(Event, frozen=True):
    """A reply failed because its workers died of it, it seems. For a person to look at."""

    TOPIC = "requests.dead"
    KEY = "pool"

    pool: str
    reply_id: str
    workers: tuple[str, ...]
    """The instances that died while they had it."""
    parked_at_ms: TimeMs
    admitted: GenerationAdmitted

    def identity(self) -> str:
        return f"{self.reply_id}/parked"
