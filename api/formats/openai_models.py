"""The models as OpenAI's clients list them.

Source: https://platform.openai.com/docs/api-reference/models
"""

from collections.abc import Iterable

from api.problems import FieldError, Problem
from schemas.models import Model, find

CREATED_S = 1_761_955_200
"""Models have no date of their own here: one for all."""
OWNER = "turnlog"


def listed(models: Iterable[Model]) -> dict[str, object]:
    """The list."""
    return {"object": "list", "data": [shown(model) for model in models]}


def shown(model: Model) -> dict[str, object]:
    """One model."""
    return {"id": model.name, "object": "model", "created": CREATED_S, "owned_by": OWNER}


def served(models: tuple[Model, ...], name: str) -> Model:
    """The model that answers to this name, `auto` included. Raises `Problem` 404, as OpenAI does."""
    model = find(models, name)
    if model is None:
        raise _not_found(models, name)
    return model


def _not_found(models: Iterable[Model], name: str) -> Problem:
    names = ", ".join(("auto", *(model.name for model in models)))
    detail = f"The model {name[:200]!r} does not exist here; served are {names}."
    return Problem(404, "model_not_found", "Not found", detail, errors=[FieldError(field="model", reason=detail)])
