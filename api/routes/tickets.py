"""Tickets: a URL that opens one stream without a key."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import TicketBody, read
from api.context import TheCaller, TheService, answer, own
from api.openapi import body_of, problems
from api.shapes import TicketView, timestamp
from api.tickets import Ticket, written

router = APIRouter(prefix="/v1/tickets", tags=["messages"])


@router.post(
    "",
    status_code=201,
    summary="Open a stream without a key",
    response_model=TicketView,
    openapi_extra=body_of(TicketBody),
    responses=problems(400, 401, 404, 408, 413, 415, 503),
)
async def issue(request: Request, the: TheService, caller: TheCaller) -> Response:
    """For a browser's EventSource, which cannot send a header. The ticket opens this one stream for some minutes."""
    body = await read(request, TicketBody)
    stream = own(the, caller, body.id, "reply or conversation", "rep", "conv")
    expires_at_ms = the.now_ms() + the.ticket_ms
    if caller.until_ms is not None:
        expires_at_ms = min(expires_at_ms, caller.until_ms)
    content = Ticket(caller.account_id, caller.key_id, stream.id, expires_at_ms, caller.user_id)
    ticket = written(content, the.ids.secret)
    kind = "messages" if stream.kind == "rep" else "conversations"
    url = f"/v1/{kind}/{stream.id}/events?ticket={ticket}"
    return answer(TicketView(ticket=ticket, events_url=url, expires_at=timestamp(expires_at_ms)), 201)
