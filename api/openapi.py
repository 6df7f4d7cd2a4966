"""The OpenAPI document: made from the routes, the shapes and the bodies."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api.admin_bodies import AccountBody, AccountChangeBody, AdjustmentBody, KeyBody, LimitsBody, UserBody
from api.bodies import ChangeBody, RegenerateBody, SendBody, TicketBody
from api.formats.ai_sdk_bodies import AiSdkBody
from api.formats.anthropic_bodies import AnthropicBody
from api.formats.openai_bodies import ChatBody, ResponsesBody
from api.problems import MEDIA_TYPE, ProblemView

_BODIES = (SendBody, RegenerateBody, ChangeBody, TicketBody, AnthropicBody, AiSdkBody, ResponsesBody, ChatBody)
_ADMIN_BODIES = (AccountBody, AccountChangeBody, LimitsBody, UserBody, KeyBody, AdjustmentBody)
_REF = "#/components/schemas/{model}"
_EXAMPLE_STREAM = (
    'id: 1\nevent: started\ndata: {"message_id":"rep_…","conversation_id":"conv_…","model":"smollm2-135m-instruct",'
    '"attempt":1}\n\nid: 2\nevent: delta\ndata: {"text":"Rivers"}\n\n'
    'id: 3\nevent: ended\ndata: {"status":"completed","usage":{"input_tokens":9,"output_tokens":1,'
    '"cached_input_tokens":0,"cache_write_tokens":0,"counted":true},"timings":null,"error":null}\n\n'
)

STREAM: dict[str, Any] = {
    "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE_STREAM}},
}
"""What a stream looks like in the document."""

_EXAMPLE_FEED = (
    'id: 42\nevent: message\ndata: {"message":{"id":"msg_…","conversation_id":"conv_…","role":"user",'
    '"status":"completed","text":"Name a river.","created_at":"2026-11-29T12:00:00.000Z","parent_id":"rep_…"},'
    '"reply":{"id":"rep_…","conversation_id":"conv_…","role":"assistant","status":"queued","text":"",'
    '"model":"auto","parent_id":"msg_…","attempt":1,"offset":0,"created_at":"2026-11-29T12:00:00.000Z"}}\n\n'
    'id: 57\nevent: reply_ended\ndata: {"id":"rep_…","status":"completed","text":"Rhine",'
    '"model":"smollm2-135m-instruct","attempt":1,"offset":3,"usage":{"input_tokens":9,"output_tokens":1,'
    '"cached_input_tokens":0,"cache_write_tokens":0,"counted":true}}\n\n'
    'id: 60\nevent: renamed\ndata: {"title":"Rivers"}\n\n'
)

FEED: dict[str, Any] = {
    "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE_FEED}},
}
"""What a conversation's feed looks like in the document."""

JSON_OBJECT: dict[str, Any] = {"content": {"application/json": {"schema": {"type": "object"}}}}
"""An answer whose shape another client's documentation tells."""
FOREIGN_STREAM: dict[str, Any] = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
OBJECT_OR_STREAM: dict[str, Any] = {"content": JSON_OBJECT["content"] | FOREIGN_STREAM["content"]}

_MEANINGS = {
    400: "Something in the request is wrong; `errors` says which field and why.",
    401: "No valid key.",
    402: "The account has spent what it may in this month.",
    404: "There is no such thing, or it is not the caller's.",
    408: "The body did not come to its end in time.",
    409: "It contradicts what is there: a client message id with another body, an account that is otherwise.",
    410: "The cursor cannot be served exactly; `message_url` says where the message is.",
    413: "The body is too large, or more is asked for than a limit of the account ever holds.",
    415: "The body is not declared as JSON.",
    429: "A limit of the account is reached (`code` says which); `retry_after_s` says when to try again.",
    500: "The reply has failed.",
    503: "There is no capacity now, or something that is needed does not answer; `code` says which.",
    529: "There is no capacity now; `Retry-After` says when to try again.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a call, for its `responses`."""
    schema = {"$ref": _REF.format(model=ProblemView.__name__)}
    return {
        status: {"description": _MEANINGS[status], "content": {MEDIA_TYPE: {"schema": schema}}} for status in statuses
    }


def foreign_problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a call in another client's format, as that format writes them."""
    return {status: {"description": _MEANINGS[status], **JSON_OBJECT} for status in statuses}


def body_of(cls: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """The body of a call, for its `openapi_extra`."""
    schema = {"$ref": _REF.format(model=cls.__name__)}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def document(app: FastAPI) -> dict[str, Any]:
    """The whole document; made once."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    made = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        license_info=app.license_info,
    )
    bodies = (*_BODIES, *(_ADMIN_BODIES if any(path.startswith("/v1/admin/") for path in made["paths"]) else ()))
    _, extra = models_json_schema(
        [(cls, "validation") for cls in (*bodies, ProblemView)],
        ref_template=_REF,
    )
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(extra["$defs"])
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path in made["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    app.openapi_schema = made
    return made
