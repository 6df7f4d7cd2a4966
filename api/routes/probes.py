"""For those who operate the process: alive, ready, metrics."""

from fastapi import APIRouter
from starlette.responses import Response

from api.context import TheService, answer
from api.metrics import CONTENT_TYPE
from api.shapes import ReadyView

router = APIRouter(tags=["operation"])


@router.get("/healthz", summary="Alive", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def alive() -> Response:
    """The process runs."""
    return Response("ok\n", media_type="text/plain")


@router.get(
    "/readyz",
    summary="Ready",
    response_model=ReadyView,
    responses={503: {"model": ReadyView, "description": "Something is missing; `missing` names it."}},
)
async def ready(the: TheService) -> Response:
    """Able to serve everything; otherwise what is missing."""
    missing = list(the.health.missing)
    return answer(ReadyView(status="not_ready" if missing else "ready", missing=missing), 503 if missing else 200)


@router.get("/metrics", summary="Metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(the: TheService) -> Response:
    """For Prometheus."""
    return Response(the.metrics.page(), media_type=CONTENT_TYPE)
