"""Request bodies of OpenAI's clients, and the send that each of them means.

Rules:

1. A member that is supported is checked like the native one of the same meaning.
2. A member that is known and not supported is taken at the value that asks for nothing, and refused by name otherwise.
3. Members that name the end user or steer OpenAI's prompt cache change no answer and are ignored (`Ignored`).
4. Unknown members are refused by name. A null is an absent member.

Sources: https://platform.openai.com/docs/api-reference/responses/create, …/chat/create
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from api.bodies import Body, Brought, SendBody, Stop
from api.formats.openai_input import CHAT, RESPONSES, UNSUPPORTED, Said, said
from api.problems import Problem, bad_request
from schemas.ids import Parsed
from schemas.limits import (
    METADATA_NAME_CHARS_MAX,
    METADATA_PAIRS_MAX,
    METADATA_VALUE_CHARS_MAX,
    SEED_MAX,
    STOP_SEQUENCES_MAX,
    TEMPERATURE_MAX,
)
from schemas.models import Model

CONVERSATION_MEMBER = "conversation_id"
"""In a chat completion's metadata: the conversation that it goes on with."""
KEPT = "must be true or absent: everything is kept here; delete the conversation instead"
TRUNCATED = "must be auto or absent: what does not fit into the model's context is left out, oldest first"


class Only:
    """Of a member that is not supported: null, or one of these values, which ask for nothing."""

    def __init__(self, *values: Any, otherwise: str = UNSUPPORTED) -> None:
        self._values = values
        self._otherwise = otherwise

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Any JSON, checked."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The values."""
        del schema, handler
        return {"enum": [*self._values, None]}

    def allows(self, value: Any) -> bool:
        """Whether it asks for nothing."""
        return value is None or any(type(value) is type(one) and value == one for one in self._values)

    def _checked(self, value: Any) -> Any:
        if self.allows(value):
            return value
        raise ValueError(self._otherwise)


class Members:
    """Of a member that is not supported: null, or an object of which each member asks for nothing."""

    def __init__(self, **neutral: tuple[Any, ...]) -> None:
        self._neutral = {name: Only(*values) for name, values in neutral.items()}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Any JSON, checked."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """An object."""
        del schema, handler
        return {"type": ["object", "null"]}

    def _checked(self, value: Any) -> Any:
        if value is None:
            return value
        if not isinstance(value, dict):
            raise ValueError(UNSUPPORTED)  # noqa: TRY004 - pydantic tells on a ValueError
        for name, member in value.items():
            known = self._neutral.get(name)
            if known is None or not known.allows(member):
                raise ValueError(f"{name} {UNSUPPORTED}")
        return value


def _conversation(value: Any) -> Any:
    return value["id"] if isinstance(value, dict) and value.keys() == {"id"} else value


def _stop(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


MetadataName = Annotated[str, Field(min_length=1, max_length=METADATA_NAME_CHARS_MAX)]
MetadataValue = Annotated[str, Field(max_length=METADATA_VALUE_CHARS_MAX)]
Metadata = Annotated[dict[MetadataName, MetadataValue], Field(max_length=METADATA_PAIRS_MAX)]
Stops = Annotated[list[Stop], Field(max_length=STOP_SEQUENCES_MAX), BeforeValidator(_stop)]
ModelName = Annotated[str, Field(min_length=1, max_length=200)]
Ignored = Annotated[str | None, Field(description="Ignored.")]
Nothing = Annotated[Any, Only()]
Items = Annotated[Any, WithJsonSchema({"type": "array", "items": {"type": "object"}})]


class OpenAIBody(Body):
    """What both bodies have."""

    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=TEMPERATURE_MAX)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    metadata: Metadata | None = None
    store: Annotated[Any, Only(True, otherwise=KEPT)] = None
    user: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    parallel_tool_calls: bool | None = Field(default=None, description="Says nothing without tools.")
    prompt_cache_options: Nothing = None
    moderation: Nothing = None
    service_tier: Annotated[Any, Only("auto", "default")] = None
    tools: Annotated[Any, Only([])] = None
    tool_choice: Annotated[Any, Only("none", "auto")] = None
    top_logprobs: Annotated[Any, Only(0)] = None


class ResponsesBody(OpenAIBody):
    """A request of the Responses API."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "auto", "input": "Write one sentence about rivers."}]}
    )

    model: ModelName | None = Field(default=None, description="Absent: auto.")
    input: Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array"}]})]
    instructions: str | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Annotated[str | None, BeforeValidator(_conversation)] = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    truncation: Annotated[Any, Only("auto", otherwise=TRUNCATED)] = None
    include: Annotated[Any, Only([])] = None
    text: Annotated[Any, Members(format=({"type": "text"},), verbosity=("medium",))] = None
    reasoning: Annotated[Any, Members(effort=("none",), summary=(), generate_summary=())] = None
    stream_options: Annotated[Any, Members(include_obfuscation=(False,))] = None
    context_management: Annotated[Any, Only([])] = None
    max_tool_calls: Nothing = None
    prompt: Nothing = None


class StreamOptions(Body):
    """How a chat completion's stream looks."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[Any, Only(False)] = None


class ChatBody(OpenAIBody):
    """A request of the Chat Completions API."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "auto", "messages": [{"role": "user", "content": "Name a river."}]}]}
    )

    model: ModelName
    messages: Items
    stream_options: StreamOptions | None = None
    stop: Stops | None = None
    seed: Annotated[int, Field(ge=0, le=SEED_MAX)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[Any, Only(1)] = None
    frequency_penalty: Annotated[Any, Only(0, 0.0)] = None
    presence_penalty: Annotated[Any, Only(0, 0.0)] = None
    logprobs: Annotated[Any, Only(False)] = None
    logit_bias: Annotated[Any, Only({})] = None
    response_format: Annotated[Any, Only({"type": "text"})] = None
    modalities: Annotated[Any, Only(["text"])] = None
    functions: Annotated[Any, Only([])] = None
    function_call: Annotated[Any, Only("none", "auto")] = None
    reasoning_effort: Annotated[Any, Only("none")] = None
    verbosity: Nothing = None
    audio: Nothing = None
    prediction: Nothing = None
    web_search_options: Nothing = None


def responses_send(
    body: ResponsesBody, key: str | None, model: Model, previous: Parsed | None
) -> tuple[SendBody, Brought]:
    """The send that a Responses request means. `previous`: the reply that it names. Raises `Problem` 400."""
    told = _responses_said(body)
    named = "previous_response_id" if previous else "conversation" if body.conversation else None
    if named and told.history:
        reason = f"with {named} it must have the new message only: what was said before it is in the conversation"
        raise bad_request([("input", reason)])
    _check_output(body.max_output_tokens, "max_output_tokens", model)
    sent = _send_body(
        {"content": told.place, "system": "instructions"},
        client_message_id=key,
        content=told.content,
        conversation_id=previous.conversation_id if previous else body.conversation,
        parent_id=previous.id if previous else None,
        system=told.system,
        model=body.model or "auto",
        max_output_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
    )
    brought = Brought(
        history=told.history,
        metadata=body.metadata or {},
        without_system=named is not None and told.system is None,
    )
    return sent, brought


def chat_send(body: ChatBody, key: str | None, model: Model, conversation_id: str | None) -> tuple[SendBody, Brought]:
    """The send that a chat completion means. `conversation_id`: from the header. Raises `Problem` 400."""
    told = said(body.messages, CHAT)
    named = (body.metadata or {}).get(CONVERSATION_MEMBER)
    if named and conversation_id and named != conversation_id:
        reason = "names another conversation than the header x-conversation-id"
        raise bad_request([(f"metadata.{CONVERSATION_MEMBER}", reason)])
    limit, limit_name = body.max_completion_tokens, "max_completion_tokens"
    if limit is None:
        limit, limit_name = body.max_tokens, "max_tokens"
    elif body.max_tokens not in (None, limit):
        raise bad_request([("max_tokens", "says another number than max_completion_tokens")])
    _check_output(limit, limit_name, model)
    sent = _send_body(
        {"content": told.place, "system": "messages"},
        client_message_id=key,
        content=told.content,
        conversation_id=conversation_id or named,
        system=told.system,
        model=body.model,
        max_output_tokens=limit,
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
        stop=body.stop or [],
    )
    brought = Brought(
        history=told.history,
        metadata=body.metadata or {},
        without_system=bool(told.history) and told.system is None,
    )
    return sent, brought


def _responses_said(body: ResponsesBody) -> Said:
    if isinstance(body.input, str):
        return Said(content=body.input, place="input", system=body.instructions or None)
    if not isinstance(body.input, list):
        raise bad_request([("input", "must be a text or a list of items")])
    return said(body.input, RESPONSES, body.instructions)


def _check_output(asked: int | None, name: str, model: Model) -> None:
    if asked is not None and asked > model.output_tokens_max:
        raise bad_request([(name, f"this model gives at most {model.output_tokens_max}")])


def _send_body(names: Mapping[str, str], **members: Any) -> SendBody:
    try:
        return SendBody(**members)
    except ValidationError as error:
        raise _wrong(names, error) from None


def _wrong(names: Mapping[str, str], error: ValidationError) -> Problem:
    told: list[tuple[str, str]] = []
    for detail in error.errors(include_url=False):
        member = str(detail["loc"][0])
        empty = detail["type"] == "string_too_short"
        reason = "must not be empty" if empty else str(detail["msg"]).removeprefix("Value error, ")
        told.append((names.get(member, member), reason))
    return bad_request(told)
