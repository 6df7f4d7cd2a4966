"""What a reply's readers see: the topic `tokens`, folded by `schemas.reply`."""

from schemas.events.base import Event
from schemas.values import EndStatus, Failure, Notice, Tier, TimeMs, Timings, Usage


class GenerationQueued(Event, frozen=True):
    """A reply waits for a worker. Opens the reply for every fold: what comes for one not opened is dropped."""

    TOPIC = "tokens"

    reply_id: str
    message_id: str
    conversation_id: str
    account_id: str
    tier: Tier
    pool: str
    model: str
    submitted_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.reply_id}/queued"


class NoticeGiven(Event, frozen=True):
    """The reader of a reply is told something (degraded service, high demand). Once per code."""

    TOPIC = "tokens"

    reply_id: str
    conversation_id: str
    notice: Notice

    def identity(self) -> str:
        return f"{self.reply_id}/notice/{self.notice.code}"


class GenerationStarted(Event, frozen=True):
    """A worker began an attempt. The first one of an attempt owns it."""

    TOPIC = "tokens"

    reply_id: str
    conversation_id: str
    generation_id: str
    attempt: int
    model: str
    worker: str
    started_at_ms: TimeMs

    def identity(self) -> str:
        return f"{self.generation_id}/0"


class TokensGenerated(Event, frozen=True):
    """A piece of a reply's text. `seq` counts from 1 within its generation, without gaps."""

    TOPIC = "tokens"
    TIMED = False

    reply_id: str
    conversation_id: str
    generation_id: str
    attempt: int
    seq: int
    text: str
    tokens: int
    """Output tokens that this piece stands for (0 when it only completes an earlier one's characters)."""

    def identity(self) -> str:
        return f"{self.generation_id}/{self.seq}"


class GenerationReset(Event, frozen=True):
    """The attempt so far is void; the reply starts again as attempt `attempt`. Written by dispatch.

    Version 2 added `detail` and `reset_at_ms`.
    """

    TOPIC = "tokens"
    VERSION = 2

    reply_id: str
    conversation_id: str
    attempt: int
    reason: str
    detail: str = ""
    """A sentence for people, where the engine or a provider said why."""
    reset_at_ms: TimeMs | None = None
    """When the attempt before was given up; None: not known."""

    def identity(self) -> str:
        return f"{self.reply_id}/reset/{self.attempt}"


class GenerationEnded(Event, frozen=True):
    """The end of a reply, as one record. The first accepted one is final.

    From a worker: `generation_id` is its own, `seq` follows its last piece, `usage` and the text's digest are
    given. From dispatch, for a reply that no worker will end: `generation_id` is empty, `seq` is 0.
    Version 2 added `retry_after_s` to errors; version 3 `cache_write_long_tokens` and `reasoning_tokens` to the usage.
    """

    TOPIC = "tokens"
    VERSION = 3

    reply_id: str
    conversation_id: str
    generation_id: str
    attempt: int
    seq: int
    status: EndStatus
    ended_at_ms: TimeMs
    usage: Usage | None = None
    text_bytes: int | None = None
    text_digest: str | None = None
    """First 16 hex digits of the SHA-256 of the text's UTF-8 bytes."""
    timings: Timings | None = None
    error: Failure | None = None

    def identity(self) -> str:
        by = self.generation_id or f"{self.reply_id}/dispatch"
        return f"{by}/end/{self.attempt}"
