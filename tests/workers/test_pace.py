"""Bursts: none waits when idle; none waits longer than the maximum."""

from hypothesis import given
from hypothesis import strategies as st

from inference_workers.pace import WINDOW_S_MAX, Pace, window_s


def test_an_idle_worker_waits_for_no_company() -> None:
    assert window_s(0) == 0.0
    assert window_s(499) == 0.0


@given(st.floats(min_value=0, max_value=1e9))
def test_the_window_never_exceeds_its_maximum(pieces_per_s: float) -> None:
    assert 0.0 <= window_s(pieces_per_s) <= WINDOW_S_MAX


def test_the_window_follows_the_load_and_goes_back() -> None:
    pace = Pace(0.0)
    for n in range(1, 101):
        pace.left(100, n * 0.01)
    assert pace.window_s == WINDOW_S_MAX
    pace.left(1, 2.0)
    assert pace.window_s == 0.0
