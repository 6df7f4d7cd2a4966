"""The programs of docs/clients.md for other formats, through connections that are cut in the middle of an event."""

from pathlib import Path

import pytest
from system.product import Product

from clients.cable import Cable
from clients.documentation import written
from clients.programs import run_node, run_python

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

LONG = '{"chunks": 100, "every_ms": 20}'
SHORT = '{"chunks": 40, "every_ms": 1}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the programs are."""
    return written(tmp_path)


@pytest.mark.parametrize("lost", [False, True])
def test_anthropic_in_python(
    product: Product, environment: dict[str, str], folder: Path, cable: Cable, lost: bool
) -> None:
    if lost:
        cable.cut_at(b"word20")
    env = environment | {"TURNLOG_URL": cable.url}
    *pieces, message = run_python(folder / "anthropic_messages.py", LONG, env=env)
    stored = product.client().message(message["id"])
    assert (message["stop_reason"], message["text"]) == ("end_turn", stored["text"])
    streamed = "".join(piece["text"] for piece in pieces)
    assert message["text"].startswith(streamed)
    assert (len(streamed) < len(message["text"])) == lost
    assert cable.cuts == lost


@pytest.mark.parametrize("script", [LONG, SHORT])
@pytest.mark.parametrize("version", ["ai", "ai-6"])
def test_the_ai_sdk(
    product: Product, environment: dict[str, str], folder: Path, cable: Cable, version: str, script: str
) -> None:
    program = folder / "ai_sdk.mjs"
    program.write_text(program.read_text(encoding="utf-8").replace("from 'ai'", f"from '{version}'"), encoding="utf-8")
    cable.cut_at(b"word20")
    error, told = run_node(program, script, env=environment | {"TURNLOG_URL": cable.url})
    assert error["error"]
    assert cable.cuts == 1
    stored = product.client().message(told["id"])
    assert (told["status"], told["text"]) == ("completed", stored["text"])
    assert stored["text"].startswith(told["shown"])
    assert script == SHORT or told["shown"] == stored["text"], "it was still running, and came again from its beginning"
