"""What concerns the caller's account: usage, limits, models."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from api import pages
from api.context import TheCaller, TheService, answer
from api.limits import Looked, unit
from api.limits_spend import Spent, is_capped
from api.openapi import problems
from api.problems import bad_request, unavailable
from api.routes.conversations import Cursor, Limit
from api.sending import allowed
from api.shapes import (
    BucketView,
    LimitsView,
    ModelsView,
    ModelView,
    PriceView,
    UsageRecordPage,
    UsageRecordView,
    UsageTotal,
    UsageTotals,
    timestamp,
)
from api.stores import StoreDown, UsageQuery
from schemas.limits import PAGE_DEFAULT
from schemas.models import Model, Price
from schemas.prices import price_of
from schemas.tiers import RUNNING, Bucket, TierRules, all_buckets

router = APIRouter(prefix="/v1", tags=["account"])

DAYS_DEFAULT = 30

From = Annotated[date | None, Query(alias="from", description="First day, UTC. Absent: 30 days before `to`.")]
To = Annotated[date | None, Query(description="Last day, UTC. Absent: today.")]


@router.get("/usage", summary="Usage totals", response_model=UsageTotals, responses=problems(400, 401, 503))
async def usage(
    the: TheService,
    caller: TheCaller,
    from_: From = None,
    to: To = None,
    group_by: Annotated[Literal["day", "model", "conversation"] | None, Query()] = None,
) -> Response:
    """Sums of the caller's usage records, per group and currency; both days are included."""
    query = _query(from_, to, group_by)
    try:
        rows = await the.views.usage_totals(caller.account_id, query)
    except StoreDown as down:
        raise _usage_away() from down
    totals = [
        UsageTotal(**(row | {"group": row["group"] if group_by else None, "cost": plain(row["cost"])})) for row in rows
    ]
    return answer(UsageTotals(from_day=query.from_day, to_day=query.to_day, group_by=group_by, data=totals))


@router.get(
    "/usage/records", summary="Usage records", response_model=UsageRecordPage, responses=problems(400, 401, 503)
)
async def records(
    the: TheService,
    caller: TheCaller,
    from_: From = None,
    to: To = None,
    limit: Limit = PAGE_DEFAULT,
    cursor: Cursor = None,
) -> Response:
    """The records that make up the totals, each once: by day, message and kind."""
    place = pages.read(cursor, pages.RecordPlace)
    try:
        rows = await the.views.usage_records(caller.account_id, _query(from_, to, None), place, limit + 1)
    except StoreDown as down:
        raise _usage_away() from down
    page = rows[:limit]
    last = page[-1] if len(rows) > limit else None
    after = (last["usage_day"], last["message_id"], last["record_kind"]) if last else None
    return answer(
        UsageRecordPage(data=[_record(row) for row in page], next_cursor=pages.written(after) if after else None)
    )


@router.get("/limits", summary="Limits", response_model=LimitsView, responses=problems(400, 401))
async def limits(the: TheService, caller: TheCaller) -> Response:
    """All limits of the caller: `requests`, `tokens`, `model:…`, `pool:…`, `organisation`, `running`, `spend`."""
    buckets = all_buckets(caller.rules, caller.holder)
    looked: Looked | None = None
    try:
        looked = await the.hot.look(caller.holder, buckets, caller.rules.running_max)
    except StoreDown:
        looked = None  # said by null
    views = [_bucket(bucket, looked, place) for place, bucket in enumerate(buckets)]
    views.append(_running(caller.rules.running_max, looked))
    if is_capped(caller.rules):
        views.append(_spend(caller.rules, await the.spending.spent(caller.account_id)))
    return answer(LimitsView(data=views))


def _bucket(bucket: Bucket, looked: Looked | None, place: int) -> BucketView:
    return BucketView(
        name=bucket.name,
        unit=unit(bucket.name),
        capacity=bucket.capacity,
        available=looked.standing.levels[place].available if looked else None,
        refill_per_s=round(bucket.per_minute / 60, 6),
        reserved=looked.reserved[place] if looked else 0,
    )


def _running(most: int, looked: Looked | None) -> BucketView:
    running = looked.standing.running if looked else 0
    available = max(most - running, 0) if looked else None
    return BucketView(
        name=RUNNING, unit=unit(RUNNING), capacity=most, available=available, refill_per_s=0.0, reserved=running
    )


def _spend(rules: TierRules, spent: Spent | None) -> BucketView:
    cap = rules.spend_hard if rules.spend_hard is not None else rules.spend_soft or Decimal(0)
    available = f"{max(cap - spent.amount, Decimal(0)):f}" if spent else None
    currency = spent.currency if spent and spent.currency else "currency"
    return BucketView(
        name="spend", unit=currency, capacity=f"{cap:f}", available=available, refill_per_s=0.0, reserved=0
    )


@router.get("/models", summary="Models", response_model=ModelsView, responses=problems(400, 401))
async def models(the: TheService, caller: TheCaller) -> Response:
    """What the caller may use, with the price that holds now for its tier; `auto` is the first one."""
    now_ms = the.now_ms()
    mine = allowed(the.models, caller)
    return answer(ModelsView(data=[_model(model, price_of(the.prices, model, caller.tier, now_ms)) for model in mine]))


def plain(number: str) -> str:
    """A decimal number without zeros that say nothing."""
    whole, point, fraction = number.partition(".")
    fraction = fraction.rstrip("0")
    return f"{whole}.{fraction}" if point and fraction else whole


def _query(from_: date | None, to: date | None, group_by: str | None) -> UsageQuery:
    last = to or datetime.now(UTC).date()
    try:
        first = from_ or last - timedelta(days=DAYS_DEFAULT)
    except OverflowError:
        first = date.min
    if first > last:
        raise bad_request([("from", "must not be after to")])
    return UsageQuery(from_day=first.isoformat(), to_day=last.isoformat(), group_by=group_by)


def _record(row: dict[str, Any]) -> UsageRecordView:
    members = {name: value for name, value in row.items() if name != "ended_at_ms"}
    changed = {
        "cost": plain(row["cost"]),
        "counted": bool(row["counted"]),
        "charged": bool(row["charged"]),
        "ended_at": timestamp(row["ended_at_ms"]),
    }
    return UsageRecordView(**(members | changed))


def _model(model: Model, price: Price) -> ModelView:
    return ModelView(
        name=model.name,
        context_tokens=model.context_tokens,
        output_tokens_max=model.output_tokens_max,
        output_tokens_default=model.output_tokens_default,
        price=PriceView(
            version=price.version,
            currency=price.currency,
            input=f"{price.input:f}",
            cached_input=f"{price.cached_input:f}",
            cache_write=f"{price.cache_write:f}",
            cache_write_long=f"{price.long_write:f}",
            output=f"{price.output:f}",
        ),
    )


def _usage_away() -> Exception:
    return unavailable("clickhouse", "Usage is read from ClickHouse, which does not answer.")
