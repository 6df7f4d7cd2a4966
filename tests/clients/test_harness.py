"""The harness itself: programs are heard, cables are cut where it was said, nothing is skipped."""

import socket
from pathlib import Path

import httpx
import pytest

from clients.cable import Cable
from clients.programs import python, required, run_node, run_python
from clients.sites import Site


@pytest.mark.system  # what tests/clients/install.sh installs
def test_a_programs_lines_are_heard_and_its_failure_is_shown(tmp_path: Path) -> None:
    good = tmp_path / "good.mjs"
    good.write_text("console.log(JSON.stringify({v: process.versions.node})); console.log('plain')")
    said = run_node(good)
    assert int(said[0]["v"].split(".")[0]) >= 22
    assert said[1] == {"line": "plain"}
    bad = tmp_path / "bad.py"
    bad.write_text("raise SystemExit('a reason')")
    with pytest.raises(AssertionError, match="a reason"):
        run_python(bad)


def test_a_program_can_be_spoken_to_and_is_ended(tmp_path: Path) -> None:
    echo = tmp_path / "echo.py"
    echo.write_text("import sys\nfor line in sys.stdin: print(line, end='')")
    with python(echo) as running:
        running.tell(word="hello")
        running.until("the echo", lambda said: said == [{"word": "hello"}])


def test_what_is_missing_fails_by_name() -> None:
    with pytest.raises(AssertionError, match=r"no-such-program is missing: run tests/clients/install\.sh"):
        required("no-such-program")


def test_a_cable_is_cut_where_it_was_said_once_and_counts(tmp_path: Path) -> None:
    (tmp_path / "page.txt").write_text("0123456789" * 100)
    with Site(tmp_path) as site, Cable(site.origin) as cable:
        cable.cut_at(b"0123456789012")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{cable.url}/page.txt")
        assert httpx.get(f"{cable.url}/page.txt", headers={"X-Mine": "yes"}).text == "0123456789" * 100
        assert (cable.connections, cable.cuts) == (2, 1)
        assert [(asked.method, asked.target) for asked in cable.asked] == [("GET", "/page.txt")] * 2
        assert cable.asked[1].headers["x-mine"] == "yes"
        cable.cut_after(500)
        with socket.create_connection(("127.0.0.1", int(cable.url.rpartition(":")[2]))) as raw:
            raw.sendall(b"GET /page.txt HTTP/1.0\r\n\r\n")
            assert len(raw.recv(500, socket.MSG_WAITALL)) == 500
            with pytest.raises(ConnectionResetError):
                raw.recv(1)


def test_a_cable_can_be_stalled_unplugged_and_restored(tmp_path: Path) -> None:
    (tmp_path / "page.txt").write_text("hello")
    with Site(tmp_path) as site, Cable(site.origin) as cable:
        cable.unplug()
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{cable.url}/page.txt")
        cable.restore()
        cable.stall()
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{cable.url}/page.txt", timeout=0.3)
        cable.restore()
        assert httpx.get(f"{cable.url}/page.txt").text == "hello"
