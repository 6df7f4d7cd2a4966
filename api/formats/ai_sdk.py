"""The UI message stream of the Vercel AI SDK, versions 6 and 7: a reply's events as its chunks.

Source: https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol, and `uiMessageChunkSchema` of the package `ai`, 6.0 and 7.0.

Rules:

1. Both versions end a stream at a chunk that they do not know, so only what both know is written. The exception is
   `reset-step`, which version 7 alone has: a reader says that it can take it (`VERSION_HEADER`).
2. `start` goes out at once. Its `messageId` is the reply's id, so the client sends it back with its next message.
3. The end is `finish`, `abort` (cancelled) or `error` (refused, failed), once, and then `[DONE]`. What the reply used
   stands in `messageMetadata` of `finish`; before the other two in a chunk `message-metadata`. `retryAfterS` stands
   there too, where an error is worth another try.
4. A notice is a `data-notice` part that is `transient`: the page is told, and it is no part of the message.
"""

from typing import Any

from api.formats.exchange import Facts
from api.formats.format import RESTARTED, UNFINISHED, event_frame
from api.reading import HEARTBEAT
from schemas.stream import AnyStreamEvent, Delta, Ended, Notified, Reset, Started
from schemas.values import Failure, Usage

HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
VERSION_HEADER = "x-ai-sdk-version"
RESETS_SINCE = 7
DONE = b"data: [DONE]\n\n"

_TEXT_ID = "text"


class AiSdkWriter:
    """See the rules of this module. `resets`: the reader can take a `reset-step`."""

    def __init__(self, facts: Facts, *, resets: bool) -> None:
        self.finished = False
        self._facts = facts
        self._resets = resets
        self._texts = False
        self._model = facts.model

    def begin(self) -> bytes:
        """The message without parts."""
        told = {"conversationId": self._facts.conversation_id}
        return _chunk("start", messageId=self._facts.reply_id, messageMetadata=told) + _chunk("start-step")

    def write(self, offset: int, event: AnyStreamEvent) -> bytes:  # noqa: ARG002 - the format has no offsets
        """The chunks of an event."""
        match event:
            case Started():
                self._model = event.model
                return b""
            case Delta():
                begun = b"" if self._texts else _chunk("text-start", id=_TEXT_ID)
                self._texts = True
                return begun + _chunk("text-delta", id=_TEXT_ID, delta=event.text)
            case Reset():
                self._model = self._facts.model
                return self._reset() if self._texts else b""
            case Notified():
                return _chunk("data-notice", data={"code": event.code, "detail": event.detail}, transient=True)
            case Ended():
                return self._ended(event)

    def beat(self) -> bytes:
        """A comment."""
        return HEARTBEAT

    def broken(self) -> bytes:
        """An error: the end of the stream alone would pass for the end of the reply."""
        return self._last("error", errorText=UNFINISHED)

    def _reset(self) -> bytes:
        self._texts = False
        return _chunk("reset-step") if self._resets else self._last("error", errorText=RESTARTED)

    def _ended(self, end: Ended) -> bytes:
        closed = _chunk("text-end", id=_TEXT_ID) if self._texts else b""
        metadata: dict[str, Any] = {"model": self._model, "usage": _usage(end.usage)}
        if end.error is not None and end.error.retry_after_s is not None:
            metadata["retryAfterS"] = end.error.retry_after_s
        match end.status:
            case "completed" | "length":
                reason = "length" if end.status == "length" else "stop"
                last = self._last("finish", finishReason=reason, messageMetadata=metadata)
                return closed + _chunk("finish-step") + last
            case "cancelled":
                last = self._last("abort", reason="cancelled")
            case _:
                error = end.error or Failure(code=end.status, detail="No reason is known.")
                last = self._last("error", errorText=f"{error.code}: {error.detail}")
        return closed + _chunk("message-metadata", messageMetadata=metadata) + last

    def _last(self, kind: str, **members: Any) -> bytes:
        self.finished = True
        return _chunk(kind, **members) + DONE


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.input_tokens + usage.output_tokens,
        "cachedInputTokens": usage.cached_input_tokens,
    }


def _chunk(kind: str, **members: Any) -> bytes:
    return event_frame({"type": kind, **members})
