"""Health fails when records wait and nothing is committed, and not before."""

from streams.log.status import Standstill


def test_records_that_wait_while_nothing_is_committed_are_told_after_its_patience():
    watch = Standstill(60)
    assert watch.seen(5, 1, 100.0) == ""
    assert watch.seen(50, 1, 159.0) == ""
    assert watch.seen(5_000, 1, 161.0) == "5,000 records behind, and nothing was committed for 61 s"
    assert watch.seen(5_000, 2, 162.0) == ""
    assert watch.seen(5_000, 2, 221.0) == ""
    assert watch.seen(5_000, 2, 223.0) != ""


def test_an_idle_one_and_one_that_does_not_know_its_lag_are_well():
    watch = Standstill(60)
    for now_s in range(0, 1_000, 50):
        assert watch.seen(0, 7, now_s) == ""
    assert watch.seen(None, 7, 2_000.0) == ""
    assert watch.seen(3, 7, 2_001.0) == ""
    assert watch.seen(None, 7, 2_070.0) == ""
    assert watch.seen(3, 7, 2_071.0) != ""
