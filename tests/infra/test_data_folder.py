"""What the data folder keeps, and who holds it."""

import stat
from pathlib import Path

import pytest

from infra.data_folder import DataFolder
from infra.errors import DataFolderUnusable
from schemas.ids import key_hash


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    return folder


def test_secret_and_demo_key_are_made_once_and_are_private(folder: DataFolder) -> None:
    assert folder.secret() == folder.secret()
    assert folder.demo(1) == folder.demo(2)
    for name in ("secret", "demo.json"):
        assert stat.S_IMODE((folder.path / name).stat().st_mode) == 0o600


def test_the_demo_key_is_long_and_known_by_its_hash(folder: DataFolder) -> None:
    demo = folder.demo(1)
    assert demo.account_id == "demo"
    assert len(demo.key) >= 32
    assert key_hash(demo.key) not in demo.key


def test_a_folder_is_held_by_one_at_a_time(folder: DataFolder) -> None:
    with folder.in_use():
        assert folder.supervisor_pid() is not None
        with pytest.raises(DataFolderUnusable, match="already running"), folder.in_use():
            pass
    assert folder.supervisor_pid() is None
    with folder.in_use():
        pass


def test_ports_are_remembered_and_broken_memory_is_no_failure(folder: DataFolder) -> None:
    assert folder.remembered_ports() == {}
    folder.remember_ports({"kafka": 1})
    folder.remember_ports({"redis": 2})
    assert folder.remembered_ports() == {"kafka": 1, "redis": 2}
    (folder.path / "ports.json").write_text("[")
    assert folder.remembered_ports() == {}


def test_a_log_that_has_grown_too_long_keeps_one_generation(folder: DataFolder) -> None:
    log = folder.log("kafka")
    with log.open("ab", buffering=0) as part:
        part.write(b"old " * 10)
        folder.trim_logs(limit_bytes=20)
        part.write(b"new")
    assert log.read_bytes() == b"new"
    assert log.with_name("kafka.log.1").read_bytes() == b"old " * 10


def test_a_folder_below_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFolderUnusable, match="--data"):
        DataFolder(tmp_path / "file" / "data").prepare()


def test_a_folder_is_new_until_a_stack_has_run_on_it(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    assert folder.is_new()
    folder.prepare()
    with folder.in_use():
        assert not folder.is_new()
    assert not folder.is_new()
    (tmp_path / "file").write_text("")
    assert not DataFolder(tmp_path / "file").is_new()
