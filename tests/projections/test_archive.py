"""An archive of a topic: every byte of every record, in files that say what they hold; gaps and damage are named."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projections.archive import export as exporting
from projections.archive.export import export
from projections.archive.files import ArchiveBroken, keep, pieces
from projections.archive.history import History, Missing
from projections.archive.parquet import packed, unpacked
from projections.clickhouse.client import Database
from streams.log.log import BEGINNING
from streams.log.memory import MemoryLog
from streams.log.steps import Partition, Record

pytestmark = pytest.mark.servers

USAGE = Partition("usage", 0)


@pytest.fixture(scope="module")
def database(servers):
    """Any database will do: nothing is stored in it."""
    made = Database(servers.clickhouse_url, "system")
    yield made
    made.close()


@pytest.fixture
def log():
    """An empty log with one partition."""
    return MemoryLog({"usage": 1}, real_time=False)


def write(log, count):
    writer = log.writer("test")
    for number in range(count):
        writer.append_record("usage", f"k{number}", b"\x00\xff%d" % number, [("a", b"\xfe"), ("a", None)], partition=0)


def plain(record):
    """A record, its headers as a tuple."""
    return (record.offset, record.key, record.value, tuple(record.headers), record.timestamp_ms)


def read(log, archive, database, first=0):
    history = History(log, [USAGE], archive, database)
    ends = history.ends()
    return [record for records, _ in history.read({USAGE: first}, ends) for record in records]


RECORDS = st.lists(
    st.tuples(
        st.none() | st.text(max_size=9),
        st.none() | st.binary(max_size=40),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3),
        st.integers(0, 2**53),
    ),
    max_size=6,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RECORDS)
def test_records_come_back_byte_for_byte(database, tmp_path, given_records):
    records = [Record("usage", 0, 7 + 2 * n, *one[:3], one[3]) for n, one in enumerate(given_records)]
    piece = keep(tmp_path, USAGE, 7, 100, packed(database, records))
    assert list(map(plain, unpacked(database, piece, "usage", 0))) == list(map(plain, records))


def test_it_goes_on_where_it_ended_and_files_follow_each_other(log, database, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "RECORDS_MAX", 4)
    write(log, 10)
    assert export(log, "usage", tmp_path, database).records == 10
    assert [(p.first, p.next) for p in pieces(tmp_path, USAGE)] == [(0, 4), (4, 8), (8, 10)]
    assert export(log, "usage", tmp_path, database).files == 0
    write(log, 3)
    assert export(log, "usage", tmp_path, database).records == 3
    assert pieces(tmp_path, USAGE)[-1].next == 13


class Full(Exception):
    """Of the test: the process is killed."""


def test_killed_within_a_file_it_writes_that_file_again(log, database, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "RECORDS_MAX", 4)
    write(log, 10)
    whole = exporting.keep

    def killed(archive, partition, first, following, content):
        if first == 4:
            folder = archive / "usage" / "00000"
            (folder / "00000000000000000004-00000000000000000008.unfinished").write_bytes(content[:50])
            raise Full
        return whole(archive, partition, first, following, content)

    monkeypatch.setattr(exporting, "keep", killed)
    with pytest.raises(Full):
        export(log, "usage", tmp_path, database)
    assert pieces(tmp_path, USAGE)[-1].next == 4
    monkeypatch.setattr(exporting, "keep", whole)
    assert export(log, "usage", tmp_path, database).records == 6
    log.cut(USAGE, 10)
    assert [record.offset for record in read(log, tmp_path, database)] == list(range(10))


def test_the_seam_has_no_gap_and_no_record_twice(log, database, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "RECORDS_MAX", 4)
    write(log, 10)
    whole = list(map(plain, log.records("usage")))
    export(log, "usage", tmp_path, database)
    write(log, 5)
    for begin in range(11):
        log.cut(USAGE, begin)
        for first in (0, 3, 9):
            found = list(map(plain, read(log, tmp_path, database, first)))
            assert [one[0] for one in found] == list(range(first, 15)), (begin, first)
            assert found[: 10 - first] == whole[first:]
    log.cut(USAGE, 12)
    with pytest.raises(Missing, match=r"usage\[0\]: offsets 10 to 11 are not in the log any more, which begins at 12"):
        read(log, tmp_path, database)
    with pytest.raises(Missing, match=r"offsets 0 to 11 .*\(--archive\)"):
        read(log, None, database)
    assert [record.offset for record in read(log, None, database, 12)] == [12, 13, 14]


def test_a_lost_file_a_gap_before_it_and_a_damaged_one_are_named(log, database, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "RECORDS_MAX", 4)
    write(log, 12)
    export(log, "usage", tmp_path, database)
    log.cut(USAGE, 12)
    first, middle, _ = pieces(tmp_path, USAGE)
    kept = middle.path.read_bytes()
    middle.path.unlink()
    with pytest.raises(ArchiveBroken, match="gap of offsets 4 to 7"):
        read(log, tmp_path, database)
    middle.path.write_bytes(first.path.read_bytes())
    with pytest.raises(ArchiveBroken, match=r"usage\[0\]@0 does not belong there"):
        read(log, tmp_path, database)
    middle.path.write_bytes(kept)
    first.path.unlink()
    with pytest.raises(Missing, match="offsets 0 to 3 are not in the log"):
        read(log, tmp_path, database)
    log.store.partition(USAGE).first = 0
    log.cut(USAGE, 2)
    write(log, 1)
    log.cut(USAGE, 13)
    with pytest.raises(Missing, match="12 to 12 were removed from the log before"):
        export(log, "usage", tmp_path, database)


def test_two_at_once_into_one_folder_are_refused(log, database, tmp_path):
    with exporting.alone(tmp_path, "usage"), pytest.raises(ArchiveBroken, match="another process"):
        export(log, "usage", tmp_path, database)


def test_a_log_that_has_lost_its_beginning_is_archived_from_where_it_begins(log, database, tmp_path):
    write(log, 6)
    log.cut(USAGE, 2)
    assert export(log, "usage", tmp_path, database).records == 4
    assert pieces(tmp_path, USAGE)[0].first == 2
    assert log.reader([USAGE], BEGINNING).positions() == {USAGE: 2}


def test_an_archive_is_not_continued_with_a_log_that_was_made_anew(log, database, tmp_path):
    write(log, 20)
    export(log, "usage", tmp_path, database)
    other = MemoryLog({"usage": 1}, real_time=False)
    write(other, 5)
    with pytest.raises(ArchiveBroken, match="up to 19, and the log ends at 5"):
        export(other, "usage", tmp_path, database)
