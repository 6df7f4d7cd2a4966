"""The real servers that tests share, and a namespace on them that a test has to itself.

The servers are those named by TURNLOG_TEST_KAFKA_BOOTSTRAP, TURNLOG_TEST_REDIS_URL and
TURNLOG_TEST_CLICKHOUSE_URL (or the same without TEST_); what is not named is started once for the
whole run, also when pytest-xdist runs it in several processes, and stops with the run.
"""

import fcntl
import http.client
import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from infra.kafka_admin import KafkaAdmin
from infra.provisioning import provision
from infra.settings import ProvisionSettings

NAMES = ("KAFKA_BOOTSTRAP", "REDIS_URL", "CLICKHOUSE_URL")
START_TIMEOUT_S = 300


@dataclass(frozen=True)
class Servers:
    """Addresses of the three servers."""

    kafka_bootstrap: str
    redis_url: str
    clickhouse_url: str


@dataclass(frozen=True)
class Deployment:
    """A namespace of its own on the shared servers: topic prefix, key prefix, database."""

    namespace: str
    servers: Servers

    @property
    def kafka_bootstrap(self) -> str:
        return self.servers.kafka_bootstrap

    @property
    def redis_url(self) -> str:
        return self.servers.redis_url

    @property
    def clickhouse_url(self) -> str:
        return self.servers.clickhouse_url

    @property
    def database(self) -> str:
        return self.settings().database

    def settings(self) -> ProvisionSettings:
        """As `turnlog provision` takes them."""
        return ProvisionSettings(
            namespace=self.namespace,
            kafka_bootstrap=self.kafka_bootstrap,
            redis_url=self.redis_url,
            clickhouse_url=self.clickhouse_url,
        )

    def environment(self) -> dict[str, str]:
        """As a process takes them."""
        return {
            "TURNLOG_NAMESPACE": self.namespace,
            "TURNLOG_KAFKA_BOOTSTRAP": self.kafka_bootstrap,
            "TURNLOG_REDIS_URL": self.redis_url,
            "TURNLOG_CLICKHOUSE_URL": self.clickhouse_url,
        }

    def topic(self, logical: str) -> str:
        """Full name of a topic."""
        return f"{self.namespace}.{logical}"

    def provision(self) -> None:
        """Topics, tables and functions."""
        provision(self.settings())

    def remove(self) -> None:
        """Delete all that is in the namespace."""
        admin = KafkaAdmin(self.kafka_bootstrap)
        admin.delete([name for name in admin.topics() if name.startswith(f"{self.namespace}.")])
        query_clickhouse(self.clickhouse_url, f"DROP DATABASE IF EXISTS {self.database}")
        delete_keys(self.redis_url, f"{self.namespace}:")


def new_deployment(servers: Servers) -> Deployment:
    """A namespace that nobody else has; nothing is created yet."""
    return Deployment(f"test-{uuid.uuid4().hex[:12]}", servers)


def named_by(environment: Mapping[str, str]) -> dict[str, str]:
    """The servers that the environment names, as variables for `turnlog up`."""
    found = {}
    for name in NAMES:
        value = environment.get(f"TURNLOG_TEST_{name}") or environment.get(f"TURNLOG_{name}")
        if value:
            found[f"TURNLOG_{name}"] = value
    return found


def shared_servers(run_folder: Path, run_pid: int) -> Servers:
    """The servers of this test run, started by the first process that asks. They end with process ``run_pid``."""
    given = named_by(os.environ)
    if len(given) < len(NAMES):
        run_folder.mkdir(parents=True, exist_ok=True)
        with (run_folder / "servers.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            started = run_folder / "servers.json"
            if not started.exists():
                started.write_text(json.dumps(_start(run_folder / "data", run_pid, given)))
            given = json.loads(started.read_text())
    return Servers(*(given[f"TURNLOG_{name}"] for name in NAMES))


def _start(data: Path, run_pid: int, given: Mapping[str, str]) -> dict[str, str]:
    options = ["--servers-only", "--detach", "--json", "--data", str(data), "--while-pid", str(run_pid)]
    done = subprocess.run(
        [sys.executable, "-m", "infra", "up", *options],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    lines = done.stdout.splitlines()
    last = json.loads(lines[-1]) if lines else {}
    if last.get("event") != "ready":
        raise RuntimeError(f"the servers for the tests did not start: {last.get('detail') or done.stderr}")
    return dict(last["environment"])


def stop_shared_servers(run_folder: Path) -> None:
    """Stop what this run has started, if it has."""
    if (run_folder / "data").exists():
        command = [sys.executable, "-m", "infra", "down", "--data", str(run_folder / "data")]
        subprocess.run(command, capture_output=True, timeout=120, check=False)


def query_clickhouse(url: str, query: str) -> str:
    """Run one statement and return what it prints."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 8123, timeout=30)
    try:
        connection.request("POST", f"/?query={quote(query)}")
        answer = connection.getresponse()
        body = answer.read().decode()
        if answer.status != http.client.OK:
            raise RuntimeError(body)
        return body
    finally:
        connection.close()


def delete_keys(url: str, prefix: str) -> None:
    """Delete the keys with a prefix, without a client library."""
    parts = urlsplit(url)
    script = (
        "local cursor = '0' repeat local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1] .. '*', 'COUNT', 1000) "
        "cursor = page[1] for _, key in ipairs(page[2]) do redis.call('UNLINK', key) end until cursor == '0'"
    )
    words = ["EVAL", script, "0", prefix]
    request = f"*{len(words)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
    with socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379), timeout=30) as connection:
        connection.sendall(request.encode())
        connection.recv(4096)
