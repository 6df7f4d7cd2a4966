"""The flow clock."""

from hypothesis import given
from hypothesis import strategies as st

from streams.log.flow import SETTLE_MS, TURN_MAX_MS, Flow, advance

TURNS = st.lists(st.tuples(st.integers(-100_000, 1_000_000), st.booleans()))


def _run(turns: list[tuple[int, bool]]) -> list[Flow]:
    flow, now, seen = Flow(), 0, []
    for passed, reachable in turns:
        now += passed
        flow = advance(flow, now, reachable=reachable)
        seen.append(flow)
    return seen


def test_it_follows_the_wall_clock_while_all_is_well() -> None:
    assert _run([(0, True), (100, True), (100, True)])[-1].flow_ms == 200


def test_a_loop_that_was_stopped_adds_half_a_second_at_most() -> None:
    assert _run([(0, True), (20_000, True)])[-1].flow_ms == TURN_MAX_MS


def test_it_stands_while_the_log_is_away_and_for_a_settle_time_after() -> None:
    away = _run([(0, True), (100, True), *[(100, False)] * 300, *[(100, True)] * (SETTLE_MS // 100)])
    assert away[-1].flow_ms == 100
    assert advance(away[-1], away[-1].last_ms + 100, reachable=True).flow_ms == 200


@given(TURNS)
def test_it_never_goes_back_and_never_runs_faster_than_its_turns(turns: list[tuple[int, bool]]) -> None:
    before = 0
    for flow, (_, reachable) in zip(_run(turns), turns, strict=True):
        assert 0 <= flow.flow_ms - before <= (TURN_MAX_MS if reachable else 0)
        before = flow.flow_ms
