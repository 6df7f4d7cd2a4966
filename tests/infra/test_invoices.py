"""Bills on real servers: the fold of the log, the view and the command line say the same."""

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from deployment import Deployment
from msgspec.structs import replace

from infra.errors import StackError
from infra.invoices import close
from infra.usage_log import UsageLog
from schemas import events as e
from tests.infra.usage import Usage, accounts_of, turnlog, used

pytestmark = pytest.mark.servers

NOW_MS = 1_796_000_000_000  # 2026-11-30
BILL = (
    "SELECT description, usage_period, records, toString(amount) FROM invoice_lines "
    "WHERE account_id = %(a)s ORDER BY period, line"
)


@pytest.fixture
def usage(provisioned: Deployment) -> Usage:
    return Usage(provisioned)


def shown(usage: Usage, period: str, account: str = "demo") -> list[tuple[str, str, int, str]]:
    bill = turnlog(usage.deployment, "invoices", "show", account, period, "--json")
    return [(line["description"], line["usage_period"], line["records"], line["amount"]) for line in bill["lines"]]


def test_a_closed_month_stays_as_it_is_and_what_is_late_is_on_the_next_bill(usage: Usage) -> None:
    usage.append(used(1, day="2026-09-05"), used(1, day="2026-09-05"), used(2, day="2026-09-30", cost="0.2"))
    first = turnlog(usage.deployment, "invoices", "close", "2026-09", "--json")
    assert [(bill["account_id"], bill["period"], bill["totals"]) for bill in first["closed"]] == [
        ("demo", "2026-09", [{"currency": "USD", "amount": "0.3"}])
    ]
    again = turnlog(usage.deployment, "invoices", "close", "2026-09", "--json")
    assert again["closed"] == []
    usage.append(used(3, day="2026-09-30", cost="0.7"), used(2, day="2026-09-30", cost="0.1", revision=2))
    usage.append(used(1, day="2026-09-05"), used(4, day="2026-10-01", cost="1"))
    assert shown(usage, "2026-09") == [("usage", "2026-09", 2, "0.3")]
    assert shown(usage, "2026-10") == [("usage", "2026-10", 1, "1"), ("late", "2026-09", 1, "0.6")]
    late = turnlog(usage.deployment, "invoices", "late", "--json")["late"]
    assert [(one["reply_id"], one["revision"], one["amount"], one["bill"]) for one in late] == [
        ("rep_000002", 2, "-0.1", None),
        ("rep_000003", 1, "0.7", None),
    ]
    turnlog(usage.deployment, "invoices", "close", "2026-10", "--account", "demo", "--json")
    assert {one["bill"] for one in turnlog(usage.deployment, "invoices", "late", "--json")["late"]} == {"2026-10"}
    usage.project()
    usage.project()
    assert usage.database().query(BILL, {"a": "demo"}) == [
        ("usage", "2026-09", 2, "0.3"),
        ("usage", "2026-10", 1, "1"),
        ("late", "2026-09", 1, "0.6"),
    ]
    bills = usage.database().query("SELECT sum(amount), toInt64(sum(records)) FROM invoice_lines")
    records = usage.database().query("SELECT sum(cost), toInt64(sum(records)) FROM billing")
    assert bills == records == [(Decimal("1.9"), 4)]


def test_all_accounts_are_closed_each_once_also_by_two_at_a_time(usage: Usage) -> None:
    usage.append(*accounts_of([used(n, day=f"2026-{n % 2 + 9:02d}-05") for n in range(60)], 12))

    def run(_: int) -> int:
        with UsageLog(usage.deployment.kafka_bootstrap, usage.deployment.namespace) as log:
            return len(close(log, "2026-10", NOW_MS).bills)

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(run, range(3))) >= 12
    usage.project()
    found = usage.database().query("SELECT account_id, sum(amount) FROM invoice_lines GROUP BY ALL ORDER BY ALL")
    assert found == usage.database().query("SELECT account_id, sum(cost) FROM billing GROUP BY ALL ORDER BY ALL")
    assert len(found) == 12
    assert run(0) == 0


def test_a_record_that_comes_while_a_month_is_closed_is_on_exactly_one_bill(usage: Usage) -> None:
    usage.append(used(1))

    class Meanwhile(UsageLog):
        def append(self, events: list[e.Event]) -> None:  # type: ignore[override]
            usage.append(used(2 if isinstance(events[0], e.PeriodEnded) else 3)) if events else None
            super().append(events)

    with Meanwhile(usage.deployment.kafka_bootstrap, usage.deployment.namespace) as log:
        [done] = close(log, "2026-10", NOW_MS).bills
    assert done.bill.totals == {"USD": Decimal("0.2")}
    assert shown(usage, "2026-10") == [("usage", "2026-10", 2, "0.2")]
    assert shown(usage, "2026-11") == [("late", "2026-10", 1, "0.1")]


KILLED = """
import os, signal, sys
from infra.invoices import close
from infra.usage_log import UsageLog
bootstrap, namespace, point = sys.argv[1:]
class Dying(UsageLog):
    calls = 0
    def append(self, events):
        Dying.calls += 1
        if Dying.calls == int(point):
            os.kill(os.getpid(), signal.SIGKILL)
        super().append(events[:1] if Dying.calls + 1 == int(point) else events)
with Dying(bootstrap, namespace) as log:
    close(log, "2026-10", 1_796_000_000_000)
"""


def test_a_closing_that_is_killed_is_finished_by_the_next_and_nothing_is_billed_twice(usage: Usage) -> None:
    usage.append(*accounts_of([used(n) for n in range(24)], 8))
    for point in range(1, 9):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, usage.deployment.kafka_bootstrap, usage.deployment.namespace, str(point)],
            check=False,
            env=dict(os.environ),
            timeout=60,
        )
        assert done.returncode in (0, -signal.SIGKILL)
        usage.append(*accounts_of([used(100 + point * 8 + n) for n in range(8)], 8))
    turnlog(usage.deployment, "invoices", "close", "2026-10")
    turnlog(usage.deployment, "invoices", "close", "2026-10")
    for account in (f"acc-{n}" for n in range(8)):
        with UsageLog(usage.deployment.kafka_bootstrap, usage.deployment.namespace) as log:
            folded = log.read(log.partitions(account)[0], account)
            folded.close()
            ledger = folded.ledgers[account]
        bills = (*ledger.bills(), *ledger.open_bills("2026-11"))
        assert sum(bill.totals["USD"] for bill in bills) == Decimal("1.1")
        assert [bill.status for bill in ledger.bills()] == ["closed"]


def test_a_bill_that_was_said_twice_counts_as_it_was_said_first(usage: Usage) -> None:
    usage.append(used(1), used(2, model="large"))
    turnlog(usage.deployment, "invoices", "close", "2026-10")
    [said] = [one.envelope.event for one in usage.events() if isinstance(one.envelope.event, e.PeriodClosed)]
    more = replace(said, lines=(*said.lines, *said.lines))
    usage.append(more, replace(said, lines=said.lines[:1]))
    usage.project()
    assert len(usage.database().query(BILL, {"a": "demo"})) == 2
    assert len(shown(usage, "2026-10")) == 2


def test_the_running_month_and_what_is_none_are_refused(usage: Usage) -> None:
    usage.append(used(1))
    with UsageLog(usage.deployment.kafka_bootstrap, usage.deployment.namespace) as log:
        for period in ("2026-11", "2026-12"):
            with pytest.raises(StackError, match="is not over"):
                close(log, period, NOW_MS)
        assert close(log, "2026-10", NOW_MS).bills
    for period in ("2026-13", "October", ""):
        assert "is no period" in turnlog(usage.deployment, "invoices", "close", period, code=1)
    assert 'There is no account "nobody"' in turnlog(usage.deployment, "invoices", "show", "nobody", "2026-10", code=1)


def test_a_correction_is_a_record_once_and_stands_on_the_bill(usage: Usage) -> None:
    usage.append(used(1, cost="0.5"))
    arguments = ("usage", "adjust", "demo", "rep_000001", "--reason", "It was empty.", "--id", "ticket-7", "--json")
    first = turnlog(usage.deployment, *arguments, "--amount", "-0.2")
    assert (first["new"], first["usage_day"], first["currency"]) == (True, "2026-10-05", "USD")
    assert turnlog(usage.deployment, *arguments, "--amount", "-0.20")["new"] is False
    assert "another correction" in turnlog(usage.deployment, *arguments, "--amount", "-0.3", code=1)
    for amount in ("0", "much", "NaN"):
        assert "--amount must be" in turnlog(usage.deployment, *arguments, "--amount", amount, code=1)
    missing = ("usage", "adjust", "demo", "rep_none", "--reason", "x", "--amount", "1")
    assert "no usage record" in turnlog(usage.deployment, *missing, code=1)
    assert shown(usage, "2026-10") == [("usage", "2026-10", 1, "0.5"), ("It was empty.", "2026-10", 1, "-0.2")]
    usage.project()
    assert usage.database().query("SELECT sum(cost) FROM billing") == [(Decimal("0.3"),)]


def cut(usage: Usage, period_of: Callable[[e.Event], bool]) -> None:
    """Retention takes what stands in the log up to the last event that is told."""
    admin = AdminClient({"bootstrap.servers": usage.deployment.kafka_bootstrap})
    ends: dict[int, int] = {}
    for one in usage.events():
        if period_of(one.envelope.event):
            ends[one.record.partition] = one.record.offset + 1
    topic = usage.deployment.topic("usage")
    places = [TopicPartition(topic, number, offset) for number, offset in ends.items()]
    for done in admin.delete_records(places).values():
        done.result(30)


def in_view(usage: Usage, period: str) -> list[tuple[str, int, str]]:
    statement = (
        "SELECT description, toInt64(records), toString(amount) FROM invoice_lines "
        "WHERE account_id = 'demo' AND period = %(p)s ORDER BY line"
    )
    return usage.database().query(statement, {"p": period})


def test_a_month_that_the_log_has_lost_is_shown_from_the_view(usage: Usage) -> None:
    usage.append(used(1, day="2026-08-05"), used(2, day="2026-08-06", cost="0.2"))
    turnlog(usage.deployment, "invoices", "close", "2026-08")
    usage.append(used(3, day="2026-09-05", cost="0.3"))
    usage.append(used(4, day="2026-09-06", cost="0.4"))
    usage.project()
    before = {period: shown(usage, period) for period in ("2026-08", "2026-09")}
    assert in_view(usage, "2026-08") == [("usage", 2, "0.3")]
    # The close of August is gone too, and half of September, which is open.
    cut(usage, lambda event: getattr(event, "reply_id", "") == "rep_000003" or isinstance(event, e.PeriodClosed))
    assert {period: shown(usage, period) for period in before} == before
    said = turnlog(usage.deployment, "invoices", "show", "demo", "2026-08")
    assert "From ClickHouse: the log reaches back to 20" in said
    assert "demo, 2026-08, closed" in said
    nowhere = turnlog(usage.deployment, "invoices", "show", "demo", "2026-07", code=1)
    assert 'The account "demo" has no bill of 2026-07 in ClickHouse, and the log reaches back to 20' in nowhere
    away = without_clickhouse(usage)
    usage.append(used(5, day="2126-01-01", cost="0.5"))
    assert turnlog(away, "invoices", "show", "demo", "2126-01", "--json")["totals"][0]["amount"] == "0.5"
    for period in before:
        said = turnlog(away, "invoices", "show", "demo", period, code=1)
        assert f"the bill of {period} is in ClickHouse (the view invoice_lines, GET /v1/invoices/{period})" in said


def test_a_month_that_is_closed_in_the_log_needs_no_clickhouse(usage: Usage) -> None:
    usage.append(used(1, day="2026-08-05"))
    turnlog(usage.deployment, "invoices", "close", "2026-08")
    cut(usage, lambda event: isinstance(event, e.UsageRecorded))
    bill = turnlog(without_clickhouse(usage), "invoices", "show", "demo", "2026-08", "--json")
    assert (bill["status"], bill["totals"]) == ("closed", [{"currency": "USD", "amount": "0.1"}])


def test_an_account_that_used_nothing_is_told_so_also_when_clickhouse_is_away(usage: Usage) -> None:
    usage.append(used(1))
    for deployment in (usage.deployment, without_clickhouse(usage)):
        said = turnlog(deployment, "invoices", "show", "demo", "2026-07", code=1)
        assert "There is no account" in said or "has used nothing in 2026-07" in said


def without_clickhouse(usage: Usage) -> Deployment:
    """The deployment, its ClickHouse away."""
    mine = usage.deployment
    return dataclasses.replace(mine, servers=dataclasses.replace(mine.servers, clickhouse_url="http://127.0.0.1:1"))
