"""What a reader outside of groups promises, on each log."""

import time

from log.places import Place, fill

from streams.log.log import BEGINNING, END, since
from streams.log.steps import Partition

ZERO = Partition("messages", 0)


def _read(reader, count: int) -> list[int]:
    found = []
    deadline = time.monotonic() + 20
    while len(found) < count and time.monotonic() < deadline:
        found.extend(record.offset for record in reader.poll(0.1))
    return found


def test_a_reader_from_the_end_sees_all_that_is_written_after_it_was_made(place: Place) -> None:
    fill(place.log, range(10), partition=0)
    reader = place.log.reader([ZERO], END)
    fill(place.log, range(5), partition=0)
    assert _read(reader, 5) == [10, 11, 12, 13, 14]
    assert reader.positions() == {ZERO: 15}
    reader.close()


def test_a_reader_can_go_back(place: Place) -> None:
    fill(place.log, range(10), partition=0)
    reader = place.log.reader([ZERO, Partition("messages", 1)], BEGINNING)
    assert _read(reader, 10) == list(range(10))
    reader.seek({ZERO: 7})
    assert _read(reader, 3) == [7, 8, 9]
    reader.close()


def test_a_reader_begins_at_a_time(place: Place) -> None:
    fill(place.log, range(5), partition=0)
    (*_, last) = place.records("messages")
    while time.time_ns() // 1_000_000 <= last.timestamp_ms:
        pass
    fill(place.log, range(5), partition=0)
    reader = place.log.reader([ZERO, Partition("messages", 1)], since(last.timestamp_ms + 1))
    assert _read(reader, 5) == [5, 6, 7, 8, 9]
    reader.close()


def test_ends_are_those_of_now(place: Place) -> None:
    reader = place.log.reader([ZERO], BEGINNING)
    assert reader.ends() == {ZERO: 0}
    fill(place.log, range(3), partition=0)
    assert reader.ends() == {ZERO: 3}
    reader.close()
