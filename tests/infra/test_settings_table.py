"""docs/settings.md is what the code says."""

from pathlib import Path

from infra.settings_table import document, main
from schemas.models import Model, Price

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_of_settings_is_written_from_the_code() -> None:
    assert main([str(DOCS), "--check"]) == 0


def test_every_setting_stands_on_the_page_once_under_its_process() -> None:
    rows = [line for line in document().splitlines() if line.startswith("| `TURNLOG_")]
    assert len(rows) > 60
    assert "| `TURNLOG_SECRET` | required |" in document()


def test_every_member_of_a_model_and_of_a_price_stands_on_the_page() -> None:
    page = document()
    for cls in (Model, Price):
        assert all(f"| `{name}` | " in page for name in cls.__struct_fields__)
    assert "| `smaller` | text | null | `null` | The model that takes over" not in page  # a bar inside a cell
    assert "| `smaller` | text or null | `null` | The model that takes over" in page


def test_a_default_that_is_made_is_no_word_of_the_library() -> None:
    assert "Pydantic" not in document()


def test_a_stale_page_is_found(tmp_path: Path) -> None:
    assert main([str(tmp_path), "--check"]) == 1
    assert main([str(tmp_path)]) == 0
    assert main([str(tmp_path), "--check"]) == 0
