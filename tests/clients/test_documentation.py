"""The programs of docs/clients.md do what the page says, also when the connection is cut in the middle of an event."""

import json
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from system.product import Product, Seen

from clients.cable import Cable
from clients.chromium import Chromium
from clients.documentation import programs, written
from clients.programs import node, run_node, run_python, shell

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

LONG = '{"chunks": 60, "every_ms": 20}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the programs are."""
    return written(tmp_path)


def test_every_program_of_the_page_is_run_here() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    unrun = [name for name in programs() if name != "page.html" and f'folder / "{name}"' not in tests]
    assert not unrun


def test_curl(environment: dict[str, str], folder: Path) -> None:
    with shell(folder / "curl.sh", env=environment) as running:
        printed = "\n".join(one["line"] if "line" in one else json.dumps(one) for one in running.wait())
    sent, _, rest = printed.partition("\n")
    final = json.loads(rest.rpartition("\n")[2])
    frames = [block for block in rest.replace(": hb\n", "").split("\n\n") if "id: " in block]
    whole, again = Seen(), Seen(offset=2)
    for frame in frames:
        (again if whole.end else whole).take(f"{frame}\n\n".encode())
    assert again.frames == whole.frames[2:]
    assert (final["id"], final["status"], final["text"]) == (json.loads(sent)["reply"]["id"], "completed", whole.text)


def test_eventsource_on_node(product: Product, environment: dict[str, str], folder: Path, cable: Cable) -> None:
    cable.cut_at(b"id: 20\nevent: del")
    said = run_node(folder / "eventsource.mjs", LONG, env=environment | {"TURNLOG_URL": cable.url})
    assert cable.cuts == 1
    reply_id = next(asked.target.split("/")[3] for asked in cable.asked if asked.target.endswith("/events"))
    stored = product.client().message(reply_id)
    assert said == [{name: stored[name] for name in ("text", "status", "usage", "error")}]
    assert stored["status"] == "completed"


def test_eventsource_in_a_browser(
    product: Product, environment: dict[str, str], folder: Path, cable: Cable, chromium: Chromium, page_port: int
) -> None:
    cable.cut_at(b"id: 20\nevent: del")
    env = environment | {"TURNLOG_URL": cable.url, "PORT": str(page_port)}
    with node(folder / "page_server.mjs", env=env) as server:
        tab = chromium.tab()
        server.until("it listens", lambda _: listens(page_port))
        tab.open(f"http://127.0.0.1:{page_port}/?content={quote(LONG)}")
        server.until(
            "the page has the whole reply", lambda _: tab.run("document.querySelector('#reply').dataset.status")
        )
        shown = tab.run("document.querySelector('#reply').textContent")
        tab.close()
    reply_id = next(asked.target.split("/")[3] for asked in cable.asked if "/events?" in asked.target)
    stored = product.client().message(reply_id)
    assert (stored["status"], stored["text"]) == ("completed", shown)
    assert cable.cuts == 1


@pytest.mark.parametrize("marker", [b'"sequence_number":20,"item', b"event: response.crea", b"event: response.comp"])
@pytest.mark.parametrize("program", ["openai_python.py", "openai_node.mjs"])
def test_openai(
    product: Product, environment: dict[str, str], folder: Path, cable: Cable, program: str, marker: bytes
) -> None:
    run = {folder / "openai_python.py": run_python, folder / "openai_node.mjs": run_node}[folder / program]
    cable.cut_at(marker)
    (said,) = run(folder / program, LONG, env=environment | {"TURNLOG_URL": cable.url})
    stored = product.client().message(said["id"])
    assert (said["text"], said["status"]) == (stored["text"], "completed")
    assert said["usage"]["output_tokens"] == stored["usage"]["output_tokens"] == 60
    assert cable.cuts == 1


def listens(port: int) -> bool:
    """Whether a web server is there."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/").is_success
    except httpx.TransportError:
        return False
