"""Accounts on real API processes: a change holds on each within a second, and secrets stay where they belong."""

import http.client
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from deployment import Deployment

from infra.kafka_admin import KafkaAdmin
from infra.ports import free_port
from streams.log.kafka.log import KafkaLog
from streams.log.log import BEGINNING
from streams.log.steps import Partition
from tests.api.issuer import FakeIssuer, issuer
from tests.api.test_process import eventually

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]

OPERATOR = f"tlo_{secrets.token_hex(20)}"
WITHIN_S = 1.0
ROUNDS = 8
ASK = "import sys, httpx; httpx.get(sys.argv[1], headers={'x-api-key': sys.argv[2]}, timeout=30)"


class Apis:
    """Two API processes, each on a port of its own."""

    def __init__(self, deployment: Deployment, folder: Path, **settings: str) -> None:
        self.ports = [free_port(), free_port()]
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.folder = folder
        shared = os.environ | deployment.environment() | {"TURNLOG_SECRET": "a secret of the tests"} | settings
        self.processes = []
        for replica, port in enumerate(self.ports):
            mine = {
                "TURNLOG_API_PORT": str(port),
                "TURNLOG_REPLICA": str(replica),
                "TURNLOG_STATUS_FILE": str(folder / f"api-{replica}.json"),
                "TURNLOG_LOG_LEVEL": "debug",
            }
            with (folder / f"api-{replica}.log").open("wb") as out:
                self.processes.append(
                    subprocess.Popen([sys.executable, "-m", "api"], env=shared | mine, stderr=out, stdout=out)
                )
        for url in self.urls:
            eventually("it is ready", lambda url=url: httpx.get(f"{url}/readyz").status_code == 200)

    def admin(self, method: str, path: str, body: Any = None, url: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        return httpx.request(method, f"{url or self.urls[0]}/v1/admin/accounts{path}", headers=headers, json=body)

    def logs(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob("*.log"))

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def fake() -> Iterator[FakeIssuer]:
    with issuer() as made:
        yield made


@pytest.fixture
def apis(provisioned: Deployment, tmp_path: Path, fake: FakeIssuer) -> Iterator[Apis]:
    made = Apis(provisioned, tmp_path, TURNLOG_OPERATOR_KEY=OPERATOR, TURNLOG_JWT_ISSUERS=fake.setting())
    yield made
    made.close()


class Line:
    """A connection that stays open from one request to the next."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def get(self, path: str, key: str | None) -> int:
        self._connection.request("GET", path, headers={} if key is None else {"Authorization": f"Bearer {key}"})
        answer = self._connection.getresponse()
        answer.read()
        return answer.status

    def close(self) -> None:
        self._connection.close()


def test_a_revoked_key_opens_nothing_within_a_second_on_every_process(apis: Apis, fake: FakeIssuer) -> None:
    assert apis.admin("PUT", "/acme", {"name": "Acme", "tier": "paid"}).status_code == 201
    apis.admin("PATCH", "/acme", {"unknown_users": "admit"})
    lines = [Line(port) for port in apis.ports]
    took_s: list[float] = []
    for number in range(ROUNDS):
        issued = apis.admin("POST", "/acme/keys", {"name": f"key {number}"}).json()
        key, token = issued["api_key"], fake.token(account="acme", sub=f"user {number}")
        auth = {"Authorization": f"Bearer {key}"}
        eventually("both know it", lambda key=key: [line.get("/v1/models", key) for line in lines] == [200, 200])
        sent = httpx.post(f"{apis.urls[0]}/v1/messages", headers=auth, json={"content": "hello"}, timeout=20).json()
        stream = f"/v1/messages/{sent['reply']['id']}/events"
        tickets = []
        for owner in (key, token):
            made = httpx.post(
                f"{apis.urls[0]}/v1/tickets",
                headers={"Authorization": f"Bearer {owner}"},
                json={"id": sent["reply"]["id"]},
                timeout=20,
            )
            tickets.append(made.json()["events_url"])
        assert stream in tickets[0]
        # A cursor that is no number is refused with 400 to whoever may follow the stream, and to nobody else.
        checks = [
            ("/v1/models", key),
            ("/v1/models", token),
            (f"{tickets[0]}&after=x", None),
            (f"{tickets[1]}&after=x", None),
        ]
        assert [line.get(*check) for line in lines for check in checks] == [200, 200, 400, 400] * 2
        apis.admin("DELETE", f"/acme/users/user%20{number}")
        answered = apis.admin("DELETE", f"/acme/keys/{issued['id']}", url=apis.urls[number % 2])
        began_s = time.monotonic()
        assert answered.status_code == 200
        eventually(
            "all are refused on both",
            lambda checks=checks: [line.get(*check) for line in lines for check in checks] == [401] * 8,
            within_s=20,
        )
        took_s.append(time.monotonic() - began_s)
    for line in lines:
        line.close()
    print(f"refused on both processes after {', '.join(f'{1000 * each:.0f}' for each in took_s)} ms")
    assert max(took_s) < WITHIN_S, took_s


def test_what_one_process_changes_the_other_knows(apis: Apis) -> None:
    apis.admin("PUT", "/acme", {"name": "Acme"})
    other = apis.urls[1]
    eventually("it is there", lambda: apis.admin("GET", "/acme", url=other).status_code == 200)
    apis.admin("PATCH", "/acme", {"tier": "paid"}, url=other)
    assert apis.admin("GET", "/acme", url=other).json()["tier"] == "paid"
    eventually("it is paid", lambda: apis.admin("GET", "/acme").json()["tier"] == "paid")
    key = apis.admin("POST", "/acme/keys").json()
    eventually(
        "when it was used is told",
        lambda: (
            httpx.get(f"{other}/v1/models", headers={"x-api-key": key["api_key"]}).status_code == 200
            and apis.admin("GET", "/acme/keys").json()["data"][0]["last_used_at"]
        ),
    )


def test_keys_are_rotated_without_a_restart_on_a_process_that_goes_on(apis: Apis, fake: FakeIssuer) -> None:
    apis.admin("PUT", "/acme", {"name": "Acme", "tier": "paid"})
    apis.admin("PATCH", "/acme", {"unknown_users": "admit"})
    line = Line(apis.ports[0])
    old = fake.token(account="acme")
    assert line.get("/v1/models", old) == 200
    fake.rotate("two", "EdDSA", keep=True)
    eventually("the new key counts", lambda: line.get("/v1/models", fake.token("two", account="acme")) == 200)
    fake.status = 500
    assert line.get("/v1/models", old) == 200
    fake.held.clear()
    made_up = fake.token("two", {"kid": "made up"}, account="acme")
    slow = subprocess.Popen(
        [sys.executable, "-c", ASK, f"{apis.urls[0]}/v1/models", made_up],
    )
    try:
        asked = fake.asked
        eventually("it asks the issuer, who does not answer", lambda: fake.asked > asked or slow.poll() is not None)
        assert line.get("/v1/models", old) == 200, "nobody else waits for it"
    finally:
        fake.held.set()
        slow.wait(30)
        line.close()


def test_keys_and_tokens_get_into_no_log_no_record_and_no_answer(
    apis: Apis, fake: FakeIssuer, provisioned: Deployment
) -> None:
    apis.admin("PUT", "/acme", {"name": "Acme", "tier": "paid"})
    apis.admin("PATCH", "/acme", {"unknown_users": "admit"})
    key = apis.admin("POST", "/acme/keys", {"name": "ci"}).json()["api_key"]
    revoked = apis.admin("POST", "/acme/keys").json()
    apis.admin("DELETE", f"/acme/keys/{revoked['id']}")
    hidden = {
        "key": key,
        "revoked key": revoked["api_key"],
        "unknown key": f"tlk_{secrets.token_urlsafe(24)}",
        "token": fake.token(account="acme"),
        "expired token": fake.token(account="acme", exp=1_700_000_000),
        "operator's key": OPERATOR,
    }
    answers: list[httpx.Response] = []
    for secret in hidden.values():
        for url in apis.urls:
            answers += everywhere(url, secret, key)
    assert {answer.status_code for answer in answers} >= {200, 202, 400, 401, 404}
    told = b"".join(_told(answer) for answer in answers)
    logs = apis.logs()
    assert logs.count('"answered"') >= len(answers)
    records = _records(provisioned)
    assert b'"content":"said"' in records
    for what, secret in hidden.items():
        assert secret.encode() not in told, what
        assert secret not in logs, what
        assert secret.encode() not in records, what


def everywhere(url: str, secret: str, key: str) -> Iterator[httpx.Response]:
    """Calls with a secret in every place that a client can put it, but what people say to each other."""
    bearer, mine = {"Authorization": f"Bearer {secret}"}, {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, timeout=20) as http_:
        for prefix in ("/v1", "/openai/v1", "/anthropic/v1"):
            yield http_.get(f"{prefix}/models", headers=bearer)
            yield http_.get(f"{prefix}/models", headers={"x-api-key": secret, "Authorization": f"Basic {secret}"})
        yield http_.get("/v1/models", headers={"Authorization": secret})
        yield http_.get("/v1/admin/accounts", headers=bearer | {"x-request-id": secret})
        yield http_.get("/v1/admin/accounts", params={"cursor": secret, secret: secret}, headers=bearer)
        for headers in (bearer, mine):
            more = headers | {"X-Request-Id": secret, "traceparent": secret, "User-Agent": secret, "Cookie": secret}
            yield http_.get(f"/v1/messages/{secret}", headers=more)
            yield http_.get(f"/{secret}", headers=more)
            yield http_.get("/v1/usage", params={"from": secret}, headers=more)
            yield http_.get("/v1/conversations", params={secret: "1", "cursor": secret}, headers=more)
            yield http_.get(f"/v1/messages/rep_x/events?ticket={secret}", headers=more)
            yield http_.post("/v1/messages", headers=more, json={"content": "said"})
            yield http_.post("/v1/messages", headers=more, json={"content": "x", secret: secret})
            yield http_.post("/v1/messages", headers=more, json={"content": "x", "client_message_id": secret})
            yield http_.post("/v1/messages", headers=more | {"Idempotency-Key": secret}, json={"content": "x"})
            yield http_.post("/v1/messages", headers=more, json={"content": "x", "conversation_id": secret})
            yield http_.post("/v1/messages", headers=more, json={"content": "x", "model": secret})
            yield http_.post(
                "/v1/messages", headers=more | {"Content-Type": "application/json"}, content=f'{{"{secret}'
            )
            yield http_.post("/v1/messages", headers=more | {"Content-Type": secret}, content=secret)
            yield http_.post("/v1/tickets", headers=more, json={"id": secret})
            yield http_.post("/openai/v1/chat/completions", headers=more, json={"model": secret, "messages": []})
            yield http_.post("/openai/v1/responses", headers=more, json={"input": "x", "previous_response_id": secret})
            yield http_.post("/anthropic/v1/messages", headers=more, json={"model": secret, secret: 1})
            yield http_.post("/ai-sdk", headers=more, json={"id": secret, "messages": secret})
            yield http_.request("PROPFIND", f"/durable/messages/{secret}", headers=more)


def _told(answer: httpx.Response) -> bytes:
    # httpx keeps the request's own URL in the answer; the headers and the body are what came.
    return answer.content + json.dumps(list(answer.headers.items())).encode()


def _records(deployment: Deployment) -> bytes:
    """Every record of every topic of the deployment: keys, headers and values."""
    log = KafkaLog(deployment.kafka_bootstrap, deployment.namespace, "tests")
    found: list[bytes] = []
    try:
        for name in KafkaAdmin(deployment.kafka_bootstrap).topics():
            logical = name.removeprefix(f"{deployment.namespace}.")
            if logical == name:
                continue
            partitions = [Partition(logical, number) for number in range(log.partitions(logical))]
            reader = log.reader(partitions, BEGINNING)
            ends = reader.ends()
            while any(reader.positions()[partition] < end for partition, end in ends.items()):
                for record in reader.poll(0.2):
                    found += [(record.key or "").encode(), record.value or b"", repr(record.headers).encode()]
            reader.close()
    finally:
        log.close()
    return b"\n".join(found)
