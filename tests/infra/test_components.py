"""Components: locks, checks, the cache, the sentences when something is missing."""

import base64
import errno
import hashlib
import threading
from pathlib import Path

import pytest

from infra import cache, clickhouse_library, kafka_jars
from infra.cache import MARKER, explain_os_error, obtain, verify
from infra.errors import ComponentUnavailable
from infra.java import major_version
from infra.model import require_system_library


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNLOG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_lock_of_kafka_names_every_jar_once_with_a_whole_hash() -> None:
    jars = kafka_jars.read_lock()
    assert len({(jar.group, jar.artifact) for jar in jars}) == len(jars) == 45
    assert all(len(jar.sha256) == 64 for jar in jars)
    assert {jar.version for jar in jars if jar.group == "org.apache.kafka"} == {kafka_jars.VERSION}


def test_the_locks_hold_no_addresses() -> None:
    folder = Path(kafka_jars.__file__).parent / "locks"
    root = folder.parents[1]
    for path in [*folder.glob("*.lock"), *root.glob("*.lock")]:
        assert "://" not in path.read_text(), path


def test_the_lock_of_clickhouse_is_an_npm_integrity() -> None:
    package = clickhouse_library.read_lock()
    assert package.integrity.startswith("sha512-")
    assert len(bytes.fromhex(package.sha512_hex)) == 64
    assert base64.b64encode(bytes.fromhex(package.sha512_hex)).decode() == package.integrity.removeprefix("sha512-")


def test_a_component_is_filled_once_and_then_found() -> None:
    calls: list[Path] = []
    for _ in range(2):
        folder = obtain("thing-1", calls.append, needs_bytes=1)
    assert calls == [folder]
    assert (folder / MARKER).exists()


def test_a_component_that_failed_half_way_is_not_taken_for_complete() -> None:
    def break_off(folder: Path) -> None:
        (folder / "first").write_text("kept")
        raise ComponentUnavailable("the network is gone")

    with pytest.raises(ComponentUnavailable, match="network"):
        obtain("thing-2", break_off, needs_bytes=1)
    seen: list[bool] = []
    obtain("thing-2", lambda folder: seen.append((folder / "first").exists()), needs_bytes=1)
    assert seen == [True], "what had come is still there"


def test_two_who_want_one_component_at_once_fill_it_once() -> None:
    calls: list[int] = []
    entered = threading.Barrier(2, timeout=10)

    def want() -> None:
        entered.wait()
        obtain("thing-3", lambda _: calls.append(1), needs_bytes=1)

    threads = [threading.Thread(target=want) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]


def test_a_broken_download_is_removed_and_named(tmp_path: Path) -> None:
    jar = tmp_path / "kafka-clients-4.2.2.jar"
    jar.write_bytes(b"half of it")
    with pytest.raises(ComponentUnavailable, match=r"kafka-clients-4\.2\.2\.jar is broken.*run the command again"):
        verify(jar, "sha256", hashlib.sha256(b"all of it").hexdigest())
    assert not jar.exists()


def test_too_little_disk_is_one_sentence() -> None:
    with pytest.raises(ComponentUnavailable, match="MB of disk, but only"):
        obtain("thing-4", lambda _: None, needs_bytes=10**18)


def test_a_cache_folder_that_is_a_file_is_one_sentence(cache_folder: Path) -> None:
    cache_folder.write_text("in the way")
    with pytest.raises(ComponentUnavailable, match="TURNLOG_CACHE"):
        obtain("thing-5", lambda _: None, needs_bytes=1)


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EACCES, "cannot be written"), (errno.EIO, "used")]
)
def test_a_failed_file_operation_says_what_to_do(number: int, words: str) -> None:
    sentence = explain_os_error(OSError(number, "why"), Path("/some/where"), "TURNLOG_CACHE")
    assert words in sentence
    assert "TURNLOG_CACHE" in sentence


def test_a_missing_system_library_says_how_to_install_it() -> None:
    with pytest.raises(ComponentUnavailable, match="apt-get install libgomp1"):
        require_system_library("libnot-there.so.1", "libgomp1 (Debian, Ubuntu)")


def test_npm_says_its_reason_in_one_line() -> None:
    assert clickhouse_library.npm_reason('{"error": {"summary": "not found\\nmore"}}', "") == "not found"
    assert clickhouse_library.npm_reason("", "npm error code ENOTFOUND\nnpm error x") == "code ENOTFOUND"


@pytest.mark.parametrize(
    ("text", "major"),
    [('openjdk version "17.0.15" 2025', 17), ('java version "1.8.0_292"', 8), ('openjdk version "25"', 25), ("", None)],
)
def test_the_version_of_java_is_read_from_its_own_words(text: str, major: int | None) -> None:
    assert major_version(text) == major


def test_a_download_that_differs_from_the_lock_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way: jgo's fetch is replaced by one that delivers other bytes than the lock says."""
    (jar, *_) = kafka_jars.read_lock()
    wrong = tmp_path / "wrong.jar"
    wrong.write_bytes(b"not the jar")
    monkeypatch.setattr(kafka_jars, "read_lock", lambda: (jar,))
    monkeypatch.setattr(kafka_jars, "_fetcher", lambda *_: lambda _: wrong)
    with pytest.raises(ComponentUnavailable, match="broken"):
        kafka_jars.class_path(lambda _: None)
    assert not cache.is_complete(kafka_jars.component_name((jar,)))
