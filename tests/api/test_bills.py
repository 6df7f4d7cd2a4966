"""Bills, corrections and prices, through the API."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deployment import Deployment
from msgspec.structs import replace

from api.app import create_app
from api.bills import bills_of
from api.clickhouse_views import ClickHouseViews
from api.memory_views import MemoryViews
from api.metrics import Metrics
from schemas import events as e
from schemas.invoice import Ledger
from schemas.models import SMOLLM2
from schemas.prices import PriceEntry
from tests.api.world import ALICE, BOB, OPERATOR, Answer, Process, World
from tests.infra.usage import Usage, used

ADJUSTMENTS = "/v1/admin/accounts/alice/adjustments"
MONTH = "2026-11"  # the world's


def mine(n: int, **members: Any) -> e.UsageRecorded:
    return replace(used(n, **members), account_id="alice")


def closing(world: World, *events: e.Event, period: str = "2026-10") -> None:
    """These come, and the month is closed."""
    ledger = Ledger()
    for event in (*events, e.PeriodEnded(account_id="alice", period=period, ended_at_ms=1)):
        ledger.apply(event)
        world.views.write(0, event)
    lines = ledger.bills()[-1].lines
    world.views.write(0, e.PeriodClosed(account_id="alice", period=period, lines=lines, closed_at_ms=1_790_000_000_123))


async def lines(api: Process, period: str, key: str = ALICE) -> list[tuple[str, str, int, str]]:
    bill = (await api.call("GET", f"/v1/invoices/{period}", key=key)).json
    assert Decimal(bill["totals"][0]["amount"]) == sum(Decimal(line["amount"]) for line in bill["lines"])
    return [(line["description"], line["usage_period"], line["records"], line["amount"]) for line in bill["lines"]]


async def test_a_closed_bill_stays_and_what_is_late_is_on_the_open_one(world: World, api: Process) -> None:
    closing(world, mine(1), mine(2, cost="0.2"))
    world.views.write(0, mine(3, cost="0.7"))
    world.views.write(0, mine(4, day=f"{MONTH}-02", cost="1"))
    listed = (await api.call("GET", "/v1/invoices")).json["data"]
    assert listed == [
        {"period": MONTH, "status": "open", "closed_at": None, "totals": [{"currency": "USD", "amount": "1.7"}]},
        {
            "period": "2026-10",
            "status": "closed",
            "closed_at": "2026-09-21T14:13:20.123Z",
            "totals": [{"currency": "USD", "amount": "0.3"}],
        },
    ]
    assert await lines(api, "2026-10") == [("usage", "2026-10", 2, "0.3")]
    assert await lines(api, MONTH) == [("usage", MONTH, 1, "1"), ("late", "2026-10", 1, "0.7")]


async def test_a_month_without_a_bill_is_absent_for_everybody_alike(world: World, api: Process) -> None:
    closing(world, mine(1))
    theirs = await api.call("GET", "/v1/invoices/2026-10", key=BOB)
    nobodys = await api.call("GET", "/v1/invoices/2001-01", key=BOB)
    assert (theirs.status, theirs.json["code"]) == (nobodys.status, nobodys.json["code"]) == (404, "not_found")
    assert theirs.json["detail"] == nobodys.json["detail"]
    assert (await api.call("GET", "/v1/invoices", key=BOB)).json == {"data": []}
    assert (await api.call("GET", "/v1/invoices", key=None)).status == 401


@pytest.mark.parametrize("period", ["2026-13", "2026-1", "x", "2026-10-01", "2026-00"])
async def test_what_is_no_month_is_named(api: Process, period: str) -> None:
    answer = await api.call("GET", f"/v1/invoices/{period}")
    assert (answer.status, answer.json["errors"][0]["field"]) == (400, "period")


async def test_without_the_views_bills_and_charges_say_so(world: World, api: Process) -> None:
    world.views.down = True
    for answer in (
        await api.call("GET", "/v1/invoices"),
        await api.call("GET", "/v1/invoices/2026-10"),
        await adjust(api),
    ):
        assert (answer.status, answer.json["code"]) == (503, "clickhouse_unavailable")


async def adjust(api: Process, key: str = OPERATOR, **body: Any) -> Answer:
    made = {"id": "ticket-7", "reply_id": "rep_000001", "amount": "-0.05", "reason": "It was empty."} | body
    return await api.call("POST", ADJUSTMENTS, key=key, body=made)


async def test_a_correction_is_a_record_in_the_log_once(world: World, api: Process) -> None:
    world.views.write(0, mine(1))
    made = await adjust(api)
    assert made.status == 201
    assert made.json | {"adjusted_at": ""} == {
        "id": "ticket-7",
        "account_id": "alice",
        "reply_id": "rep_000001",
        "usage_day": "2026-10-05",
        "amount": "-0.05",
        "currency": "USD",
        "reason": "It was empty.",
        "adjusted_at": "",
    }
    [event] = [event for event in world.events("usage") if isinstance(event, e.UsageAdjusted)]
    assert (event.account_id, event.identity(), event.cost) == ("alice", "rep_000001/adjustment-ticket-7/1", "-0.05")
    world.views.write(0, event)
    assert (await adjust(api, amount="-0.050")).status == 200
    conflict = await adjust(api, amount="-0.06")
    assert (conflict.status, conflict.json["code"]) == (409, "adjustment_conflict")
    assert len(world.events("usage")) == 1
    assert (await adjust(api, id=None)).json["id"] != (await adjust(api, id=None)).json["id"]
    assert await lines(api, "2026-10") == [("usage", "2026-10", 1, "0.1"), ("It was empty.", "2026-10", 1, "-0.05")]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("amount", "0"),
        ("amount", "much"),
        ("amount", ""),
        ("amount", 5),
        ("amount", "0.0000000000001"),
        ("reason", ""),
        ("reason", "late"),
        ("reason", "x" * 201),
        ("id", "a/b"),
        ("id", "x" * 65),
        ("reply_id", ""),
        ("reply", "rep"),
    ],
)
async def test_a_correction_that_says_nothing_clear_is_refused_by_its_field(
    world: World, api: Process, field: str, value: object
) -> None:
    world.views.write(0, mine(1))
    answer = await adjust(api, **{field: value})
    assert (answer.status, answer.json["errors"][0]["field"]) == (400, field)
    assert world.events("usage") == []


async def test_what_was_not_charged_to_the_account_is_not_corrected(world: World, api: Process) -> None:
    world.views.write(0, replace(mine(1), account_id="bob"))
    assert (await adjust(api)).status == 404
    assert (await api.call("POST", ADJUSTMENTS.replace("alice", "nobody"), key=OPERATOR, body={})).status == 404
    for key in (ALICE, "wrong"):
        assert (await adjust(api, key=key)).status == 401


async def test_models_show_the_price_that_holds_now_for_the_callers_tier(world: World) -> None:
    api = world.process()
    entries = (
        PriceEntry(
            version="old",
            model=SMOLLM2.name,
            valid_from=datetime(2026, 1, 1, tzinfo=UTC),
            input=Decimal(1),
            output=Decimal(2),
        ),
        PriceEntry(
            version="paid",
            model=SMOLLM2.name,
            tier="paid",
            valid_from=datetime(2026, 1, 1, tzinfo=UTC),
            input=Decimal("0.5"),
            cached_input=Decimal(0),
            output=Decimal("1E+1"),
        ),
        PriceEntry(
            version="next",
            model=SMOLLM2.name,
            valid_from=datetime(2027, 1, 1, tzinfo=UTC),
            input=Decimal(9),
            output=Decimal(9),
        ),
    )
    names = {name: getattr(api.service, name) for name in api.service.__slots__ if name != "prices"}
    api.app._app = create_app(type(api.service)(**names, prices=entries))
    [paid] = (await api.call("GET", "/v1/models", key=ALICE)).json["data"]
    [free] = (await api.call("GET", "/v1/models", key=BOB)).json["data"]
    assert paid["price"] == {
        "version": "paid",
        "currency": "USD",
        "input": "0.5",
        "cached_input": "0",
        "cache_write": "0.625",
        "cache_write_long": "1.0",
        "output": "10",
    }
    assert (free["price"]["version"], free["price"]["cached_input"]) == ("old", "0.1")


# --- the real views and those in memory ----------------------------------------------------------------------------


@pytest.fixture
def usage(provisioned: Deployment) -> Usage:
    return Usage(provisioned)


@pytest.mark.servers
async def test_fold_memory_and_clickhouse_have_the_same_bills(usage: Usage, tmp_path: Path) -> None:
    history: list[e.Event] = [
        used(1),
        used(1, cost="7", model="other"),
        used(2, cost="0.2", charged=False, status="failed"),
        used(3, kind="attempt-1", cost="0", charged=False),
        used(4, model="large", tier="free", cost="123456789.000000000001"),
        used(5, currency="EUR", cache_write_long_input_tokens=11),
        e.UsageAdjusted(
            account_id="demo",
            reply_id="rep_000001",
            record_kind="adjustment-1",
            revision=1,
            usage_day="2026-10-05",
            cost="-0.05",
            currency="USD",
            reason="late",
            adjusted_at_ms=1,
        ),
        e.PeriodEnded(account_id="demo", period="2026-10", ended_at_ms=1),
    ]
    ledger = Ledger()
    for event in history:
        ledger.apply(event)
    [bill] = ledger.bills()
    more: list[e.Event] = [
        e.PeriodClosed(account_id="demo", period="2026-10", lines=bill.lines, closed_at_ms=1_790_000_000_123),
        used(4, model="large", tier="free", cost="1", revision=2),
        used(1, model="large", revision=2),
        used(6),
        used(7, day="2026-11-03"),
        replace(used(8), account_id="other"),
    ]
    memory = MemoryViews()
    for event in (*history, *more):
        memory.write(0, event)
        if getattr(event, "account_id", "") == "demo":
            ledger.apply(event)
    usage.append(*history, *more)
    usage.project()
    usage.project()
    real = ClickHouseViews(usage.deployment.clickhouse_url, usage.deployment.database, Metrics())
    expected = (*ledger.bills(), *ledger.open_bills("2026-11"))
    assert await bills_of(memory, "demo", "2026-11") == expected
    assert await bills_of(real, "demo", "2026-11") == expected
    assert await bills_of(real, "nobody", "2026-11") == ()
    found = {row["record_kind"]: row for row in await real.records_of("demo", "rep_000001")}
    assert sorted(found) == ["adjustment-1", "reply"]
    assert Decimal(found["adjustment-1"]["cost"]) == Decimal("-0.05")
    await real.close()
