"""A short run of kills on the real stack; `python -m tests.money.kills --kills 100` is the long one."""

import pytest

from tests.money.kills import run

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]


def test_the_billing_view_is_the_log_whatever_is_killed(servers, tmp_path):
    done = run(servers.kafka_bootstrap, tmp_path, kills=8, seed=7)
    assert done["kills"] >= 8
    assert done["reads"] > 8
    assert done["records"] > 100
    assert min(done["restarts of ClickHouse"], done["flushes"], done["replays"]) > 0
