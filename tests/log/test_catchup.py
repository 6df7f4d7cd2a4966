"""Reading up to an end that does not come nearer."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from streams.log.catchup import read_all
from streams.log.log import Log
from streams.log.steps import LogError, Partition, Record

STATE = Partition("pools", 3)


class Stuck:
    """A log, and its reader, whose last records are in a transaction that nobody ends."""

    def reader(self, *_: Any) -> "Stuck":
        return self

    def ends(self) -> Mapping[Partition, int]:
        return {STATE: 298}

    def positions(self) -> Mapping[Partition, int]:
        return {STATE: 296}

    def poll(self, _: float) -> Sequence[Record]:
        return []

    def close(self) -> None:
        pass


def test_where_reading_gets_no_further_it_is_said_where(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(LogError, match="could not be read"):
        read_all(cast("Log", Stuck()), [STATE], timeout_s=0.01, still_s=0.0)
    assert "pools[3] at 296 of 298" in caplog.text


def test_nothing_is_said_of_a_moment(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(LogError):
        read_all(cast("Log", Stuck()), [STATE], timeout_s=0.01)
    assert not caplog.records
