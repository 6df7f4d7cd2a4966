"""What OpenAI's clients call, under /openai/v1."""

from fastapi import APIRouter
from starlette.responses import Response

from api.context import TheCaller, TheService
from api.formats.openai_models import listed, served, shown
from api.openapi import JSON_OBJECT, foreign_problems
from api.routes import openai_chat, openai_responses
from api.routes.openai_answers import told
from api.sending import allowed

router = APIRouter()

_models = APIRouter(prefix="/openai/v1/models", tags=["openai"])


@_models.get(
    "",
    summary="List models",
    response_class=Response,
    responses={
        200: {"description": "Those that the caller may use.", **JSON_OBJECT},
        **foreign_problems(400, 401),
    },
)
async def models(the: TheService, caller: TheCaller) -> Response:
    """`auto` answers as the first one."""
    return told(listed(allowed(the.models, caller)))


@_models.get(
    "/{model:path}",
    summary="Read a model",
    response_class=Response,
    responses={200: {"description": "The model.", **JSON_OBJECT}, **foreign_problems(400, 401, 404)},
)
async def model_(model: str, the: TheService, caller: TheCaller) -> Response:
    """By its exact name."""
    return told(shown(served(allowed(the.models, caller), model)))


for part in (openai_responses.router, openai_chat.router, _models):
    router.include_router(part)
