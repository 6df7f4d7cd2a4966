"""However the billing projection is killed, at every read its tables are the fold of the log up to what it told."""

import pytest

from tests.money.__main__ import play
from tests.money.world import World

SEEDS = 28
PER_TEST = 7
KILLS = 1_000


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_bills_are_the_fold_of_the_log_whatever_is_killed(first):
    kills = 0
    for seed in range(first, first + PER_TEST):
        try:
            kills += play(seed).kills
        except AssertionError as error:
            raise AssertionError(f"python -m tests.money {seed} --trace: {error}") from error
    assert kills * SEEDS / PER_TEST > KILLS


def test_a_kill_at_each_touch_of_log_and_tables_changes_nothing():
    whole = World(1, kill_at=0)
    whole.run()
    assert (whole.kills, whole.touches > 40) == (0, True)
    for touch in range(1, whole.touches + 1):
        world = World(1, kill_at=touch)
        world.run()
        assert world.kills == 1, touch


def test_a_seed_gives_one_history():
    def history():
        world = play(3)
        records = [(r.partition, r.offset, r.key, r.timestamp_ms) for r in world.log.records("usage")]
        return world.kills, world.reads, world.touches, records, world.tables.progress

    assert history() == history()
