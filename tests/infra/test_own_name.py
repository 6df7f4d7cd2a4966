"""The command that is shown works as typed."""

from pathlib import Path

import pytest

from infra.own_name import called, chat_command

HERE = Path("/home/me/turnlog")
SCRIPT = HERE / ".venv" / "bin" / "turnlog"


def test_below_the_current_folder_it_is_a_path_whatever_the_path_variable_says() -> None:
    assert called(SCRIPT, HERE, SCRIPT) == ".venv/bin/turnlog"
    assert called(SCRIPT, HERE, None) == ".venv/bin/turnlog"


def test_elsewhere_it_is_the_name_only_where_that_is_found() -> None:
    assert called(SCRIPT, Path("/tmp"), SCRIPT) == "turnlog"
    assert called(SCRIPT, Path("/tmp"), None) == str(SCRIPT)
    assert called(SCRIPT, Path("/tmp"), Path("/usr/bin/turnlog")) == str(SCRIPT)


def test_a_chat_names_the_data_folder_where_it_is_not_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert chat_command(Path(".turnlog")).endswith("turnlog chat")
    assert chat_command(tmp_path / "other").endswith(f"chat --data {tmp_path / 'other'}")
