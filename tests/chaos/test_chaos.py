"""A short run of kills on the real stack; `make chaos` is the long one."""

import pytest

from tests.chaos.run import Plan, run, save

KILLS = 10
EVERY_S = 5.0

pytestmark = [pytest.mark.system, pytest.mark.kills, pytest.mark.timeout(900)]


def test_no_promise_is_broken_by_random_kills(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("chaos")
    result = run(Plan(folder / "data", KILLS, seed=11, every_s=EVERY_S), print)
    assert not result.report.broken, f"{result.report.broken[:5]}, {save(result, folder)}"
    assert result.report.streams > 0
