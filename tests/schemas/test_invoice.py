"""The fold of an account's usage to its bills."""

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas import events as e
from schemas.examples import EXAMPLES
from schemas.invoice import (
    Bill,
    Ledger,
    Sums,
    add,
    adjustment,
    amount_of,
    held_of,
    lines_of,
    next_period,
    open_bills,
    sums_of,
    unbilled,
)

ACCOUNT = "demo"


def used(
    n: int = 1, day: str = "2026-10-05", cost: str = "0.1", revision: int = 1, kind: str = "reply", **members: object
) -> e.UsageRecorded:
    example = EXAMPLES[e.UsageRecorded]
    assert isinstance(example, e.UsageRecorded)
    names = {"reply_id": f"rep_{n}", "usage_day": day, "cost": cost, "revision": revision, "record_kind": kind}
    return replace(example, **{**names, **members})  # type: ignore[arg-type]


def corrected(
    n: int = 1, day: str = "2026-10-05", cost: str = "-0.05", reason: str = "It was empty."
) -> e.UsageAdjusted:
    return adjustment(
        account_id=ACCOUNT,
        reply_id=f"rep_{n}",
        usage_day=day,
        currency="USD",
        adjustment_id="1",
        amount=cost,
        reason=reason,
        now_ms=1,
    )


def ended(period: str) -> e.PeriodEnded:
    return e.PeriodEnded(account_id=ACCOUNT, period=period, ended_at_ms=1)


def closed(bill: Bill) -> e.PeriodClosed:
    return e.PeriodClosed(account_id=ACCOUNT, period=bill.period, lines=bill.lines, closed_at_ms=2)


def folded(*events: e.Event) -> Ledger:
    ledger = Ledger()
    for event in events:
        ledger.apply(event)
    return ledger


def amounts(bill: Bill | None) -> list[tuple[str, str, int, str]]:
    assert bill is not None
    return [(line.description, line.usage_period, line.records, line.amount) for line in bill.lines]


def test_a_bill_has_a_line_for_each_month_model_tier_price_and_currency() -> None:
    ledger = folded(used(1), used(2, cost="0.2"), used(3, model="large"), used(4, currency="EUR"), ended("2026-10"))
    bill = ledger.bill("2026-10", "2026-11")
    assert bill is not None
    assert [(line.model, line.currency, line.records, line.amount) for line in bill.lines] == [
        ("smollm2-135m-instruct", "EUR", 1, "0.1"),
        ("large", "USD", 1, "0.1"),
        ("smollm2-135m-instruct", "USD", 2, "0.3"),
    ]
    assert bill.totals == {"EUR": Decimal("0.1"), "USD": Decimal("0.4")}


def test_a_record_that_comes_again_changes_nothing() -> None:
    once = folded(used(1), ended("2026-10")).bill("2026-10", "2026-11")
    again = folded(used(1), used(1, cost="9"), ended("2026-10"), used(1), ended("2026-10"))
    assert again.bill("2026-10", "2026-11") == once
    assert again.open_bills("2026-11") == ()
    assert again.late() == ()


def test_the_highest_revision_counts_in_any_order_of_arrival() -> None:
    for events in ([used(cost="1"), used(cost="2", revision=2)], [used(cost="2", revision=2), used(cost="1")]):
        assert amounts(folded(*events, ended("2026-10")).bill("2026-10", "2026-11")) == [("usage", "2026-10", 1, "2")]


def test_what_comes_behind_the_cut_is_late_on_the_next_bill_and_listed() -> None:
    ledger = folded(used(1), ended("2026-10"), used(2, cost="0.7"), used(3, day="2026-11-02"), ended("2026-11"))
    assert amounts(ledger.bill("2026-10", "2026-12")) == [("usage", "2026-10", 1, "0.1")]
    assert amounts(ledger.bill("2026-11", "2026-12")) == [("usage", "2026-11", 1, "0.1"), ("late", "2026-10", 1, "0.7")]
    [late] = ledger.late()
    assert (late.reply_id, late.amount, late.bill) == ("rep_2", Decimal("0.7"), "2026-11")


def test_a_late_revision_counts_with_its_difference_and_what_it_moves_is_taken_away_where_it_was() -> None:
    ledger = folded(used(cost="0.5"), ended("2026-10"), used(cost="0.2", revision=2))
    assert amounts(ledger.bill("2026-11", "2026-11")) == [("late", "2026-10", 0, "-0.3")]
    moved = folded(used(cost="0.5"), ended("2026-10"), used(cost="0.5", revision=2, model="large"))
    bill = moved.bill("2026-11", "2026-11")
    assert bill is not None
    assert [(line.model, line.records, line.amount) for line in bill.lines] == [
        ("large", 1, "0.5"),
        ("smollm2-135m-instruct", -1, "-0.5"),
    ]
    assert bill.totals == {"USD": Decimal(0)}


def test_what_was_not_charged_stands_by_itself_and_its_tokens_explain_no_amount() -> None:
    ledger = folded(used(1), used(2, cost="0", charged=False, status="failed"), ended("2026-10"))
    assert amounts(ledger.bill("2026-10", "2026-11")) == [
        ("usage", "2026-10", 1, "0.1"),
        ("not charged", "2026-10", 1, "0"),
    ]


def test_a_correction_stands_under_its_reason_on_the_bill_that_is_still_open() -> None:
    early = folded(used(1), corrected(), ended("2026-10"))
    assert amounts(early.bill("2026-10", "2026-11")) == [
        ("usage", "2026-10", 1, "0.1"),
        ("It was empty.", "2026-10", 1, "-0.05"),
    ]
    late = folded(used(1), ended("2026-10"), corrected(), corrected())
    assert amounts(late.bill("2026-11", "2026-11")) == [("It was empty.", "2026-10", 1, "-0.05")]


def test_an_open_bill_is_as_it_would_be_now_and_late_records_stand_on_the_first_one_alone() -> None:
    ledger = folded(used(1), ended("2026-10"), used(2), used(3, day="2026-11-02"), used(4, day="2026-12-02"))
    first, second = ledger.open_bills("2026-12")
    assert (first.period, first.status) == ("2026-11", "open")
    assert [line.description for line in first.lines] == ["usage", "late"]
    assert [line.description for line in second.lines] == ["usage"]
    assert ledger.bill("2026-09", "2026-12") is None


def test_months_that_are_due_are_all_that_are_open_up_to_the_one_that_is_asked_for() -> None:
    ledger = folded(used(1, day="2026-08-01"), used(2, day="2026-10-01"), used(3, day="2026-11-01"))
    assert ledger.due("2026-10") == ("2026-08", "2026-10")
    ledger = folded(used(1), ended("2026-10"))
    assert ledger.due("2026-10") == ledger.due("2026-11") == ()
    ledger.apply(used(2))
    assert ledger.due("2026-10") == ()
    assert ledger.due("2026-11") == ("2026-11",)


def test_an_earlier_month_is_not_cut_after_a_later_one() -> None:
    ledger = folded(used(1, day="2026-09-01"), used(2), ended("2026-10"), ended("2026-09"), used(3, day="2026-09-02"))
    assert [bill.period for bill in ledger.bills()] == ["2026-10"]
    assert amounts(ledger.bill("2026-10", "2026-11")) == [
        ("usage", "2026-09", 1, "0.1"),
        ("usage", "2026-10", 1, "0.1"),
    ]
    assert ledger.due("2026-09") == ()


def test_what_was_said_is_the_bill_and_the_first_one_counts() -> None:
    ledger = folded(used(1), ended("2026-10"))
    said = closed(ledger.bills()[0])
    other = replace(said, lines=(), closed_at_ms=9)
    ledger.apply(said)
    ledger.apply(other)
    [bill] = ledger.bills()
    assert (bill.status, bill.closed_at_ms, bill.lines) == ("closed", 2, said.lines)


def test_a_bill_without_a_cut_before_it_is_one() -> None:
    said = e.PeriodClosed(account_id=ACCOUNT, period="2026-10", lines=(), closed_at_ms=2)
    ledger = folded(used(1), said, used(2))
    assert ledger.closed_through == "2026-10"
    assert [late.reply_id for late in ledger.late()] == ["rep_2"]


@pytest.mark.parametrize(
    "event",
    [
        used(day="2026-02-30"),
        used(day="2026-1-1"),
        used(day="1969-12-31"),
        used(day="2149-01-01"),
        used(cost="NaN"),
        used(cost="1e26"),
        used(cost="0.0000000000001"),
        used(cost="x"),
        used(output_tokens=-1),
        used(output_tokens=2**63),
        used(revision=-1),
        used(revision=2**20),
    ],
)
def test_what_the_views_cannot_hold_is_on_no_bill(event: e.UsageRecorded) -> None:
    assert held_of(event) is None
    assert folded(event, ended("2026-10")).bills()[0].lines == ()


@pytest.mark.parametrize("cost", ["99999999999999999999999999", "0.000000000001", "-1", "0", "1E+2"])
def test_amounts_that_the_views_hold_are_exact(cost: str) -> None:
    assert amount_of(cost) == Decimal(cost)
    [bill] = folded(used(1, cost=cost), used(2, cost="0.000000000001"), ended("2026-10")).bills()
    assert sum(map(Fraction, bill.totals.values())) == Fraction(cost) + Fraction("0.000000000001")


@pytest.mark.parametrize("period", ["", "2026", "2026-13", "2026-00", "x", "2026-10-01"])
def test_a_cut_of_no_month_has_no_effect(period: str) -> None:
    ledger = folded(used(1), ended(period), e.PeriodClosed(account_id=ACCOUNT, period=period, lines=(), closed_at_ms=1))
    assert ledger.bills() == ()


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"adjustment_id": ""}, "id"),
        ({"adjustment_id": "a" * 65}, "id"),
        ({"adjustment_id": "a/b"}, "id"),
        ({"amount": "0"}, "amount"),
        ({"amount": "x"}, "amount"),
        ({"amount": "0.0000000000001"}, "amount"),
        ({"reason": " "}, "reason"),
        ({"reason": "late"}, "reason"),
        ({"reason": "a" * 201}, "reason"),
        ({"reason": "two\nlines"}, "reason"),
    ],
)
def test_a_correction_that_says_nothing_clear_is_refused(members: dict[str, str], field: str) -> None:
    given_ = {
        "account_id": ACCOUNT,
        "reply_id": "rep_1",
        "usage_day": "2026-10-05",
        "currency": "USD",
        "adjustment_id": "a" * 64,
        "amount": "-0.05",
        "reason": "a" * 200,
    }
    adjustment(**given_, now_ms=1)
    with pytest.raises(ValueError, match="must") as refused:
        adjustment(**{**given_, **members}, now_ms=1)
    assert refused.value.args[0] == field


def test_december_is_followed_by_january() -> None:
    assert [next_period("2026-11"), next_period("2026-12")] == ["2026-12", "2027-01"]


PERIODS = ("2026-09", "2026-10", "2026-11", "2026-12")
RECORDS = st.builds(
    used,
    st.integers(1, 4),
    st.sampled_from([f"{period}-0{day}" for period in PERIODS for day in (1, 2)]),
    st.sampled_from(["0", "0.1", "0.000000000001", "123456789.5"]),
    st.integers(1, 3),
    model=st.sampled_from(["small", "large"]),
    charged=st.booleans(),
)
HISTORIES = st.lists(
    st.one_of(
        RECORDS, RECORDS, RECORDS, st.builds(ended, st.sampled_from(PERIODS)), st.builds(corrected, st.integers(1, 2))
    ),
    max_size=30,
)


def in_all(history: Sequence[e.Event]) -> Sums:
    """What all records are, by a fold of its own."""
    kept: dict[tuple[str, str, str], e.UsageRecorded | e.UsageAdjusted] = {}
    for event in history:
        if isinstance(event, e.UsageRecorded | e.UsageAdjusted):
            key = (event.usage_day, event.reply_id, event.record_kind)
            if key not in kept or kept[key].revision < event.revision:
                kept[key] = event
    sums: Sums = {}
    for event in kept.values():
        held = held_of(event)
        assert held is not None
        add(sums, held.heading, held.amounts)
    return sums


@given(HISTORIES)
def test_whatever_the_order_of_closes_and_arrivals_every_record_is_on_exactly_one_bill(history: list[e.Event]) -> None:
    ledger = folded(*history)
    bills = (*ledger.bills(), *ledger.open_bills("2026-12"))
    assert len({bill.period for bill in bills}) == len(bills)
    together = sums_of(line for bill in bills for line in bill.lines)
    everything = {heading: amounts for heading, amounts in in_all(history).items() if any(amounts)}
    assert {heading: amounts for heading, amounts in together.items() if any(amounts)} == everything


@given(HISTORIES)
def test_bills_that_are_cut_never_change(history: list[e.Event]) -> None:
    ledger = Ledger()
    seen: dict[str, Bill] = {}
    for event in history:
        ledger.apply(event)
        for bill in ledger.bills():
            assert seen.setdefault(bill.period, bill) == bill


@given(HISTORIES)
def test_the_views_alone_give_the_same_open_bills(history: list[e.Event]) -> None:
    ledger = folded(*history)
    changes = unbilled(in_all(history), (line for bill in ledger.bills() for line in bill.lines))
    assert open_bills(changes, ledger.closed_through, "2026-12") == ledger.open_bills("2026-12")


@given(HISTORIES, st.data())
def test_a_history_that_comes_again_behind_itself_changes_nothing(history: list[e.Event], data: st.DataObject) -> None:
    again = data.draw(st.permutations(history))
    once, twice = folded(*history), folded(*history, *(one for one in again if not isinstance(one, e.PeriodEnded)))
    assert twice.bills() == once.bills()
    assert twice.open_bills("2026-12") == once.open_bills("2026-12")


def test_lines_that_add_up_to_nothing_are_none() -> None:
    sums: Sums = {}
    held = held_of(used())
    assert held is not None
    add(sums, held.heading, held.amounts)
    add(sums, held.heading, held.amounts, -1)
    assert lines_of(sums, "") == ()
