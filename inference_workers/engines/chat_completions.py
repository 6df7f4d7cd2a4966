"""OpenAI's Chat Completions as vLLM, SGLang, TensorRT-LLM and others speak it: the request, and what a chunk says.

Pure. Of a reasoning model's thinking (`reasoning_content`, `reasoning`) nothing is shown: it is no part of the reply,
and must not come back as one in the next turn's prompt. Its tokens are counted and paid for like all others.
"""

import hashlib
from typing import Any, Literal

import msgspec

from inference_workers.engine import Finish, GenerationRequest, Value
from inference_workers.engines.upstream_json import Malformed, anything, decoded

UsageMode = Literal["no", "end", "each"]
PriorityMode = Literal["no", "low_first", "high_first", "fraction"]
"""How an upstream takes priorities: 0 to 100, the lower or the higher the sooner, or as we do, 0 to 1."""


class Dialect(Value, frozen=True):
    """What an upstream takes beyond messages, and under which names."""

    model: str
    max_tokens_as: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    sampling: bool = True
    """`temperature`, `top_p` and `seed`; false for models that refuse them."""
    top_k: bool = False
    cache_salt: bool = False
    priority: PriorityMode = "no"
    usage: UsageMode = "end"
    stop_max: int = 4
    """Stop sequences that it takes; all of them are held to on our side too."""


PRIORITY_STEPS = 100


def body(request: GenerationRequest, dialect: Dialect, key: str) -> dict[str, Any]:
    """The request's body. It holds nothing of ours but the prompt: no id, no account.

    The salt is sent as a hash with the provider's key: equal accounts have equal salts at one provider, and nobody
    can tell from it which account it is.
    """
    asked: dict[str, Any] = {
        "model": dialect.model,
        "messages": [{"role": message.role, "content": message.content} for message in request.messages],
        dialect.max_tokens_as: request.max_tokens,
        "stream": True,
    }
    if dialect.sampling:
        asked["temperature"] = request.temperature
        asked["top_p"] = request.top_p
        if request.seed is not None:
            asked["seed"] = request.seed % 2**31
    if dialect.top_k and request.top_k is not None:
        asked["top_k"] = request.top_k
    if request.stop and dialect.stop_max:
        asked["stop"] = list(request.stop[: dialect.stop_max])
    if dialect.cache_salt and request.cache_salt is not None:
        asked["cache_salt"] = salt_of(request.cache_salt, key)
    if dialect.priority != "no":
        asked["priority"] = priority_of(request.priority, dialect.priority)
    if dialect.usage != "no":
        asked["stream_options"] = {"include_usage": True}
        if dialect.usage == "each":
            asked["stream_options"]["continuous_usage_stats"] = True
    return asked


def priority_of(priority: float, mode: PriorityMode) -> float:
    """A priority from 0 to 1 as an upstream takes it."""
    priority = min(max(priority, 0.0), 1.0)
    rank = round(priority * PRIORITY_STEPS)
    return priority if mode == "fraction" else rank if mode == "high_first" else PRIORITY_STEPS - rank


def salt_of(salt: str, key: str) -> str:
    """The salt as it leaves the house."""
    return hashlib.blake2b(salt.encode(), key=hashlib.sha256(key.encode()).digest(), digest_size=32).hexdigest()


class Tokens(Value, frozen=True):
    """Of one generation so far, as the upstream counts."""

    prompt: int
    cached: int
    output: int


class Part(Value, frozen=True):
    """What one chunk says."""

    text: str = ""
    thought: bool = False
    """It holds thinking, which is not shown."""
    finish: str | None = None
    """The upstream's own word."""
    tokens: Tokens | None = None


class ErrorInside(Exception):
    """A chunk is an error object."""

    def __init__(self, told: object) -> None:
        super().__init__("an error object in the stream")
        self.told = told


class _Delta(msgspec.Struct, frozen=True):
    content: Any = None
    refusal: Any = None
    reasoning_content: Any = None
    reasoning: Any = None


class _Choice(msgspec.Struct, frozen=True):
    index: int | None = 0
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    object: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


def part_of(event_type: bytes, data: bytes) -> Part:
    """What an event's data says. Raises `Malformed` or `ErrorInside`, and nothing else whatever the data are."""
    chunk = decoded(data, _decoder)
    if chunk.error or chunk.object == "error" or event_type == b"error":
        raise ErrorInside(_told(chunk, data))
    text, thought, finish = "", False, None
    for choice in chunk.choices or ():
        if choice.index:
            continue
        finish = choice.finish_reason or finish
        if choice.delta is not None:
            text += _text(choice.delta.content) + _text(choice.delta.refusal)
            thought = thought or bool(choice.delta.reasoning_content or choice.delta.reasoning)
    return Part(text=text, thought=thought, finish=finish, tokens=_tokens(chunk.usage))


def _told(chunk: _Chunk, data: bytes) -> object:
    """The whole object, or of one that cannot be read as a whole its error."""
    try:
        return decoded(data, anything)
    except Malformed:
        return {"error": chunk.error}


def _text(content: object) -> str:
    """A text, or a list of parts of which the texts count."""
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _tokens(usage: object) -> Tokens | None:
    """The counts, where both are there. A usage that is not as it should be is none, and breaks nothing."""
    prompt, output = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    if prompt is None or output is None:
        return None
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = _count(details, "cached_tokens") or _count(usage, "prompt_cache_hit_tokens") or 0
    return Tokens(prompt=prompt, cached=min(cached, prompt), output=output)


def _count(counts: object, name: str) -> int | None:
    value = counts.get(name) if isinstance(counts, dict) else None
    return int(value) if isinstance(value, int | float) and 0 <= value < 1e12 else None


class Characters:
    """Puts characters together that an upstream has split into two surrogates, one in each of two chunks."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def add(self, text: str) -> str:
        """The next text; half a pair at its end is held back."""
        if not self._held and text.isascii():
            return text
        text = self._held + text
        self._held = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        return _paired(text)

    def rest(self) -> str:
        """What never was completed, as a decoder would show it."""
        text, self._held = self._held, ""
        return _paired(text)


def _paired(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


_FINISHES: dict[str, Finish] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
}

Broken = Literal["filtered", "tool", "aborted", "unknown"]


def finish_of(word: str) -> Finish | Broken:
    """What an upstream's `finish_reason` means.

    `filtered`: its content filter ended it; `tool`: it wants a tool called, which was not offered; `aborted`: it broke
    off; `unknown`: a word of its own, which is never taken for success.
    """
    finish = _FINISHES.get(word.lower())
    if finish is not None:
        return finish
    match word.lower():
        case "content_filter" | "safety" | "recitation":
            return "filtered"
        case "tool_calls" | "function_call" | "tool_use":
            return "tool"
        case "abort" | "aborted" | "cancelled" | "error" | "timeout" | "insufficient_system_resource":
            return "aborted"
        case _:
            return "unknown"
