"""The whole product as a user runs it: `turnlog up` in a data folder of its own, and a client for its HTTP API.

The client keeps the rules that docs/protocol.md gives to clients: it repeats a send with the same client message id
until it is answered, and resumes a stream after the last offset that it has seen, on any API process.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

REPOSITORY = Path(__file__).resolve().parents[2]


def eventually(what: str, condition: Callable[[], Any], *, within_s: float = 30.0) -> Any:
    """The first true value of the condition; fails with the last false one."""
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what} (last: {value!r})")
        pause.wait(0.05)


class Product:
    """One running `turnlog up`."""

    def __init__(self, data: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self.data = data
        self.env = os.environ | {"TURNLOG_LOG_LEVEL": "info"} | (env or {})
        command = ["up", "--detach", "--json", "--data", str(data), "--port", "0", *options]
        lines = self.turnlog(*command, timeout_s=180).stdout.splitlines()
        ready = json.loads(lines[-1])
        assert ready["event"] == "ready", lines
        self.url: str = ready["url"]
        self.api_key: str = ready["api_key"]

    def turnlog(self, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, which must be a good one."""
        done = subprocess.run(
            [sys.executable, "-m", "infra", *arguments],
            cwd=REPOSITORY,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"turnlog {arguments} exits {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done

    def close(self) -> None:
        self.turnlog("down", "--data", str(self.data))

    def open_account(self, name: str, tier: str) -> str:
        """A new account's key; API processes know it a moment later."""
        made = self.turnlog("accounts", "create", name, "--tier", tier, "--json", "--data", str(self.data)).stdout
        return str(json.loads(made)["api_key"])

    def parts(self) -> dict[str, dict[str, Any]]:
        """Each part of the stack by its name, as `turnlog status --json` gives it."""
        status = json.loads(self.turnlog("status", "--json", "--data", str(self.data)).stdout)
        return {part["name"]: part for part in status["parts"]}

    def signal(self, name: str, number: signal.Signals) -> int:
        """Send a signal to a part; returns the pid that it had."""
        pid = int(self.parts()[name]["pid"])
        os.kill(pid, number)
        return pid

    def kill(self, name: str) -> int:
        return self.signal(name, signal.SIGKILL)

    def wait_ready(self, *, within_s: float = 60.0) -> None:
        """Until each part is ready again."""
        late: list[dict[str, Any]] = []

        def all_ready() -> bool:
            late[:] = [part for part in self.parts().values() if part["state"] != "ready"]
            return not late

        try:
            eventually("every part is ready", all_ready, within_s=within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {late}") from None

    def addresses(self) -> list[str]:
        """The address of each API process."""
        return [
            part["address"] if part["address"].startswith("http") else f"http://{part['address']}"
            for name, part in sorted(self.parts().items())
            if name.startswith("api-")
        ]

    def client(self, url: str | None = None) -> "Client":
        return Client(url or self.url, self.api_key)


def event(frame: bytes) -> bytes:
    """A frame without what is of the connection: heartbeats, and how long to wait before the next one."""
    lines = frame.split(b"\n")
    return b"\n".join(line for line in lines if not line.startswith((b":", b"retry:")))


@dataclass
class Seen:
    """What a reader of one stream has, by the rules for clients."""

    text: str = ""
    offset: int = 0
    attempt: int = 1
    frames: list[bytes] = field(default_factory=list)
    events: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    reconnects: int = 0

    def take(self, frame: bytes) -> None:
        frame = event(frame)
        members = dict(line.split(": ", 1) for line in frame.decode().split("\n") if line)
        offset, kind, data = int(members["id"]), members["event"], json.loads(members["data"])
        assert offset == self.offset + 1, f"after {self.offset} came {offset}"
        assert self.end is None, "something follows the end"
        self.offset = offset
        self.frames.append(frame)
        self.events.append((offset, kind, data))
        if kind == "delta":
            self.text += data["text"]
        elif kind == "reset":
            assert data["attempt"] > self.attempt
            self.attempt = data["attempt"]
            self.text = ""
        elif kind == "ended":
            self.end = data


class Client:
    """A client of the native API."""

    def __init__(self, url: str, api_key: str) -> None:
        self.http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {api_key}"}, timeout=httpx.Timeout(30.0, connect=5.0)
        )

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        answer = self.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def persistently(self, method: str, path: str, *, within_s: float = 90.0, **request: Any) -> httpx.Response:
        """Repeat a call while the service cannot be reached or says that it is not able now."""

        def attempt() -> httpx.Response | None:
            try:
                answer = self.http.request(method, path, **request)
            except httpx.TransportError:
                return None
            return None if answer.status_code in (429, 500, 502, 503, 504) else answer

        answer: httpx.Response = eventually(f"{method} {path} is answered", attempt, within_s=within_s)
        return answer

    def send(self, content: str | dict[str, Any], **body: Any) -> dict[str, Any]:
        """Send a message until it is accepted; the body gets a client message id if it has none."""
        text = content if isinstance(content, str) else json.dumps(content)
        body = {"client_message_id": uuid.uuid4().hex, "content": text} | body
        answer = self.persistently("POST", "/v1/messages", json=body)
        assert answer.status_code in (200, 202), answer.text
        return dict(answer.json())

    def message(self, message_id: str) -> dict[str, Any]:
        return dict(self.persistently("GET", f"/v1/messages/{message_id}").json())

    def frames(self, reply_id: str, after: int = 0) -> Iterator[bytes]:
        """The frames of one connection, until it ends."""
        path = f"/v1/messages/{reply_id}/events"
        with self.http.stream("GET", path, headers={"Last-Event-ID": str(after)}) as answer:
            if answer.status_code == 204:
                return
            if answer.status_code != 200:
                answer.read()
                raise httpx.HTTPStatusError(answer.text, request=answer.request, response=answer)
            buffer = b""
            for chunk in answer.iter_bytes():
                buffer += chunk
                while b"\n\n" in buffer:
                    frame, buffer = buffer.split(b"\n\n", 1)
                    yield event(frame + b"\n\n")

    def read(
        self,
        reply_id: str,
        seen: Seen | None = None,
        *,
        within_s: float = 120.0,
        each: Callable[[Seen], None] | None = None,
    ) -> Seen:
        """Read a stream to its end, resuming after every break."""
        seen = seen or Seen()
        deadline = time.monotonic() + within_s
        pause = threading.Event()
        while seen.end is None:
            assert time.monotonic() < deadline, f"no end within {within_s} s, {seen.offset} events so far"
            try:
                for frame in self.frames(reply_id, seen.offset):
                    seen.take(frame)
                    if each is not None:
                        each(seen)
            except httpx.TransportError:
                pass
            except httpx.HTTPStatusError as error:
                if error.response.status_code not in (429, 502, 503):
                    raise
            if seen.end is None:
                seen.reconnects += 1
                pause.wait(0.1)
        return seen

    def pages(self, path: str) -> list[dict[str, Any]]:
        """All items of a listing, page after page."""
        found: list[dict[str, Any]] = []
        query = {"limit": "200"}
        while True:
            page = self.persistently("GET", path, params=query).json()
            found += page["data"]
            if not page.get("next_cursor"):
                return found
            query["cursor"] = page["next_cursor"]

    def usage_records(self, reply_id: str) -> list[dict[str, Any]]:
        """What one reply is charged with."""
        listed = self.pages("/v1/usage/records")
        return [one for one in listed if one["message_id"] == reply_id and one["record_kind"] == "reply"]
