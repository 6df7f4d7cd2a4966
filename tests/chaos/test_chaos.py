"""Short runs of kills on the real stack; `make chaos` is the long one."""

import pytest

from tests.chaos.run import Plan, of_workers, run, save

KILLS = 10
EVERY_S = 5.0
WORKERS_WITHIN_S = 30.0

pytestmark = [pytest.mark.system, pytest.mark.kills, pytest.mark.timeout(900)]


def test_no_promise_is_broken_by_random_kills(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("chaos")
    result = run(Plan(folder / "data", KILLS, seed=11, every_s=EVERY_S), print)
    assert not result.report.broken, f"{result.report.broken[:5]}, {save(result, folder)}"
    assert result.report.streams > 0


def test_every_reply_ends_and_every_lost_attempt_is_told_alike_when_workers_are_killed_stopped_drained_and_silenced(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("chaos")
    plan = Plan(folder / "data", None, seed=18, within_s=WORKERS_WITHIN_S, every_s=EVERY_S, workers=3)
    result = run(of_workers(plan), print)
    assert not result.report.broken, f"{result.report.broken[:5]}, {save(result, folder)}"
    assert {strike.how for strike in result.strikes} == {"killed", "stopped", "drained", "silenced"}
    assert any(reply.message["resets"] for reply in result.report.replies)
