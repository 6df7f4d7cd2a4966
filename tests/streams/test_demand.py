"""Demand: windows, forecast, and what is said when."""

from hypothesis import given
from hypothesis import strategies as st

from schemas.values import Usage
from streams.demand.emitter import Emitter
from streams.demand.forecast import Expected, Smoothing, forecast, observe
from streams.demand.windows import Window, after, last_closed
from tests.streams.events import admitted, finished, leased

PLAIN = Smoothing(headroom=1.0)


def counted(*events: object) -> Window:
    window: Window | None = None
    for event in events:
        window = after(window, event, "paid")  # type: ignore[arg-type]
    assert window is not None
    return window


def test_a_window_counts_per_tier() -> None:
    usage = Usage(input_tokens=1, output_tokens=7)
    window = counted(
        admitted(1, prompt_tokens_estimate=5),
        admitted(2, tier="paid", prompt_tokens_estimate=6),
        finished(1, usage=usage, queued_ms=10),
        finished(2, usage=usage, queued_ms=30),
    )
    assert (window.demand("free").arrivals, window.demand("free").input_tokens) == (1, 5)
    paid = window.demand("paid")
    assert (paid.arrivals, paid.input_tokens, paid.output_tokens, paid.queue_ms_mean) == (1, 6, 14, 20.0)


def test_what_is_handed_back_did_not_finish() -> None:
    assert counted(finished(1, returned=True, status=None)) == Window()


def test_a_finish_of_an_unknown_tier_is_not_counted() -> None:
    assert after(None, finished(1), None) == Window()


def test_no_traffic_is_zero_demand_and_no_news_is_none() -> None:
    emitter = Emitter(10_000, PLAIN)
    windows = {("default", 10_000): counted(leased()), ("default", 30_000): counted(admitted(1))}
    emitter.hear("default", 10_000)

    def read(pool: str, start_ms: int) -> Window | None:
        return windows.get((pool, start_ms))

    assert [(said.tier, said.arrivals) for said in emitter.say(10_000, read)] == [("free", 0), ("paid", 0)]
    assert emitter.say(10_000, read) == []
    assert emitter.say(20_000, read) == []
    assert [(said.tier, said.arrivals) for said in emitter.say(30_000, read)] == [("free", 1), ("paid", 0)]


def test_windows_that_were_missed_are_said_in_order_but_no_old_ones() -> None:
    emitter = Emitter(10, PLAIN)
    emitter.hear("default", 0)
    said = emitter.say(100, lambda _, __: counted(leased()))
    assert [one.window_start_ms for one in said if one.tier == "free"] == [80, 90, 100]


def test_only_windows_that_are_over_are_closed() -> None:
    assert last_closed(29_999, 10_000, 0) == 10_000
    assert last_closed(31_999, 10_000, 2_000) == 10_000
    assert last_closed(32_000, 10_000, 2_000) == 20_000


def test_a_steady_rise_is_foreseen() -> None:
    expected: Expected | None = None
    for value in range(0, 400, 10):
        expected = observe(expected, value, PLAIN)
    assert expected is not None
    assert abs(forecast(expected, PLAIN) - 400) < 5


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_a_forecast_is_never_negative(values: list[float]) -> None:
    expected: Expected | None = None
    for value in values:
        expected = observe(expected, value, Smoothing())
        assert forecast(expected, Smoothing()) >= 0


@given(st.floats(0, 1e6), st.integers(1, 50))
def test_a_constant_demand_is_foreseen_with_headroom(value: float, times: int) -> None:
    expected: Expected | None = None
    for _ in range(times):
        expected = observe(expected, value, Smoothing())
    assert expected is not None
    assert abs(forecast(expected, Smoothing()) - value * 1.25) <= 1e-6 * max(1.0, value)
