"""A conversation's feed from the process itself, on the real servers, with the views' own process."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from deployment import Deployment

from tests.api.test_process import AUTH, KEY, Api, eventually, read_all

pytestmark = [pytest.mark.servers, pytest.mark.timeout(180)]


@pytest.fixture
def api(provisioned: Deployment, tmp_path: Path) -> Iterator[Api]:
    mine = Api(provisioned, tmp_path, TURNLOG_HEARTBEAT_S="0.5")
    views = subprocess.Popen([sys.executable, "-m", "projections", "views"], env=mine._env)
    mine.start()
    yield mine
    views.terminate()
    views.wait(20)
    mine.close()


def feed(api: Api, conversation_id: str, after: int = 0) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", api.port))
    connection.sendall(
        f"GET /v1/conversations/{conversation_id}/events HTTP/1.1\r\nHost: x\r\nLast-Event-ID: {after}\r\n"
        f"Authorization: Bearer {KEY}\r\n\r\n".encode()
    )
    return connection


def test_a_feed_goes_out_as_written_and_ends_at_an_event_on_sigterm(api: Api) -> None:
    sent = api.send()
    url = f"{api.url}/v1/conversations/{sent['conversation_id']}"
    with feed(api, sent["conversation_id"]) as connection:
        received = b""
        connection.settimeout(20)
        while b"event: message" not in received or b"\r\n: hb\n\r\n" not in received:
            received += connection.recv(65_536)
        assert httpx.patch(url, headers=AUTH, json={"title": "T"}, timeout=20).status_code == 200
        while b"event: renamed" not in received:
            received += connection.recv(65_536)
        assert api.metric("turnlog_api_streams_open") == 1
        api.processes[0].send_signal(signal.SIGTERM)
        received += read_all(connection)
        assert api.processes[0].wait(20) == 0
    assert received.endswith(b"0\r\n\r\n"), received[-200:]
    assert b": hb\n\n" not in received
    assert b"connection" not in received.lower().split(b"\r\n\r\n")[0]
    assert "Traceback" not in api.log()


def test_a_client_that_leaves_is_noticed(api: Api) -> None:
    sent = api.send()
    for _ in range(3):
        with feed(api, sent["conversation_id"]) as connection:
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
    eventually("all left", lambda: api.metric("turnlog_api_streams_open") == 0)
    assert "Traceback" not in api.log()
