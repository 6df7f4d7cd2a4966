"""Why a provider did not answer: from its status, headers and error object to what is done and what is told.

Rules:

1. What is told keeps the cause: the provider's name, the HTTP status, its code and message, its id of the request. It
   is cut to a bound, and holds no key, neither ours nor what looks like one (`inference_workers.causes`).
2. `busy` is asked again after what it asks for; `broken` is asked again; `denied` and `absent` are not, others are;
   `request` ends the generation, because no other provider will accept it either.
3. Once text has come, nothing is asked again here: the generation is `Interrupted`, and its next attempt begins anew.
"""

import math
import re
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from inference_workers import causes
from inference_workers.engine import (
    ContextTooLong,
    EngineError,
    EngineOverloaded,
    Interrupted,
    InvalidRequest,
    Value,
)
from inference_workers.engines.providers import Kind
from inference_workers.engines.upstream_json import Malformed, anything, decoded, in_words

MESSAGE_CHARS_MAX = 400
BODY_BYTES_MAX = 64 * 1024
"""Of an error's body, what is read."""

RETRY_AFTER_MAX_S = 3600.0


class Failure(Value, frozen=True):
    """One request that a provider did not answer."""

    kind: Kind
    text: str
    """A sentence for people, complete with the provider's name."""
    too_long: bool = False
    """Prompt and output do not fit the model's context."""
    retry_after_s: float | None = None
    """What the provider asked for."""


class Failed(Exception):
    """A request to a provider has failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Source(Value, frozen=True):
    """Whose failure it is, and what must not be told."""

    name: str
    key: str = ""


_KIND_OF_STATUS: dict[int, Kind] = {
    400: "request",
    401: "denied",
    402: "denied",
    403: "denied",
    408: "broken",
    409: "broken",
    413: "request",
    422: "request",
    425: "broken",
    429: "busy",
    503: "busy",
    529: "busy",
}

_KIND_OF_CODE: dict[str, Kind] = {
    "insufficient_quota": "denied",
    "billing_hard_limit_reached": "denied",
    "invalid_api_key": "denied",
    "authentication_error": "denied",
    "permission_error": "denied",
    "model_not_found": "absent",
    "not_found_error": "absent",
    "rate_limit_exceeded": "busy",
    "rate_limit_error": "busy",
    "overloaded_error": "busy",
    "engine_overloaded": "busy",
    "context_length_exceeded": "request",
    "content_filter": "request",
    "content_policy_violation": "request",
    "badrequesterror": "request",
    "invalid_request_error": "request",
    "bad_request": "request",
    "server_error": "broken",
    "internal_error": "broken",
    "internalservererror": "broken",
}

_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context (?:length|window|limit|size)"
    r"|maximum model length|max_model_len|max_seq_len|max_num_tokens|maximum (?:allowed )?(?:input|prompt) length"
    r"|prompt is too long|input is too long|reduce the length of the (?:messages|prompt|input)",
    re.IGNORECASE,
)
"""As OpenAI, vLLM, SGLang, TensorRT-LLM, llama.cpp and Anthropic say it."""


def of_response(source: Source, status: int, headers: Mapping[str, str], body: bytes, now_s: float) -> Failure:
    """The failure that an answer with an error status tells. `now_s`: seconds since the epoch."""
    told = _object(body)
    code, message = _code(told), _message(told) or body.decode("utf-8", "replace")
    kind = _KIND_OF_STATUS.get(status) or ("broken" if status >= 500 else "absent")
    if status in (403, 429) and _KIND_OF_CODE.get(code) == "denied":
        kind = "denied"
    if kind in ("busy", "broken") and headers.get("x-should-retry") == "false":
        kind = "denied"
    request_id = cleaned(source, headers.get("x-request-id", "")[:80])
    named = f" (request {request_id})" if request_id else ""
    return Failure(
        kind=kind,
        text=f"{source.name}: HTTP {status}{_said(source, code, message)}{named}",
        too_long=kind == "request" and _TOO_LONG.search(f"{code} {message}") is not None,
        retry_after_s=retry_after_s(headers, now_s) if kind in ("busy", "broken") else None,
    )


def of_object(source: Source, told: object) -> Failure:
    """The failure that an error object inside a stream tells, after a status of 200."""
    code, message = _code(told), _message(told) or in_words(told)
    number = in_words(_member(told, "code"))
    kind = _KIND_OF_CODE.get(code)
    if kind is None and number.isascii() and number.isdigit():
        kind = _KIND_OF_STATUS.get(int(number[:3])) or ("absent" if number.startswith("4") else "broken")
    too_long = _TOO_LONG.search(f"{code} {message}") is not None
    return Failure(
        kind="request" if too_long else kind or "broken",
        text=f"{source.name}: an error in the stream{_said(source, code, message)}",
        too_long=too_long,
    )


def of_words(source: Source, kind: Kind, words: str) -> Failure:
    """A failure that we found ourselves."""
    return Failure(kind=kind, text=f"{source.name}: {cleaned(source, words)}")


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """What `retry-after-ms` or `retry-after` (seconds, or a date) ask for: from 0 to `RETRY_AFTER_MAX_S`."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            wanted_s = float(value) * unit_s
        except ValueError:
            try:
                wanted_s = parsedate_to_datetime(value).timestamp() - now_s
            except (ValueError, TypeError, OverflowError, OSError):  # of a date that is none, or beyond all clocks
                continue
        if not math.isnan(wanted_s):
            return min(max(wanted_s, 0.0), RETRY_AFTER_MAX_S)
    return None


def error_of(failure: Failure, *, begun: bool) -> EngineError:
    """What ends the generation with this failure. `begun`: some of the answer had come."""
    if failure.too_long:
        return ContextTooLong(failure.text)
    if failure.kind == "request" or (failure.kind == "absent" and not begun):
        return InvalidRequest(failure.text)
    if failure.kind == "busy" and not begun:
        return EngineOverloaded(failure.text)
    return Interrupted(failure.text)


def error_of_all(failures: Sequence[Failure], unasked: Sequence[str]) -> EngineError:
    """What ends the generation when no provider may be asked any more and nothing has come.

    Args:
        unasked: names of the providers that were busy or left alone by their breakers.
    """
    told = [failure.text for failure in failures[-3:]]
    if unasked:
        told.append(f"not asked, because busy or broken shortly before: {', '.join(unasked)}")
    text = "; ".join(told) or "no provider may be asked"
    kinds = {failure.kind for failure in failures}
    if kinds <= {"busy"}:
        return EngineOverloaded(text)
    if kinds == {"absent"} and not unasked:
        return InvalidRequest(text)
    return Interrupted(text)


def cleaned(source: Source, text: str) -> str:
    """The text without keys, on one line, of at most `MESSAGE_CHARS_MAX` characters."""
    return causes.told(text, secret=source.key, chars_max=MESSAGE_CHARS_MAX)


def _said(source: Source, code: str, message: str) -> str:
    said = cleaned(source, f"{code}: {message}" if code else message)
    return f" {said}" if code and said else f": {said}" if said else ""


def _object(body: bytes) -> object:
    try:
        return decoded(body, anything)
    except Malformed:
        return None


def _inner(told: object) -> object:
    """The error itself: `{"error": {…}}`, `{"error": "…"}`, `{"object": "error", "message": …}`, `{"detail": …}`."""
    if isinstance(told, list) and told:
        told = told[0]
    if isinstance(told, dict) and told.get("error"):
        return told["error"]
    return told


def _member(told: object, name: str) -> Any:
    inner = _inner(told)
    return inner.get(name) if isinstance(inner, dict) else None


def _code(told: object) -> str:
    """Its code or type in words, else its number."""
    found = [_member(told, "code"), _member(told, "type")]
    words = [in_words(value)[:80].lower() for value in found if isinstance(value, str | int) and value]
    return next((word for word in words if not word.isdigit()), words[0] if words else "")


def _message(told: object) -> str:
    inner = _inner(told)
    if isinstance(inner, str):
        return inner
    return in_words(_member(told, "message") or _member(told, "detail"))
