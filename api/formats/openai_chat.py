"""The Chat Completions API: a completion, and the stream of its chunks, from a reply's events.

Rules:

1. All chunks have the same id (the reply's), time and model (the one that was asked for). The role goes out at once,
   then the texts as they are, the `finish_reason`, the usage where it was asked for, and `[DONE]`.
2. `finish_reason` is `stop`, `length`, or `cancelled`, which is a word of ours: OpenAI has none, and any of its own
   would be untrue.
3. A reply that was refused or has failed is an error: of HTTP, or in the stream, which has no `[DONE]` then. So is a
   `reset` for a reader that has text (`reply_restarted`), and a stream that breaks (`stream_interrupted`).
4. Notices are not told.

Source: https://platform.openai.com/docs/api-reference/chat-streaming
"""

from typing import Any

from api.formats.errors import openai_stream_error
from api.formats.exchange import Facts
from api.formats.format import RESTARTED, UNFINISHED, event_frame
from api.messages import Running
from api.problems import DO_NOT_RETRY, Problem
from api.reading import HEARTBEAT
from schemas.stream import AnyStreamEvent, Delta, Ended, Reset
from schemas.values import EndStatus, Failure, Usage

DONE = b"data: [DONE]\n\n"

FINISH: dict[EndStatus, str] = {"completed": "stop", "length": "length", "cancelled": "cancelled"}

_REFUSED: dict[str, tuple[int, str]] = {
    "prompt_too_large": (400, "context_length_exceeded"),
    "context_too_long": (400, "context_length_exceeded"),
    "invalid_request": (400, "invalid_request"),
    "model_unknown": (404, "model_not_found"),
    "conversation_unknown": (404, "conversation_unknown"),
    "conversation_deleted": (404, "conversation_deleted"),
    "parent_unknown": (404, "parent_unknown"),
    "conversation_archived": (409, "conversation_archived"),
    "conversation_full": (409, "conversation_full"),
    "message_archived": (409, "message_archived"),
    "queue_full": (503, "queue_full"),
    "high_demand": (503, "high_demand"),
    "no_worker": (503, "no_worker"),
    "pool_unknown": (503, "pool_unknown"),
}
"""Status and code of each refusal."""


class ChatWriter:
    """A `Writer` of chunks."""

    def __init__(self, facts: Facts, *, include_usage: bool = False) -> None:
        self.finished = False
        self._facts = facts
        self._include_usage = include_usage
        self._has_text = False

    def begin(self) -> bytes:
        """The role."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def write(self, offset: int, event: AnyStreamEvent) -> bytes:  # noqa: ARG002 - chunks have no numbers
        """What the event gives."""
        match event:
            case Delta():
                self._has_text = self._has_text or event.text != ""
                return self._chunk({"content": event.text})
            case Reset() if self._has_text:
                return self._error(Problem(503, "reply_restarted", "Restarted", RESTARTED))
            case Ended():
                return self._closing(event)
            case _:
                return b""

    def beat(self) -> bytes:
        """A comment line, which the clients skip."""
        return HEARTBEAT

    def broken(self) -> bytes:
        """The error without which a client would take the text for whole."""
        return self._error(Problem(503, "stream_interrupted", "Interrupted", UNFINISHED))

    def _closing(self, end: Ended) -> bytes:
        problem = unanswered(end)
        if problem is not None:
            return self._error(problem)
        self.finished = True
        out = self._chunk({}, FINISH[end.status])
        if self._include_usage:
            out += event_frame({**self._head(), "choices": [], "usage": usage(end.usage)})
        return out + DONE

    def _error(self, problem: Problem) -> bytes:
        self.finished = True
        return event_frame(openai_stream_error(problem))

    def _head(self) -> dict[str, Any]:
        return {"object": "chat.completion.chunk", **_named(self._facts)}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        chunk: dict[str, Any] = {**self._head(), "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return event_frame(chunk)


def completion(facts: Facts, reply: Running, end: Ended) -> dict[str, Any]:
    """The completion of a reply that has ended as such."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None, "annotations": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": FINISH[end.status]}
    asked = facts.request
    return {
        "object": "chat.completion",
        **_named(facts),
        "choices": [choice],
        "usage": usage(end.usage),
        "service_tier": "default",
        "metadata": getattr(asked, "metadata", {}),
    }


def unanswered(end: Ended) -> Problem | None:
    """The error of a reply that was refused or has failed. Sent again it would be another message: no retry."""
    if end.status not in ("refused", "failed"):
        return None
    failure = end.error or Failure(code=end.status, detail=f"The reply was {end.status}.")
    status, code = (500, failure.code) if end.status == "failed" else _REFUSED.get(failure.code, (400, failure.code))
    after_s = failure.retry_after_s
    return Problem(status, code, "No completion", failure.detail, retry_after_s=after_s, headers=DO_NOT_RETRY)


def usage(used: Usage) -> dict[str, Any]:
    """Tokens, as this API counts them."""
    return {
        "prompt_tokens": used.input_tokens,
        "completion_tokens": used.output_tokens,
        "total_tokens": used.input_tokens + used.output_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _named(facts: Facts) -> dict[str, Any]:
    return {"id": facts.reply_id, "created": facts.created_at_ms // 1000, "model": facts.model}
