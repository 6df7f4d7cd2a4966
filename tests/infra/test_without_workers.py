"""What `turnlog up --workers 0` says about sends."""

import pytest

from infra.stack import without_workers


@pytest.mark.parametrize("chosen", [None, "queue"])
def test_where_sends_wait_it_says_so(monkeypatch: pytest.MonkeyPatch, chosen: str | None) -> None:
    monkeypatch.delenv("TURNLOG_NO_WORKER", raising=False)
    if chosen is not None:
        monkeypatch.setenv("TURNLOG_NO_WORKER", chosen)
    assert without_workers() == "No worker runs (--workers 0): replies wait until one does."


def test_where_sends_are_refused_it_says_so_and_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_NO_WORKER", "refuse")
    said = without_workers()
    assert "refused" in said
    assert "TURNLOG_NO_WORKER=refuse" in said
    assert "replies wait until" not in said
