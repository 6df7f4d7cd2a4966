"""Request bodies: what a client may send, and what is wrong with what it sent.

Rules:

1. A body is one JSON object in UTF-8 (RFC 8259), declared as JSON, of at most `BODY_BYTES_MAX` bytes.
2. Unknown members are refused by name: a misspelt `max_output_token` must not silently cost money.
3. Types are strict: a number is not a text.
4. Text is taken as it comes, control characters included, and comes back unchanged. What is not Unicode (a lone
   surrogate) is refused.
5. All that is wrong is told at once, each field with its reason.
"""

import asyncio
import hashlib
import json
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import ClientDisconnect, Request

from api.problems import Problem, bad_request, too_large, too_slow, unsupported_media_type
from schemas.ids import has_secret
from schemas.limits import (
    BODY_BYTES_MAX,
    CLIENT_MESSAGE_ID_CHARS_MAX,
    CONTENT_BYTES_MAX,
    SEED_MAX,
    STOP_CHARS_MAX,
    STOP_SEQUENCES_MAX,
    SYSTEM_BYTES_MAX,
    TEMPERATURE_MAX,
    TITLE_CHARS_MAX,
)
from schemas.values import PromptMessage


def text_at_most(limit: int, text: str) -> str:
    """The text. Raises ValueError when it has more bytes in UTF-8."""
    size = len(text.encode())
    if size > limit:
        raise ValueError(f"must have at most {limit} bytes in UTF-8, has {size}")
    return text


Content = Annotated[
    str,
    Field(min_length=1, description=f"At most {CONTENT_BYTES_MAX} bytes in UTF-8."),
    AfterValidator(lambda text: text_at_most(CONTENT_BYTES_MAX, text)),
]
System = Annotated[
    str,
    Field(min_length=1, description=f"At most {SYSTEM_BYTES_MAX} bytes in UTF-8."),
    AfterValidator(lambda text: text_at_most(SYSTEM_BYTES_MAX, text)),
]


def no_secret(text: str) -> str:
    """The text. Raises ValueError when it looks like a key or a token, which must not get into the log."""
    if has_secret(text):
        raise ValueError("is a key or a token; take any other text")
    return text


ClientMessageId = Annotated[str, Field(min_length=1, max_length=CLIENT_MESSAGE_ID_CHARS_MAX), AfterValidator(no_secret)]
Stop = Annotated[str, Field(min_length=1, max_length=STOP_CHARS_MAX)]


class Body(BaseModel):
    """Base of the bodies."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Options(Body):
    """How a reply is made. What is absent follows the model."""

    model: Annotated[str, Field(min_length=1, max_length=200)] = Field(
        default="auto", description="A name from GET /v1/models, or auto."
    )
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=TEMPERATURE_MAX)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0, le=SEED_MAX)] | None = None
    stop: Annotated[list[Stop], Field(max_length=STOP_SEQUENCES_MAX)] = Field(
        default_factory=list, description="The reply ends before any of these texts."
    )


class Generation(Options):
    """A request for a reply."""

    client_message_id: ClientMessageId | None = Field(
        default=None, description="Makes the call idempotent, per account. Without it each call is a new one."
    )


class SendBody(Generation):
    """A message to send."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"client_message_id": "hello-1", "content": "Write one sentence about rivers."}]
        }
    )

    content: Content
    conversation_id: str | None = Field(default=None, description="Absent: a new conversation begins.")
    parent_id: str | None = Field(
        default=None,
        description="The message that this one follows. Absent: the newest of the current branch. Another one: a new"
        " branch there. The conversation's own id: a new beginning of the conversation.",
    )
    system: System | None = None

    @model_validator(mode="after")
    def _parent_has_a_conversation(self) -> "SendBody":
        if self.parent_id is not None and self.conversation_id is None:
            raise ValueError("parent_id needs conversation_id")
        return self


class Brought(msgspec.Struct, frozen=True, kw_only=True):
    """What clients of other formats bring along with a message; see `MessageSubmitted`."""

    history: tuple[PromptMessage, ...] = ()
    metadata: dict[str, str] = {}
    begins: bool = False
    """The message begins its conversation if nothing else has: the client names conversations itself."""
    without_system: bool = False
    """No system prompt holds, whatever the branch has."""


NOTHING_BROUGHT = Brought()


class RegenerateBody(Generation):
    """Another reply to the same message."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"client_message_id": "again-1", "temperature": 0.7}]})


class TicketBody(Body):
    """A ticket for one stream."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"id": "rep_…"}]})

    id: str = Field(description="The reply or the conversation whose events are to be followed.")


class ChangeBody(Body):
    """A change of a conversation: a title, a choice of branch, or both."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"title": "Rivers"}]})

    title: Annotated[str, Field(min_length=1, max_length=TITLE_CHARS_MAX)] | None = None
    branch: str | None = Field(
        default=None, description="A message: the current branch is the newest one that passes through it."
    )

    @model_validator(mode="after")
    def _something_changes(self) -> "ChangeBody":
        if self.title is None and self.branch is None:
            raise ValueError("give title, branch, or both")
        return self


B = TypeVar("B", bound=Body)

BODY_S = 30.0
"""A body has so long to come."""


def digest(body: Generation, **of: str) -> str:
    """SHA-256 (hex) of what a request means: the same client message id with another digest is a conflict."""
    members: dict[str, Any] = body.model_dump(exclude={"client_message_id"}) | of
    return hashlib.sha256(json.dumps(members, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parsed(cls: type[B], raw: bytes) -> B:
    """The body in these bytes. Raises `Problem` 400 with each wrong field."""
    try:
        return cls.model_validate_json(raw)
    except ValidationError as error:
        raise bad_request([_told(detail, cls) for detail in error.errors(include_url=False)]) from None


async def read(request: Request, cls: type[B], *, may_be_empty: bool = False) -> B:
    """The body of a request. Raises `Problem` 400, 413 or 415."""
    raw = await _raw(request)
    if not raw and may_be_empty:
        return cls()
    declared = request.headers.get("content-type", "")
    media_type = declared.partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise unsupported_media_type(media_type)
    return parsed(cls, raw)


async def _raw(request: Request) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > BODY_BYTES_MAX:
        raise too_large(BODY_BYTES_MAX)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > BODY_BYTES_MAX:
                    raise too_large(BODY_BYTES_MAX)
                chunks.append(chunk)
    except TimeoutError:
        raise too_slow(BODY_S) from None
    except ClientDisconnect:
        raise bad_request([("body", "did not come to its end, or its chunks are malformed")]) from None
    return b"".join(chunks)


_COUNTED = {"too_long": "items", "string_too_long": "characters"}
_REASONS = {
    "missing": "is required",
    "json_invalid": "is not valid JSON",
    "model_type": "must be a JSON object",
    "string_type": "must be a text",
    "string_unicode": "must be Unicode (no lone surrogates)",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "list_type": "must be a list",
}


def _told(detail: Any, cls: type[Body]) -> tuple[str, str]:
    kind = detail["type"]
    field = ".".join(str(part) for part in detail["loc"]) or "body"
    if kind == "json_invalid":
        return field, f"is not valid JSON: {detail['ctx']['error']}"
    if kind == "extra_forbidden":
        return field, f"is not known; known are {', '.join(sorted(cls.model_fields))}"
    if kind == "value_error":
        return field, str(detail["ctx"]["error"])
    if kind in {"too_long", "string_too_long"}:
        return field, f"must have at most {detail['ctx']['max_length']} {_COUNTED[kind]}"
    return field, _REASONS.get(kind) or _lower_first(str(detail["msg"]))


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def check_model_limits(model_output_max: int, asked: int | None) -> None:
    """Raises `Problem` 400 when more output is asked for than the model gives."""
    if asked is not None and asked > model_output_max:
        raise bad_request([("max_output_tokens", f"this model gives at most {model_output_max}")])


def unknown_model(names: list[str]) -> Problem:
    """400: a model that is not served."""
    return bad_request([("model", f"is not served; served are: auto, {', '.join(names)}")])
