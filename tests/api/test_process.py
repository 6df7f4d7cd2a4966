"""The process itself, on the real servers: several on one port, signals, slow readers, memory."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from deployment import Deployment

from infra.ports import free_port
from schemas.events import AccountOpened, KeyIssued
from schemas.ids import key_hash
from schemas.stream import Delta, Ended, Started, frame
from schemas.values import Usage
from streams.log.kafka.log import KafkaLog
from streams.log.steps import Output

KEY = "a key of the tests"
AUTH = {"Authorization": f"Bearer {KEY}"}


def eventually(what: str, condition: Any, within_s: float = 60.0) -> Any:
    deadline = time.monotonic() + within_s
    while True:
        with contextlib.suppress(httpx.TransportError):
            if value := condition():
                return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what}")
        time.sleep(0.02)


class Api:
    """API processes of one deployment."""

    def __init__(self, deployment: Deployment, folder: Path, **settings: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.deployment = deployment
        self.redis = redis.Redis.from_url(deployment.redis_url)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._folder = folder
        self._env = (
            os.environ
            | deployment.environment()
            | {"TURNLOG_SECRET": "a secret of the tests", "TURNLOG_API_PORT": str(self.port)}
            | settings
        )
        log = KafkaLog(deployment.kafka_bootstrap, deployment.namespace, "tests")
        writer = log.writer("tests")
        writer.append(Output(event=AccountOpened(account_id="a", name="a", tier="paid", opened_at_ms=1)))
        writer.append(Output(event=KeyIssued(account_id="a", key_id="1", key_hash=key_hash(KEY), issued_at_ms=1)))
        writer.flush(20)
        log.close()

    def start(self) -> subprocess.Popen[bytes]:
        replica = len(self.processes)
        status = self._folder / f"api-{replica}.json"
        mine = {"TURNLOG_REPLICA": str(replica), "TURNLOG_STATUS_FILE": str(status)}
        with (self._folder / f"api-{replica}.log").open("wb") as out:
            process = subprocess.Popen([sys.executable, "-m", "api"], env=self._env | mine, stderr=out)
        self.processes.append(process)
        eventually("it is ready", lambda: status.exists() and json.loads(status.read_text())["state"] == "ready")
        return process

    def log(self, replica: int = 0) -> str:
        return (self._folder / f"api-{replica}.log").read_text()

    def send(self, **body: Any) -> dict[str, Any]:
        answer = httpx.post(f"{self.url}/v1/messages", headers=AUTH, json={"content": "hi"} | body, timeout=20)
        assert answer.status_code == 202, answer.text
        return dict(answer.json())

    def publish(self, reply_id: str, first: int, *frames: bytes) -> None:
        """As the buffer's projection."""
        name = f"{self.deployment.namespace}:{{{reply_id}}}"
        pipe = self.redis.pipeline(transaction=True)
        pipe.rpush(f"{name}:frames", *frames)
        payload = b"%d-%d\n%s" % (first, first + len(frames) - 1, b"".join(frames))
        pipe.execute_command("SPUBLISH", f"{name}:live", payload)
        pipe.execute()

    def follow(self, reply_id: str, after: int = 0) -> socket.socket:
        """A raw connection that has asked for a stream."""
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(
            f"GET /v1/messages/{reply_id}/events?after={after} HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {KEY}\r\n\r\n".encode()
        )
        return connection

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.redis.close()


@pytest.fixture
def api(provisioned: Deployment, tmp_path: Path) -> Iterator[Api]:
    mine = Api(provisioned, tmp_path, TURNLOG_SEND_TIMEOUT_S="1", TURNLOG_HEARTBEAT_S="1")
    yield mine
    mine.close()


def started(reply_id: str) -> bytes:
    return frame(1, Started(message_id=reply_id, conversation_id="c", model="m", attempt=1))


def ended(offset: int) -> bytes:
    return frame(offset, Ended(status="completed", usage=Usage(input_tokens=1, output_tokens=1)))


def events(content: bytes) -> bytes:
    """The events of an answer, without the line of the connection's own before the first."""
    whole, found = re.subn(rb"\Aretry: \d+\n", b"", content)
    assert found == 1, content[:100]
    return whole


def read_until(connection: socket.socket, what: bytes) -> bytes:
    connection.settimeout(20)
    data = b""
    while what not in data:
        chunk = connection.recv(1 << 20)
        assert chunk, f"it ended without {what!r}: {data[-200:]!r}"
        data += chunk
    return data


def read_all(connection: socket.socket) -> bytes:
    connection.settimeout(20)
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(1 << 20):
            data += chunk
    return data


pytestmark = [pytest.mark.servers, pytest.mark.timeout(180)]


@pytest.mark.parametrize(
    ("rest", "status", "code"),
    [
        (b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n", b"400", b"invalid_request"),
        (b'Content-Length: 1000\r\n\r\n{"content":"', b"408", b"body_timeout"),
    ],
)
def test_a_body_that_does_not_come_whole_is_refused(api: Api, rest: bytes, status: bytes, code: bytes) -> None:
    api.start()
    with socket.create_connection(("127.0.0.1", api.port)) as connection:
        head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n" + rest)
        connection.settimeout(60)
        answer = connection.recv(1 << 20)
    assert answer.split(b" ")[1] == status
    assert code in answer


def test_a_connection_outlives_an_answer_that_began_before_the_body_had_come(api: Api) -> None:
    api.start()
    with socket.create_connection(("127.0.0.1", api.port)) as connection:
        connection.settimeout(60)
        for _ in range(3):
            connection.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n")
            time.sleep(0.2)
            connection.sendall(b'{"content": "hello"}')
            assert connection.recv(1 << 20).startswith(b"HTTP/1.1 401 ")
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n")
        answer = connection.recv(1 << 20)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in answer, "a body that does not come ends it, and that is said"


def test_two_processes_share_a_port_and_sigterm_ends_streams_at_an_event(api: Api) -> None:
    """Replies run while one of two is stopped: nothing is lost or doubled, whoever follows them comes back at once."""
    one = api.start()
    replies = [api.send(client_message_id=f"x{number}")["reply"]["id"] for number in range(60)]
    open_ = {reply_id: api.follow(reply_id) for reply_id in replies}
    eventually("all are open", lambda: api.metric("turnlog_api_streams_open") == 60)
    for reply_id in replies:
        api.publish(reply_id, 1, started(reply_id), frame(2, Delta(text="a")))
    received = {reply_id: read_until(connection, b'a"}\n\n') for reply_id, connection in open_.items()}
    other = api.start()
    began = time.monotonic()
    one.send_signal(signal.SIGTERM)
    number = 3
    while one.poll() is None:
        for reply_id in replies[::2]:
            api.publish(reply_id, number, frame(number, Delta(text="b")))
        number += 1
        assert time.monotonic() - began < 5 + 10, "it ends within TURNLOG_SHUTDOWN_S, and what is closed after that"
    for reply_id in replies[1::2]:
        api.publish(reply_id, 3, ended(3))
    for reply_id in replies[::2]:
        api.publish(reply_id, number, ended(number))
    for reply_id, connection in open_.items():
        whole = received[reply_id] + read_all(connection)
        connection.close()
        assert whole.endswith((b"\n\n\r\n0\r\n\r\n", b": hb\n\r\n0\r\n\r\n")), whole[-200:]
        seen = [int(found) for found in re.findall(rb"^id: (\d+)$", whole, re.MULTILINE)]
        assert seen == list(range(1, len(seen) + 1))
        headers = AUTH | {"Last-Event-ID": str(len(seen))}
        rest = httpx.get(f"{api.url}/v1/messages/{reply_id}/events", headers=headers, timeout=20)
        seen += [int(found) for found in re.findall(rb"^id: (\d+)$", events(rest.content), re.MULTILINE)]
        last = number if reply_id in replies[::2] else 3
        assert seen == list(range(1, last + 1)), reply_id
        assert rest.content.endswith(ended(last))
    assert other.poll() is None
    assert one.returncode == 0
    again = httpx.post(
        f"{api.url}/v1/messages", headers=AUTH, json={"content": "hi", "client_message_id": "x0"}, timeout=20
    )
    assert (again.status_code, again.json()["reply"]["id"]) == (200, replies[0])


def test_a_request_in_flight_is_answered_while_the_process_stops(api: Api) -> None:
    process = api.start()
    body = b'{"content": "hi"}'
    with socket.create_connection(("127.0.0.1", api.port)) as connection:
        head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body[:5])
        eventually("it has the request", lambda: unread_bytes(api.port) == 0)
        process.send_signal(signal.SIGTERM)
        eventually("no more is taken", lambda: not listens(api.port))
        connection.sendall(body[5:])
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 202"), answer[:200]
    assert process.wait(20) == 0


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def unread_bytes(port: int) -> int:
    """What connections to a port have received and their process has not read yet."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(line[4].split(":")[1], 16) for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "01")


def test_a_reader_that_takes_nothing_is_cut_off_and_resumes_without_loss(api: Api) -> None:
    process = api.start()
    sent = api.send()
    reply_id = sent["reply"]["id"]
    stalled = [api.follow(reply_id) for _ in range(20)]
    eventually("all follow", lambda: api.metric("turnlog_api_streams_open") == 20)
    before = resident_bytes(process.pid)
    api.publish(reply_id, 1, started(reply_id))
    frames = [started(reply_id)]
    for number in range(2, 402):
        frames.append(frame(number, Delta(text="x" * 50_000)))
        api.publish(reply_id, number, frames[-1])
    eventually("they are cut off", lambda: api.metric("turnlog_api_streams_cut_off_total") == 20)
    assert api.metric("turnlog_api_streams_open") == 0
    assert resident_bytes(process.pid) - before < 40_000_000, "20 readers, 20 MB each"
    for connection in stalled:
        connection.close()
    api.publish(reply_id, 402, ended(402))
    rest = httpx.get(f"{api.url}/v1/messages/{reply_id}/events?after=200", headers=AUTH, timeout=30)
    assert events(rest.content) == b"".join((*frames[200:], ended(402)))
    assert "Traceback" not in api.log()


def test_a_thousand_open_streams_cost_little(api: Api) -> None:
    process = api.start()
    sent = api.send()
    reply_id = sent["reply"]["id"]
    before = resident_bytes(process.pid)
    connections = []
    for _ in range(1000):
        connections.append(api.follow(reply_id))
        assert connections[-1].recv(4096).startswith(b"HTTP/1.1 200")
    eventually("all follow", lambda: api.metric("turnlog_api_streams_open") == 1000)
    each = (resident_bytes(process.pid) - before) / 1000
    assert api.metric("turnlog_api_subscriptions") == 1
    for connection in connections:
        connection.close()
    eventually("all left", lambda: api.metric("turnlog_api_streams_open") == 0)
    assert each < 25_000, f"{each} bytes a stream"


def test_bad_settings_are_one_sentence(tmp_path: Path) -> None:
    env = os.environ | {"TURNLOG_SECRET": "short", "TURNLOG_API_PORT": "x"}
    done = subprocess.run(
        [sys.executable, "-m", "api", "--check"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "TURNLOG_SECRET" in done.stderr
    assert "TURNLOG_API_PORT" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_one_sentence(api: Api) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", api.port))
        taken.listen()
        process = subprocess.run(
            [sys.executable, "-m", "api"], env=api._env, capture_output=True, text=True, check=False, timeout=60
        )
    assert process.returncode == 1
    assert f"127.0.0.1:{api.port}" in process.stderr
    assert "Traceback" not in process.stderr


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
