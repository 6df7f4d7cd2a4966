"""The operator's calls about money: corrections of what was charged."""

import uuid
from decimal import Decimal
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.admin_bodies import AdjustmentBody
from api.admin_shapes import AdjustmentView
from api.bodies import read
from api.context import AsOperator, TheService, TheTrail, answer
from api.openapi import body_of, problems
from api.problems import Problem, bad_request, not_found, unavailable
from api.routes.admin import AccountId, the_account
from api.shapes import timestamp
from api.stores import StoreDown
from schemas.events import UsageAdjusted
from schemas.invoice import adjustment, adjustment_kind

router = APIRouter(prefix="/v1/admin/accounts", tags=["admin"], dependencies=[AsOperator])


@router.post(
    "/{account_id}/adjustments",
    status_code=201,
    summary="Correct a charge",
    response_model=AdjustmentView,
    openapi_extra=body_of(AdjustmentBody),
    responses={
        200: {"model": AdjustmentView, "description": "It was made before, just so."},
        **problems(400, 401, 404, 408, 409, 413, 415, 503),
    },
)
async def adjust(account_id: AccountId, request: Request, the: TheService, trail: TheTrail) -> Response:
    """A record of its own in the log, of the day of the reply's own record; on the bill under its reason."""
    the_account(the, account_id)
    body = await read(request, AdjustmentBody)
    try:
        records = await the.views.records_of(account_id, body.reply_id)
    except StoreDown as down:
        raise unavailable("clickhouse", "The charge is read from ClickHouse, which does not answer.") from down
    charge = next((record for record in records if record["record_kind"] == "reply"), None)
    if charge is None:
        raise not_found("charged reply")
    event = _adjustment(account_id, body, charge, the.now_ms())
    before = next((record for record in records if record["record_kind"] == event.record_kind), None)
    if before is not None:
        if (Decimal(before["cost"]), before["reason"]) != (Decimal(event.cost), event.reason):
            raise Problem(
                409, "adjustment_conflict", "Conflict", "This id was used for another correction of the reply."
            )
        return answer(_view(event), 200)
    await the.changes.record([event], trail.traceparent)
    return answer(_view(event), 201)


def _adjustment(account_id: str, body: AdjustmentBody, charge: dict[str, Any], now_ms: int) -> UsageAdjusted:
    try:
        return adjustment(
            account_id=account_id,
            reply_id=body.reply_id,
            usage_day=charge["usage_day"],
            currency=charge["currency"],
            adjustment_id=body.id if body.id is not None else uuid.uuid4().hex,
            amount=body.amount,
            reason=body.reason,
            now_ms=now_ms,
        )
    except ValueError as wrong:
        raise bad_request([(str(wrong.args[0]), str(wrong.args[1]))]) from wrong


def _view(event: UsageAdjusted) -> AdjustmentView:
    return AdjustmentView(
        id=event.record_kind.removeprefix(adjustment_kind("")),
        account_id=event.account_id,
        reply_id=event.reply_id,
        usage_day=event.usage_day,
        amount=event.cost,
        currency=event.currency,
        reason=event.reason,
        adjusted_at=timestamp(event.adjusted_at_ms),
    )
