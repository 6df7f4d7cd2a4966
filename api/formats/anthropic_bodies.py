"""Bodies of Anthropic Messages: what is taken, what is ignored, and what is refused by name.

Source: https://docs.anthropic.com/en/api/messages, and the types of anthropic-python 2.14.

Rules:

1. Text is taken, plain or in text blocks; several blocks are one text with an empty line between.
2. `cache_control` is ignored, wherever it stands: prompts are cached by the engine without being asked. So are
   `citations` of a block and `service_tier`.
3. Everything else that would change the answer and is not served is refused by name.
4. The conversation is the client's: what it says was said before is what the reply is made from.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from api.bodies import Body, Brought, SendBody, Stop, System, text_at_most
from api.problems import Problem, bad_request
from schemas.limits import (
    CONTENT_BYTES_MAX,
    HISTORY_MESSAGES_MAX,
    METADATA_VALUE_CHARS_MAX,
    STOP_SEQUENCES_MAX,
)
from schemas.models import Model, find
from schemas.values import PromptMessage

_BLOCK_MEMBERS = frozenset({"type", "text", "cache_control", "citations"})


def _text(content: Any) -> Any:
    """The text in a list of text blocks. Raises ValueError for a block that is none."""
    if not isinstance(content, list | tuple):
        return content
    texts: list[str] = []
    for index, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind != "text" or not isinstance(block.get("text"), str):
            told = f"of type {kind}" if isinstance(kind, str) and kind != "text" else "not a text block"
            raise ValueError(f"block {index} is {told}; only text blocks are supported")
        if unknown := sorted(set(block) - _BLOCK_MEMBERS):
            raise ValueError(f"block {index} has {unknown[0]}, which is not known")
        texts.append(block["text"])
    return "\n\n".join(texts)


def _text_or_none(content: Any) -> Any:
    return _text(content) or None


def _refused(value: Any) -> Any:
    if value is None or value == []:
        return None
    raise ValueError("is not supported")


def _not_thinking(value: Any) -> Any:
    if value is None or value == {"type": "disabled"}:
        return None
    raise ValueError("is not supported, except as disabled")


_BLOCKS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
    },
}
_TEXT_OR_BLOCKS = WithJsonSchema({"anyOf": [{"type": "string"}, _BLOCKS]})
_TEXT_OR_BLOCKS_OR_NOT = WithJsonSchema({"anyOf": [{"type": "string"}, _BLOCKS, {"type": "null"}]})
_NOTHING = WithJsonSchema({"type": "null"})

Unsupported = Annotated[Any, AfterValidator(_refused), _NOTHING, Field(description="Not supported.")]
Ignored = Annotated[Any, Field(description="Taken and ignored.")]


class AnthropicMessage(Body):
    """What was said, by whom."""

    role: Literal["user", "assistant"]
    content: Annotated[
        str,
        BeforeValidator(_text),
        AfterValidator(lambda text: text_at_most(CONTENT_BYTES_MAX, text)),
        _TEXT_OR_BLOCKS,
        Field(description=f"Text, or text blocks. At most {CONTENT_BYTES_MAX} bytes in UTF-8."),
    ]

    @model_validator(mode="after")
    def _users_say_something(self) -> "AnthropicMessage":
        if self.role == "user" and not self.content:
            raise ValueError("content must not be empty")
        return self


class AnthropicMetadata(Body):
    """Kept with the message."""

    user_id: Annotated[str, Field(max_length=METADATA_VALUE_CHARS_MAX)] | None = None


class AnthropicBody(Body):
    """A request for a message."""

    model: Annotated[str, Field(min_length=1, max_length=200)]
    max_tokens: Annotated[int, Field(ge=1)]
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=HISTORY_MESSAGES_MAX + 1)]
    system: Annotated[System | None, BeforeValidator(_text_or_none), _TEXT_OR_BLOCKS_OR_NOT] = None
    stream: bool = False
    stop_sequences: Annotated[list[Stop], Field(max_length=STOP_SEQUENCES_MAX)] = Field(default_factory=list)
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    metadata: AnthropicMetadata | None = None
    cache_control: Ignored = None
    service_tier: Literal["auto", "standard_only"] | None = Field(default=None, description="Taken and ignored.")
    thinking: Annotated[Any, AfterValidator(_not_thinking), _NOTHING] = None
    tools: Unsupported = None
    tool_choice: Unsupported = None
    top_k: Unsupported = None
    container: Unsupported = None
    context_management: Unsupported = None
    mcp_servers: Unsupported = None
    output_config: Unsupported = None

    @model_validator(mode="after")
    def _the_user_spoke_last(self) -> "AnthropicBody":
        if self.messages[-1].role != "user":
            raise ValueError("the last of messages must be the user's; to begin the answer for it is not supported")
        return self


def sent(
    body: AnthropicBody, models: tuple[Model, ...], conversation_id: str | None, idempotency_key: str | None
) -> tuple[SendBody, Brought]:
    """The native send. Raises `Problem` 404 for an unknown model, 400 where more output is asked for than it gives."""
    model = find(models, body.model)
    if model is None:
        names = ", ".join(("auto", *(one.name for one in models)))
        raise Problem(
            404, "model_not_found", "Not found", f"model: {body.model[:200]} is not served; served are {names}."
        )
    if body.max_tokens > model.output_tokens_max:
        raise bad_request([("max_tokens", f"this model gives at most {model.output_tokens_max}")])
    *before, last = body.messages
    history = tuple(PromptMessage(role=said.role, content=said.content) for said in before if said.content)
    send = SendBody(
        client_message_id=idempotency_key,
        model=body.model,
        max_output_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        stop=body.stop_sequences,
        content=last.content,
        conversation_id=conversation_id,
        system=body.system,
    )
    user_id = body.metadata.user_id if body.metadata else None
    metadata = {"user_id": user_id} if user_id else {}
    return send, Brought(history=history, metadata=metadata, without_system=bool(history))
