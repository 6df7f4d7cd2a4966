"""The response object of the Responses API, from the facts of a request and its reply's events so far.

Rules:

1. What was not said is null: the model's own values hold then.
2. `background` and `store` are always true: a response goes on without its caller, and is kept.
3. `error.code` is one of OpenAI's, `error.type` is ours, and so is `error.retry_after_s`, where there is such a time.
4. `notices` is a member of our own, where there are any and the reply's stream is still kept.

Source: https://platform.openai.com/docs/api-reference/responses/object
"""

from collections.abc import Iterable
from typing import Any

from api.formats.exchange import Facts
from schemas.events import MessageSubmitted
from schemas.stream import AnyStreamEvent, Delta, Ended, Notified, Reset, Started
from schemas.values import EndStatus, Failure, Usage

ITEM = "item_"

_STATUSES: dict[EndStatus, str] = {
    "completed": "completed",
    "length": "incomplete",
    "cancelled": "cancelled",
    "refused": "failed",
    "failed": "failed",
}
_CONTENDED = frozenset({"queue_full", "high_demand"})
_INVALID_PROMPT = frozenset({"prompt_too_large", "context_too_long", "invalid_request"})


class Told:
    """What a reply's events tell so far, over all attempts that its reader may know of."""

    def __init__(self, events: Iterable[tuple[int, AnyStreamEvent]] = ()) -> None:
        self.opened = False
        """There was a `started`."""
        self.model: str | None = None
        self.texts: list[str] = []
        """Of the attempt that counts."""
        self.notices: list[Notified] = []
        self.end: Ended | None = None
        for _, event in events:
            self.take(event)

    def take(self, event: AnyStreamEvent) -> None:
        """The next event."""
        match event:
            case Started():
                self.opened, self.model = True, event.model
            case Delta():
                if event.text:
                    self.texts.append(event.text)
            case Reset():
                self.texts.clear()
            case Notified():
                self.notices.append(event)
            case Ended():
                self.end = event

    @property
    def text(self) -> str:
        """The reply's text."""
        return "".join(self.texts)


def item_id(facts: Facts) -> str:
    """The id of the one output item."""
    return ITEM + facts.reply_id.partition("_")[2]


def response(facts: Facts, told: Told) -> dict[str, Any]:
    """The response object of a reply, as far as its events tell."""
    asked = facts.request
    sent = asked if isinstance(asked, MessageSubmitted) else None
    end = told.end
    status = _STATUSES[end.status] if end else "in_progress" if told.opened else "queued"
    parent_id = sent.parent_id if sent else None
    return {
        "id": facts.reply_id,
        "object": "response",
        "created_at": facts.created_at_ms // 1000,
        "completed_at": _completed_s(facts, end),
        "status": status,
        "background": True,
        "error": _error(end),
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": (sent.system or None) if sent else None,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": None,
        "model": (told.model if end else None) or facts.model,
        "output": _output(facts, told, status),
        "parallel_tool_calls": True,
        "previous_response_id": parent_id if parent_id and parent_id.startswith("rep_") else None,
        "conversation": {"id": facts.conversation_id},
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": True,
        "temperature": asked.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": asked.top_p,
        "truncation": "auto",
        "usage": _usage(end.usage) if end else None,
        "user": None,
        "metadata": sent.metadata if sent else {},
        **({"notices": [{"code": one.code, "detail": one.detail} for one in told.notices]} if told.notices else {}),
    }


def item(facts: Facts, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    """The output item: the reply as a message."""
    return {"id": item_id(facts), "type": "message", "status": status, "content": content, "role": "assistant"}


def part(text: str) -> dict[str, Any]:
    """The item's one part."""
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


def _output(facts: Facts, told: Told, status: str) -> list[dict[str, Any]]:
    if not told.opened or not (told.end or told.texts):
        return []
    item_status = status if status in ("completed", "in_progress") else "incomplete"
    return [item(facts, item_status, [part(told.text)])]


def _completed_s(facts: Facts, end: Ended | None) -> int | None:
    if end is None or end.status != "completed" or end.timings is None:
        return None
    return (facts.created_at_ms + end.timings.total_ms) // 1000


def _error(end: Ended | None) -> dict[str, Any] | None:
    if end is None or end.status not in ("refused", "failed"):
        return None
    failure = end.error or Failure(code=end.status, detail=f"The reply was {end.status}.")
    code = "invalid_prompt" if failure.code in _INVALID_PROMPT else "server_error"
    if failure.code in _CONTENDED:
        code = "rate_limit_exceeded"
    after = {} if failure.retry_after_s is None else {"retry_after_s": failure.retry_after_s}
    return {"code": code, "message": failure.detail, "type": failure.code, **after}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
