"""What goes to llama.cpp's chat completions and what comes back: bodies, chunks and errors, as JSON.

Only the members that are used are decoded. Shapes as in llama.cpp's tools/server/README.md.
"""

import secrets
from typing import Any

import msgspec

from inference_workers.engine import (
    ContextTooLong,
    EngineError,
    EngineOverloaded,
    GenerationRequest,
    InvalidRequest,
)
from inference_workers.engines.llama_slots import Choice
from inference_workers.engines.upstream_json import in_words


class Delta(msgspec.Struct):
    """More text. The first one has none."""

    content: str | None = None


class Alternative(msgspec.Struct):
    """A member of `choices`; there is never more than one."""

    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None


class Progress(msgspec.Struct):
    """How far the prompt has been read; `processed` includes `cache`."""

    total: int
    cache: int
    processed: int
    time_ms: float


class Timings(msgspec.Struct):
    """So far, in the slot's own time."""

    predicted_n: int
    predicted_ms: float


class CachedTokens(msgspec.Struct):
    """A member of the usage."""

    cached_tokens: int = 0


class Counted(msgspec.Struct):
    """The usage, once, at the end."""

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: CachedTokens = msgspec.field(default_factory=CachedTokens)


class Told(msgspec.Struct):
    """One chunk."""

    choices: list[Alternative] = msgspec.field(default_factory=list)
    prompt_progress: Progress | None = None
    timings: Timings | None = None
    usage: Counted | None = None
    error: Any = None


decode = msgspec.json.Decoder(Told).decode
"""A chunk's bytes. Raises `msgspec.DecodeError`, and what text that is none, or nested too deeply, raises."""


def conversation(request: GenerationRequest, system_prompt: str) -> list[dict[str, str]]:
    """The messages, beginning with a system prompt: a template would bring one of its own where there is none."""
    messages = [{"role": message.role, "content": message.content} for message in request.messages]
    if messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system_prompt})
    return messages


def prompt_text(messages: list[dict[str, str]]) -> str:
    """The conversation as one text, in a form of our own: what a following turn sends begins with it and the reply."""
    return "".join(f"{message['role']}\n{message['content']}\x1e" for message in messages) + "assistant\n"


def body(request: GenerationRequest, messages: list[dict[str, str]], choice: Choice) -> bytes:
    """The request's body. Raises `UnicodeEncodeError` for text that is none."""
    made: dict[str, Any] = {
        "messages": messages,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "seed": secrets.randbits(31) if request.seed is None else request.seed % 2**31,
        "stop": request.stop,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "timings_per_token": True,
        "id_slot": choice.slot,
        "cache_prompt": choice.reuse,
    }
    if request.top_k is not None:
        made["top_k"] = request.top_k
    return msgspec.json.encode(made)


def error_of(error: Any) -> EngineError:
    """The typed error of llama.cpp's error object (`code`, `type`, `message`)."""
    message = in_words(error.get("message", error) if isinstance(error, dict) else error)
    kind = error.get("type") if isinstance(error, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    if kind == "exceed_context_size_error":
        return ContextTooLong(message)
    if code in (400, 413, 422) or kind == "invalid_request_error":
        return InvalidRequest(message)
    if code in (429, 503) or kind == "unavailable_error":
        return EngineOverloaded(message)
    return EngineError(message)
