"""What service new requests get under load: degraded in stages, told so, and never those that wait or pay."""

from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.events import (
    Event,
    GenerationAdmitted,
    GenerationEnded,
    GenerationQueued,
    GenerationRequested,
    LoadMeasured,
    NoticeGiven,
)
from schemas.models import Model, Price
from schemas.values import Sampling
from streams.dispatch.limits import Limits
from streams.dispatch.load import HOLD_GUESS_MS, Thresholds
from streams.dispatch.step import Dispatch
from tests.streams.driver import Driver, of
from tests.streams.events import admitted, finished, leased, registered, released

# One worker with one slot: each request ahead of a new one is a wait of 5 s more, until a generation was measured.
EACH_MS = round(HOLD_GUESS_MS)
STEPS = Thresholds(
    shorten_ms=2 * EACH_MS, smaller_ms=3 * EACH_MS, refuse_ms=4 * EACH_MS, notice_ms=10**9, shortened_tokens=16
)
FREE = Decimal(0)
PRICE = Price(version="1", input=FREE, cached_input=FREE, cache_write=FREE, output=FREE)


def model(name: str, **given: Any) -> Model:
    members: dict[str, Any] = {
        "name": name,
        "pool": "default",
        "context_tokens": 8_192,
        "output_tokens_max": 4_096,
        "output_tokens_default": 512,
        "price": PRICE,
    }
    return Model(**(members | given))


BIG, SMALL = model("big", smaller="small"), model("small", context_tokens=1_000, output_tokens_max=500)


def driver(**limits: Any) -> Driver:
    members: dict[str, Any] = {"thresholds": STEPS}
    return Driver(lambda: Dispatch(frozenset({"default"}), Limits(**(members | limits)), (BIG, SMALL)))


def ask(number: int, **given: Any) -> GenerationAdmitted:
    members: dict[str, Any] = {"model": "big", "account_id": f"acc_{number}"}
    return admitted(number, **(members | given))


def loaded(waiting: int, **limits: Any) -> Driver:
    """Its one slot is taken, and so many wait."""
    drive = driver(**limits)
    drive.take(registered(0, model="big", slots=1), ask(1_000))
    drive.take(*(ask(1_001 + n) for n in range(waiting)))
    for seen in (drive.before, drive.outputs, drive.after):
        seen.clear()
    return drive


def told(drive: Driver) -> list[str]:
    return [event.notice.code for event in of(drive.before, NoticeGiven)]


def refused(drive: Driver) -> list[tuple[str, str, int | None]]:
    return [
        (end.reply_id, end.error.code, end.error.retry_after_s) for end in of(drive.after, GenerationEnded) if end.error
    ]


def outputs_of(drive: Driver) -> dict[str, tuple[str, int]]:
    requested = of([output.event for output in drive.outputs], GenerationRequested)
    return {event.reply_id: (event.model, event.sampling.max_output_tokens) for event in requested}


def admit_all(drive: Driver) -> None:
    """All that waits is given a slot of its own."""
    drive.take(registered(9, model="big", slots=50), registered(8, model="small", slots=50))


@pytest.mark.parametrize(("waiting", "tokens", "codes"), [(0, 100, []), (1, 16, ["shortened"])])
def test_under_high_demand_replies_are_shortened_and_their_readers_told(
    waiting: int, tokens: int, codes: list[str]
) -> None:
    drive = loaded(waiting)
    drive.take(ask(1))
    admit_all(drive)
    assert outputs_of(drive)["rep_1"] == ("big", tokens)
    assert told(drive) == codes


def test_a_reply_that_is_short_already_is_left_as_it_is() -> None:
    drive = loaded(1)
    drive.take(ask(1, sampling=Sampling(max_output_tokens=16)))
    assert told(drive) == []


def test_under_higher_demand_the_smaller_model_answers_and_its_stream_says_so() -> None:
    drive = loaded(2)
    drive.take(registered(1, model="small"))
    drive.take(ask(1))
    assert outputs_of(drive)["rep_1"] == ("small", 100)
    assert told(drive) == ["smaller_model"]
    assert of(drive.before, GenerationQueued)[0].model == "small"


@pytest.mark.parametrize(
    ("given", "worker", "goes_to"),
    [
        ({"prompt_tokens_estimate": 899}, True, "small"),
        ({"prompt_tokens_estimate": 900}, True, "small"),
        ({"prompt_tokens_estimate": 901}, True, "big"),
        ({"sampling": Sampling(max_output_tokens=500)}, True, "small"),
        ({"sampling": Sampling(max_output_tokens=501)}, True, "big"),
        ({}, False, "big"),
        ({"model": "small"}, True, "small"),
    ],
)
def test_the_smaller_model_answers_only_what_fits_and_only_where_it_runs(
    given: dict[str, Any], worker: bool, goes_to: str
) -> None:
    drive = loaded(2)
    if worker:
        drive.take(registered(1, model="small"))
    drive.take(ask(1, **given))
    admit_all(drive)
    assert outputs_of(drive)["rep_1"][0] == goes_to


def test_under_the_highest_demand_free_requests_are_refused_with_a_time_to_try_again() -> None:
    drive = loaded(3)
    drive.take(ask(1))
    assert refused(drive) == [("rep_1", "high_demand", 10)]
    assert len(of(drive.before, GenerationQueued)) == 1


def test_where_the_big_model_refuses_the_smaller_one_takes_over_if_it_does_not() -> None:
    drive = loaded(3)
    drive.take(registered(1, model="small"))
    drive.take(ask(1))
    assert outputs_of(drive)["rep_1"][0] == "small"
    assert refused(drive) == []


def test_paid_requests_are_untouched_where_free_ones_are_refused() -> None:
    drive = loaded(6)
    drive.take(ask(1), ask(2, tier="paid"))
    assert [reply_id for reply_id, _, _ in refused(drive)] == ["rep_1"]
    assert told(drive) == []
    assert given_next(drive) == ("rep_2", 100)


def given_next(drive: Driver) -> tuple[str, int]:
    drive.take(finished(1_000))
    [(reply_id, (_, tokens))] = outputs_of(drive).items()
    return reply_id, tokens


def test_paid_requests_pass_the_same_stages_later() -> None:
    patient = Thresholds(shorten_ms=EACH_MS, smaller_ms=2 * EACH_MS, refuse_ms=3 * EACH_MS, paid_patience=2)
    drive = loaded(0, thresholds=patient)
    drive.take(*(ask(n, tier="paid") for n in range(6)))
    assert [reply_id for reply_id, _, _ in refused(drive)] == ["rep_5"]


def test_a_full_cache_shortens_free_requests_and_paid_ones_only_where_free_ones_are_refused() -> None:
    calm = Thresholds(shorten_ms=10**6, smaller_ms=2 * 10**6, refuse_ms=3 * 10**6, shortened_tokens=16, notice_ms=10**9)
    drive = driver(thresholds=calm)
    drive.take(registered(0, model="big", slots=8, kv_tokens=220), ask(1_000), ask(1_001, tier="paid"))
    drive.take(ask(1, tier="paid"), ask(2, tier="paid"))
    assert told(drive) == [], "the second one that pays is as free from it as the first"
    drive.take(ask(3))
    assert told(drive) == ["shortened"]
    refusing = driver(thresholds=replace(calm, shorten_ms=1, smaller_ms=2, refuse_ms=3, paid_patience=10**6))
    refusing.take(registered(0, model="big", slots=2, kv_tokens=220), ask(1_000), ask(1_001, tier="paid"))
    refusing.take(ask(1, tier="paid"), ask(2))
    assert [reply_id for reply_id, _, _ in refused(refusing)] == ["rep_2"]
    assert told(refusing) == []
    refusing.take(ask(3, tier="paid"))
    assert told(refusing) == ["shortened"]


def test_what_waits_already_is_never_degraded() -> None:
    drive = driver()
    drive.take(registered(0, model="big", slots=1), *(ask(n) for n in range(6)))
    admit_all(drive)
    assert refused(drive) == [("rep_4", "high_demand", 10), ("rep_5", "high_demand", 10)]
    assert outputs_of(drive) == {
        "rep_0": ("big", 100),
        "rep_1": ("big", 100),
        "rep_2": ("big", 16),
        "rep_3": ("big", 16),
    }


def test_who_is_to_wait_long_is_told() -> None:
    drive = loaded(0, thresholds=Thresholds(shorten_ms=10**8, smaller_ms=10**8, refuse_ms=10**8, notice_ms=2 * EACH_MS))
    drive.take(ask(1))
    assert told(drive) == []
    drive.take(ask(2))
    assert told(drive) == ["high_demand"]


def test_what_an_account_cannot_run_anyway_is_ahead_of_nobody() -> None:
    drive = driver(running_max_free=1)
    drive.take(registered(0, model="big", slots=3), *(ask(n, account_id="many") for n in range(50)))
    assert list(outputs_of(drive)) == ["rep_0"]
    assert refused(drive) == []
    drive.take(ask(100))
    assert outputs_of(drive)["rep_100"] == ("big", 100)
    assert told(drive) == []


@pytest.mark.parametrize(("waiting", "code"), [(2, None), (3, None), (4, "queue_full")])
def test_one_account_does_not_fill_the_queue_for_everybody_else(waiting: int, code: str | None) -> None:
    drive = driver(account_waiting_max=3, thresholds=Thresholds(enabled=False))
    drive.take(*(ask(n, account_id="many") for n in range(waiting)))
    assert [why for _, why, _ in refused(drive)] == ([code] if code else [])
    drive.take(ask(100))
    assert all(reply_id != "rep_100" for reply_id, _, _ in refused(drive))


@pytest.mark.parametrize(("waiting", "full"), [(2, 0), (3, 0), (4, 1)])
def test_a_queue_is_full_above_its_limit_and_not_at_it(waiting: int, full: int) -> None:
    drive = driver(queue_max=3)
    drive.take(*(ask(n) for n in range(waiting)))
    assert [code for _, code, _ in refused(drive)] == ["queue_full"] * full


# --- without workers -------------------------------------------------------------------------------------------


def without_workers(ms: int, **limits: Any) -> Driver:
    """A model whose only worker has left so long ago."""
    drive = driver(**limits)
    drive.take(registered(0, model="big"))
    drive.take(released(0))
    drive.pass_time(ms)
    return drive


@pytest.mark.parametrize(("ms", "codes"), [(9_500, []), (10_000, ["no_worker"]), (10_500, ["no_worker"])])
def test_a_request_for_a_model_without_workers_waits_and_its_reader_is_told(ms: int, codes: list[str]) -> None:
    drive = without_workers(ms)
    drive.take(ask(1))
    assert (told(drive), refused(drive)) == (codes, [])
    assert list(outputs_of(drive)) == []
    drive.take(registered(1, model="big"))
    assert list(outputs_of(drive)) == ["rep_1"]


@pytest.mark.parametrize(
    ("ms", "tier", "detail"),
    [
        (10_000, "free", "for at least 10 s. The reply waits for one, with at most 5 before it; when is not known."),
        (119_000, "paid", "for at least 119 s. The reply waits for one, with at most 2 before it; when is not known."),
        (150_000, "free", "for at least 2 min. The reply waits for one, with at most 5 before it; when is not known."),
    ],
)
def test_its_reader_is_told_since_when_no_worker_runs_and_how_many_are_before_it(
    ms: int, tier: str, detail: str
) -> None:
    drive = without_workers(0)
    drive.take(*(ask(n) for n in range(10, 13)), *(ask(n, tier="paid") for n in range(20, 22)))
    drive.pass_time(ms)
    drive.take(ask(1, tier=tier))
    assert [e.notice.detail for e in of(drive.before, NoticeGiven)] == [f"No worker of this model has run {detail}"]


def test_the_first_one_that_waits_for_a_worker_is_told_that_it_is_the_next() -> None:
    drive = without_workers(10_000)
    drive.take(ask(1))
    [notice] = [event.notice for event in of(drive.before, NoticeGiven)]
    assert "The reply is the next to get one; when is not known." in notice.detail


@pytest.mark.parametrize(("ms", "codes"), [(9_500, []), (10_000, ["no_worker"])])
def test_or_is_refused_where_that_is_chosen(ms: int, codes: list[str]) -> None:
    drive = without_workers(ms, no_worker="refuse")
    drive.take(ask(1))
    assert [code for _, code, _ in refused(drive)] == codes


def test_a_stage_that_refuses_still_does_while_its_workers_are_only_stale() -> None:
    drive = loaded(3)
    drive.pass_time(2_500)
    drive.take(ask(1))
    assert refused(drive) == [("rep_1", "high_demand", 30)]


@pytest.mark.parametrize(("ms", "codes"), [(1_900, []), (2_000, ["shortened"]), (2_900, ["shortened"])])
def test_workers_that_are_all_stale_refuse_nobody_and_shorten_free_replies_only(ms: int, codes: list[str]) -> None:
    drive = driver(no_worker="refuse")
    drive.take(registered(0, model="big"))
    drive.pass_time(ms, tick_ms=100)
    drive.take(ask(1), ask(2, tier="paid"))
    assert (told(drive), refused(drive)) == (codes, [])
    admit_all(drive)
    assert outputs_of(drive)["rep_2"] == ("big", 100)


def test_one_worker_that_is_known_is_enough_for_full_service() -> None:
    drive = driver()
    drive.take(registered(0, model="big"), registered(1, model="big"))
    drive.pass_time(1_500)
    drive.take(leased(1, epoch=1))
    drive.pass_time(1_000)
    drive.take(ask(1))
    assert told(drive) == []


def test_service_is_full_from_the_first_worker_that_registers_and_again_a_while_after_a_silence() -> None:
    drive = driver()
    seen: list[str] = []

    def at(ms: int, *events: Event) -> None:
        while drive.flow_ms < ms:
            drive.pass_time(100, tick_ms=100)
        before = len(told(drive))
        drive.take(*events, ask(len(seen)))
        seen.append(",".join(told(drive)[before:]))

    at(0)
    at(0, registered(0, model="big", slots=1_000))
    for ms in range(900, 4_500, 900):
        at(ms, leased(0, free_slots=1_000))
    assert set(seen) == {""}
    at(6_000)
    assert seen[-1] == "shortened"
    for ms in (6_100, 7_000, 8_000, 9_000):
        at(ms, leased(0, free_slots=1_000))
        assert seen[-1] == "shortened"
    at(9_200, leased(0, free_slots=1_000))
    assert seen[-1] == ""


# --- what is told ----------------------------------------------------------------------------------------------


def reports(drive: Driver, *events: Event) -> dict[str, LoadMeasured]:
    decision = drive.decide(*events)
    drive.commit(decision)
    return {e.model: e for e in of([output.event for output in decision.reports], LoadMeasured)}


def test_the_load_is_told_when_a_stage_changes_and_every_second_and_also_of_idle_models() -> None:
    drive = loaded(0)
    assert reports(drive, leased(free_slots=0)) == {}
    changed = reports(drive, ask(1), ask(2))
    assert set(changed) == {"big", "small"}
    assert (changed["big"].stage_free, changed["big"].stage_paid, changed["big"].waiting_free) == (
        "smaller_model",
        "full",
        2,
    )
    assert (changed["big"].wait_free_ms, changed["big"].wait_paid_ms) == (3 * EACH_MS, EACH_MS)
    assert (changed["small"].workers, changed["small"].wait_free_ms) == (0, None)
    drive.flow_ms += 999
    assert reports(drive) == {}
    drive.flow_ms += 1
    assert set(reports(drive)) == {"big", "small"}


def test_where_a_stage_refuses_the_time_to_try_again_is_told() -> None:
    drive = loaded(3)
    drive.flow_ms += 1_000
    told_now = reports(drive, ask(1))
    assert told_now["big"].stage_free == "refuse"
    assert told_now["big"].retry_after_s == 10


def test_a_stage_does_not_outlive_the_workers_it_was_about() -> None:
    drive = loaded(3)
    drive.flow_ms += 1_000
    assert reports(drive, ask(1))["big"].stage_free == "refuse"
    drive.take(released())
    drive.pass_time(3_600_000, tick_ms=60_000)
    before = len(of(drive.after, GenerationEnded))
    drive.take(ask(2, deadline_at_ms=drive.now_ms + 900_000))
    assert len(of(drive.after, GenerationEnded)) == before, "it waits for a worker, as was chosen"
    assert drive.before[-1].notice.code == "no_worker"  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", [{"free_slots": 0}, {"draining": True}])
def test_workers_of_which_none_takes_anything_for_long_count_as_none(how: dict[str, Any]) -> None:
    drive = driver(no_worker="refuse", no_worker_ms=10_000)
    drive.take(registered(model="big"))
    for renewal in range(12):
        drive.take(leased(renewal=renewal, **how))
        drive.pass_time(1_000)
    drive.take(leased(renewal=99, **how), ask(1))
    assert [(e.error.code if e.error else "") for e in of(drive.after, GenerationEnded)] == ["no_worker"]
