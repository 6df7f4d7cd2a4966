"""When there are too many dead letters."""

import pytest

from streams.log.deadletters import JUDGED_FROM, WINDOW, Window
from streams.log.steps import TooManyDead


def test_a_few_dead_among_many_are_given_up() -> None:
    window = Window()
    for _ in range(100):
        window.add(9, 1)


def test_the_first_few_records_are_not_judged() -> None:
    Window().add(0, JUDGED_FROM - 1)


def test_a_window_of_mostly_dead_records_stops() -> None:
    window = Window()
    window.add(WINDOW, 0)
    window.add(0, WINDOW // 2)
    with pytest.raises(TooManyDead):
        window.add(0, 1)
