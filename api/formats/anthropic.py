"""Anthropic Messages: a reply's events as Anthropic's stream, and the ended reply as a message.

Source: https://docs.anthropic.com/en/docs/build-with-claude/streaming, and the types of anthropic-python 2.14.

Rules:

1. `message_start` goes out at once, since the reply's id is known; the input's tokens are counted later, so it says 0.
   `message_delta` has the usage as it is billed, and the SDKs take it from there.
2. Anthropic counts cached input apart: `input_tokens`, `cache_creation_input_tokens` and `cache_read_input_tokens`
   add up to our `input_tokens`.
3. `completed` is `end_turn`: which of the stop sequences ended a reply is not known. `length` is `max_tokens`. A
   cancelled reply has `stop_reason` null: it has its text and usage, and none of Anthropic's reasons is true of it.
4. A refused or failed reply is an error, and so is a `reset` behind text. Notices have no place in this format.
"""

from typing import Any

from api.formats.errors import NO_CAPACITY, OVERLOADED
from api.formats.exchange import Facts
from api.formats.format import RESTARTED, UNFINISHED, event_frame
from api.messages import Running
from schemas.stream import AnyStreamEvent, Delta, Ended, Reset
from schemas.values import EndStatus, Failure, Usage

_STOP_REASONS: dict[EndStatus, str | None] = {"completed": "end_turn", "length": "max_tokens", "cancelled": None}
_NOTHING_YET = Usage(input_tokens=0, output_tokens=0)

PING = event_frame({"type": "ping"}, "ping")


class AnthropicWriter:
    """See the rules of this module."""

    def __init__(self, facts: Facts) -> None:
        self.finished = False
        self._facts = facts
        self._texts = False

    def begin(self) -> bytes:
        """The message without content."""
        return _frame("message_start", message=message(self._facts, "", None, _NOTHING_YET))

    def write(self, offset: int, event: AnyStreamEvent) -> bytes:  # noqa: ARG002 - the format has no offsets
        """The frames of an event; none for most that are not text."""
        match event:
            case Delta():
                delta = _frame("content_block_delta", index=0, delta={"type": "text_delta", "text": event.text})
                return self._block_started() + delta
            case Reset() if self._texts:
                return self._failed("overloaded_error", RESTARTED)
            case Ended():
                return self._ended(event)
            case _:
                return b""

    def beat(self) -> bytes:
        """A ping."""
        return PING

    def broken(self) -> bytes:
        """An error: the end of the stream alone would pass for the end of the reply."""
        return self._failed("api_error", UNFINISHED)

    def _block_started(self) -> bytes:
        if self._texts:
            return b""
        self._texts = True
        return _frame("content_block_start", index=0, content_block={"type": "text", "text": ""})

    def _ended(self, end: Ended) -> bytes:
        block = _frame("content_block_stop", index=0) if self._texts else b""
        if end.status not in _STOP_REASONS:
            kind, text = _error_of(end)
            return block + self._failed(kind, text, retry_after_s=end.error.retry_after_s if end.error else None)
        self.finished = True
        delta = {"stop_reason": _STOP_REASONS[end.status], "stop_sequence": None}
        return block + _frame("message_delta", delta=delta, usage=_usage(end.usage)) + _frame("message_stop")

    def _failed(self, kind: str, text: str, retry_after_s: int | None = None) -> bytes:
        self.finished = True
        after = {} if retry_after_s is None else {"retry_after_s": retry_after_s}
        return _frame("error", error={"type": kind, "message": text, **after})


def message(facts: Facts, text: str, stop_reason: str | None, usage: Usage) -> dict[str, Any]:
    """Anthropic's message object."""
    return {
        "id": facts.reply_id,
        "type": "message",
        "role": "assistant",
        "model": facts.model,
        "content": [{"type": "text", "text": text}] if text else [],
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": _usage(usage),
    }


def ended_message(facts: Facts, reply: Running) -> dict[str, Any] | tuple[int, str]:
    """The message of an ended reply; or, where it was refused or failed, the status and the reason of the error."""
    end = reply.end
    if end is None:
        raise AssertionError("only an ended reply is a message")
    if end.status in _STOP_REASONS:
        return message(facts, reply.text, _STOP_REASONS[end.status], end.usage)
    kind, text = _error_of(end)
    return {"overloaded_error": OVERLOADED, "invalid_request_error": 400}.get(kind, 500), text


def _error_of(end: Ended) -> tuple[str, str]:
    """Type and reason of the error that a refused or failed reply is."""
    error = end.error or Failure(code=end.status, detail="No reason is known.")
    if error.code in NO_CAPACITY:
        kind = "overloaded_error"
    else:
        kind = "invalid_request_error" if end.status == "refused" else "api_error"
    return kind, f"{error.code}: {error.detail}"


def _usage(usage: Usage) -> dict[str, int]:
    read, written = usage.cached_input_tokens, usage.cache_write_tokens
    return {
        "input_tokens": max(usage.input_tokens - read - written, 0),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": usage.output_tokens,
    }


def _frame(kind: str, **members: Any) -> bytes:
    return event_frame({"type": kind, **members}, kind)
